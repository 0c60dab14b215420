import json
from pathlib import Path

import plotly.graph_objects as go
import pytest
from planted import KL, RATE, ROLLOUT, planted, scored, study

from fractionate.analysis.figures import FIGURES, figures
from fractionate.analysis.figures_print import FIGURES as PRINTED
from fractionate.analysis.figures_print import save_figures
from fractionate.analysis.panels import SERIES_COLOURS, colours, points, untrained
from fractionate.analysis.runs import Runs, gather


def test_every_figure_is_one_that_plotly_takes(rate_runs: Runs):
    for figure in figures(rate_runs):
        if figure.key == "fig3":
            assert figure.absent is not None
            assert "no rollout spectrum" in figure.absent
        else:
            assert figure.spec is not None
            go.Figure(figure.spec)
            json.dumps(figure.spec, allow_nan=False)


def test_series_keep_their_colour(rate_runs: Runs):
    found = colours(rate_runs)
    assert found["student · forward"] == SERIES_COLOURS["student", "forward"]
    assert found["teacher · reverse"] == SERIES_COLOURS["teacher", "reverse"]
    assert len(set(found.values())) == 4


def test_more_series_than_rollout_by_kl_have_their_own_colours():
    factors = {ROLLOUT: ("student", "teacher"), "optimizer.clip": ("1", "none")}
    runs = gather(planted(factors=factors, items=5, steps=2), study=study())
    assert len(set(colours(runs).values())) == 4


def test_points_are_in_percent_with_all_seeds(rate_runs: Runs):
    found = points(rate_runs, "accuracy")
    assert len(found) == 8
    first = found[0]
    assert len(first.seeds) == 3
    assert first.mean == pytest.approx(sum(first.seeds) / 3)
    assert first.low < first.mean < first.high
    assert 1 < first.mean < 100


def test_the_untrained_student_is_known_from_step_zero(rate_runs: Runs):
    assert untrained(rate_runs, "accuracy") == pytest.approx(25, abs=6)


def test_the_untrained_student_is_the_only_hollow_mark(rate_runs: Runs):
    figure = FIGURES["fig1"](rate_runs)
    assert figure.spec is not None
    hollow = [
        trace["name"]
        for trace in figure.spec["data"]
        if trace.get("marker", {}).get("symbol") == "circle-open"
    ]
    assert hollow == ["untrained student"]


def test_sparsity_is_drawn_with_its_null(rate_runs: Runs):
    for key in ("fig1", "fig2"):
        figure = FIGURES[key](rate_runs)
        assert figure.spec is not None
        assert "rounding alone" in [trace.get("name") for trace in figure.spec["data"]]


def test_gradients_show_the_clip_value(rate_runs: Runs):
    figure = FIGURES["gradients"](rate_runs)
    assert figure.spec is not None
    clip = [trace for trace in figure.spec["data"] if trace["name"] == "clip 1"]
    assert len(clip) == 4
    assert clip[0]["y"] == [1.0, 1.0]


def test_a_spectrum_is_drawn_over_lambda():
    labels = tuple(f"spectrum(lam={lam})" for lam in (-1, 0, 1))
    factors = {ROLLOUT: labels, KL: ("forward", "reverse"), RATE: ("0.0005", "0.0025")}
    runs = gather(planted(factors=factors, items=5, steps=2), study=study())
    figure = FIGURES["fig3"](runs)
    assert figure.spec is not None
    lines = [trace for trace in figure.spec["data"] if trace["xaxis"] == "x"]
    assert [line["x"] for line in lines] == [[-1.0, 0.0, 1.0]] * 4
    assert {line["name"] for line in lines} == {
        f"{kl} · rate {rate}" for kl in ("forward", "reverse") for rate in ("0.0005", "0.0025")
    }


def test_a_bare_study_says_why_figures_are_absent():
    runs = gather([scored({}, seed, [1, 0]) for seed in (1, 2)])
    absent = {figure.key: figure.absent for figure in figures(runs) if figure.spec is None}
    assert set(absent) == {"fig2", "fig3", "coverage", "learning", "gradients"}
    assert all(absent.values())


@pytest.fixture(scope="module")
def spectrum_runs() -> Runs:
    """Three points of the rollout spectrum, with coverage and the harder task."""
    labels = tuple(f"spectrum(lam={lam})" for lam in (-1, 0, 1))
    factors = {ROLLOUT: labels, KL: ("forward", "reverse"), RATE: ("0.0005", "0.0025")}
    return gather(planted(factors=factors, items=5, steps=3), study=study(name="spectrum"))


@pytest.mark.slow
def test_the_papers_figures_are_drawn_from_what_there_is(
    rate_runs: Runs, spectrum_runs: Runs, tmp_path: Path
):
    saved = save_figures((rate_runs, spectrum_runs), tmp_path, formats=("svg",))
    drawn = {path.stem for path in saved.paths}
    assert {"fig01", "fig02", "fig03", "fig04", "fig05", "fig07", "fig12", "fig18"} <= drawn
    assert len(drawn) + len(saved.absent) == len(PRINTED) == 26
    assert "E9" in saved.absent["fig06"]
    assert "second family" in saved.absent["fig13"]
    assert "Figure 3 of the paper, redrawn (spectrum)" in _text(tmp_path / "fig03.svg")


def _text(path: Path) -> str:
    """Text of a figure: matplotlib writes it as comments beside its outlines."""
    return path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_printed_figures_repeat_byte_for_byte(rate_runs: Runs, tmp_path: Path):
    first, second = (
        save_figures(rate_runs, tmp_path / name, formats=("pdf", "svg")).paths for name in "ab"
    )
    assert [path.name for path in first] == [path.name for path in second]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
