"""The examples of the README run as they are printed."""

import re
from pathlib import Path

import pytest
import yaml

from fractionate.config.files import parse_study

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)


def test_the_example_with_tensors_runs():
    (block,) = [b for b in _blocks("python") if "losses" in b]
    exec(compile(block, "README.md", "exec"), {})


@pytest.mark.slow
def test_the_example_with_a_study_runs(tmp_path, monkeypatch):
    (block,) = [b for b in _blocks("python") if "load_study" in b]
    assert len(block.strip().splitlines()) <= 15
    monkeypatch.chdir(tmp_path)
    study = ROOT / "studies" / "sandbox" / "smoke.yaml"
    code = block.replace("studies/sandbox/smoke.yaml", study.as_posix())
    exec(compile(code, "README.md", "exec"), {})
    assert (tmp_path / "runs" / "report.html").stat().st_size > 1_000_000


def test_the_example_study_is_valid():
    (block,) = _blocks("yaml")
    assert parse_study(yaml.safe_load(block)).task.kind == "table"
