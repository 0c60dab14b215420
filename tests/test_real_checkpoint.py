"""A real checkpoint with a real vocabulary and chat template goes through `fractionate run`."""

from pathlib import Path

import pytest

import fractionate
from fractionate.rng import stream
from fractionate.statistics import bootstrap_interval

ROOT = Path(__file__).parent.parent
CHECKPOINT = ROOT / "models" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.slow
@pytest.mark.skipif(not CHECKPOINT.exists(), reason=f"{CHECKPOINT.name} is fetched by `make real`")
def test_smollm2_comes_closer_to_itself_with_a_worked_solution(tmp_path):
    study = fractionate.load_study(ROOT / "studies" / "real" / "smollm2.yaml")
    results = fractionate.run(fractionate.plan(study), store=tmp_path / "runs")
    (cell,) = results.outcomes.cells
    before, after = (
        {r.item: r.value for r in cell.evaluations[step] if r.suite == "kl_to_teacher"}
        for step in (0, study.budget.steps)
    )
    assert before.keys() == after.keys()
    falls = [before[item] - after[item] for item in before]
    interval = bootstrap_interval(falls, rng=stream(0, "real checkpoint"))
    assert interval.low > 0, f"forward KL fell by {interval}"
    html = fractionate.report(results, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "KL to teacher" in html.partition("Every cell")[2]
