"""The code of docs/gradients.md runs, and its numbers are the worked ones."""

import re
from pathlib import Path

import pytest
import yaml

from cases import EXAMPLES
from fractionate.config import Diagnostics, Evaluate

PAGE = Path(__file__).parent.parent / "docs" / "gradients.md"


def blocks(language):
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def page():
    names = {}
    exec(compile("\n".join(blocks("python")), PAGE.name, "exec"), names)
    return names


def test_the_construction_of_theorem_c2(page):
    for delta, distance in page["apart"].items():
        expected = EXAMPLES[f"c2_diff_{delta:g}"]
        assert distance == pytest.approx(expected, rel=1e-7)


def test_the_table_of_theorem_c1(page):
    assert page["tv"] == pytest.approx(EXAMPLES["tv_seq"], abs=1e-9)
    assert page["widest"] == pytest.approx(EXAMPLES["sg_Rmax"], abs=1e-9)
    for name, key in (("forward", "sg_diff_F"), ("reverse", "sg_diff_R")):
        assert page["difference"][name] == pytest.approx(EXAMPLES[key], abs=1e-9)
    bounds = {"forward": "F", "reverse": "R_paper", "sharp": "R_sharp"}
    for name, key in bounds.items():
        assert page[f"{name}_bound"] == pytest.approx(EXAMPLES[f"sg_bound_{key}"], abs=1e-9)


def test_noise_and_cosines(page):
    assert page["noise"].trace_variance == pytest.approx(EXAMPLES["gn_varA"], abs=1e-6)
    assert page["noise"].unbiased_norm_squared == pytest.approx(EXAMPLES["gn_uA"], abs=1e-6)
    assert page["cosines"].plain == pytest.approx(EXAMPLES["gn_cos"], abs=1e-6)
    assert page["cosines"].debiased == pytest.approx(EXAMPLES["gn_cos_deb"], abs=1e-6)


def test_the_settings_are_valid():
    (block,) = blocks("yaml")
    fields = yaml.safe_load(block)
    assert Evaluate.model_validate(fields["evaluate"]).gradients.batches == 4
    assert Diagnostics.model_validate(fields["diagnostics"]).bins == 50
