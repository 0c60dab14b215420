import math

import numpy as np
import pytest
from planted import KL, RATE, ROLLOUT, planted, scored

from cases import EXAMPLES
from fractionate.analysis.frame import select, tidy
from fractionate.analysis.measure import evaluation_values, pass_values, weight_values
from fractionate.analysis.metrics_table import CHANCE, describe
from fractionate.analysis.runs import Runs
from fractionate.records import EvalRecord, WeightRecord
from fractionate.statistics import wilson_interval
from fractionate.tasks.sandbox.skills import SKILLS


def record(suite: str, correct: int, samples: int = 1, **more: object) -> EvalRecord:
    fields = {"distinct": correct, "unanswered": 0, "truncated": 0, "tokens": 10 * samples, **more}
    item = str(fields.pop("item", "i"))
    return EvalRecord(suite, item, 0.5, samples, correct, **fields)


def values_of(records: list[EvalRecord], base: list[EvalRecord] | None = None) -> dict[str, float]:
    return {value.metric: value.value for value in evaluation_values(records, base)}


def test_frame_has_a_row_per_cell_step_and_metric(rate_runs: Runs):
    cells = tuple(run.cell for run in rate_runs.runs)
    frame = tidy(cells)
    assert list(frame.columns[:4]) == ["cell", ROLLOUT, KL, RATE]
    assert not frame.duplicated(["cell", "step", "metric"]).any()
    assert set(frame["cell"]) == {cell.cell for cell in cells}
    assert set(frame.loc[frame["metric"] == "accuracy", "step"]) == {0, 150}


def test_factor_columns_are_ordered_as_declared():
    levels = {ROLLOUT: ("teacher", "student")}
    frame = tidy(planted(factors=levels, items=5, steps=2))
    assert list(frame[ROLLOUT].cat.categories) == ["teacher", "student"]
    assert frame[ROLLOUT].cat.ordered


def test_final_marks_the_last_step_only(rate_runs: Runs):
    frame = tidy([run.cell for run in rate_runs.runs])
    assert set(frame.loc[frame["final"], "step"]) == {150}


def test_every_metric_is_described(rate_runs: Runs):
    frame = tidy([run.cell for run in rate_runs.runs])
    for metric in set(frame["metric"]):
        assert describe(metric).description


def test_accuracy_carries_its_wilson_interval():
    frame = tidy([scored({RATE: "1"}, 1, [1] * 140 + [0] * 60)])
    row = select(frame, "accuracy").iloc[0]
    assert row["value"] == 0.7
    assert (row["low"], row["high"]) == pytest.approx(wilson_interval(140, 200))
    assert row["n"] == 200


def test_select_takes_aliases_and_names_what_there_is(rate_runs: Runs):
    frame = tidy([run.cell for run in rate_runs.runs])
    rows = select(frame, "accuracy", rollout="student", kl="forward")
    assert set(rows[ROLLOUT]) == {"student"}
    assert len(rows) == 2 * 3
    with pytest.raises(ValueError, match=r"did not measure 'pass@3@0\.5'"):
        select(frame, "pass@3@0.5")
    with pytest.raises(ValueError, match=r"does not vary 'method\.reduction'"):
        select(frame, "accuracy", **{"method.reduction": "token_mean"})


def test_unknown_metric_is_an_error():
    with pytest.raises(ValueError, match="no metric 'acuracy'"):
        describe("acuracy")
    with pytest.raises(ValueError, match="no metric 'pass@4'"):
        describe("pass@4")


def test_pass_at_k_is_the_mean_over_items_of_the_unbiased_value():
    records = [record("coverage", c, 10, item=str(i)) for i, c in enumerate((0, 1, 3, 10, 10))]
    found = values_of(records)
    assert found["pass@1@0.5"] == pytest.approx(0.48)
    assert found["pass@10@0.5"] == pytest.approx(0.8)
    assert pass_values(records, 5).mean() == pytest.approx(EXAMPLES["pk_mean"][1])


def test_truncated_and_unparsed_are_counted():
    records = [record("accuracy", 0, truncated=1), record("accuracy", 0, unanswered=1)]
    records += [record("accuracy", 1), record("accuracy", 1)]
    found = values_of(records)
    assert (found["completion_rate"], found["parse_rate"], found["accuracy"]) == (0.75, 0.75, 0.5)


def test_skills_are_an_unweighted_mean_with_drop_against_the_base():
    base = [record("skill:add", 1, item=str(i)) for i in range(10)]
    base += [record("skill:cmp", 1, item=str(i)) for i in range(20)]
    final = [record("skill:add", int(i < 5), item=str(i)) for i in range(10)]
    final += [record("skill:cmp", 1, item=str(i)) for i in range(20)]
    found = values_of(final, base)
    assert found["skills"] == pytest.approx(0.75)
    assert found["skills_drop"] == pytest.approx(0.25)
    add = (0.5 - 1 / 90) / (1 - 1 / 90)
    assert found["skills_chance_corrected"] == pytest.approx((add + 1) / 2)


def test_without_a_base_no_drop_is_invented():
    assert "skills_drop" not in values_of([record("skill:add", 1)])


def test_chance_levels_are_those_of_the_sandbox():
    assert pytest.approx({name: skill.chance for name, skill in SKILLS.items()}) == CHANCE


def test_sparsity_comes_with_its_null():
    weights = WeightRecord(
        parameters=10,
        unmoved={"1e-06": 0.5},
        unmoved_inclusive={"1e-06": 0.5},
        unmoved_relative=0.4,
        by_layer={},
        by_matrix={},
        rounding_null={"1e-06": 0.45},
        rounding_bound=0.3,
        delta_l2=1.0,
        relative_l1=0.1,
    )
    found = {value.metric: value.value for value in weight_values(weights)}
    assert found["sparsity_excess@1e-06"] == pytest.approx(0.05)


def test_training_metrics_are_totals_and_quantiles(rate_runs: Runs):
    run = rate_runs.runs[0]
    norms = [step.grad_norm for step in run.cell.steps]
    assert run.final["tokens_trained"].value == sum(s.tokens_trained for s in run.cell.steps)
    assert run.final["grad_norm_first10"].value == pytest.approx(np.mean(norms[:10]))
    clipped = sum(step.clip_coefficient < 1 for step in run.cell.steps) / len(norms)
    assert run.final["share_clipped"].value == clipped


def test_bootstrap_interval_holds_the_mean_and_repeats():
    records = [record("coverage", c, 4, item=str(i)) for i, c in enumerate([0, 1, 2, 4] * 25)]
    first, second = (list(evaluation_values(records, None)) for _ in range(2))
    assert first == second
    one = next(value for value in first if value.metric == "pass@1@0.5")
    assert one.low is not None
    assert one.high is not None
    assert one.low < one.value < one.high
    width = one.high - one.low
    sd = float(np.std([r.correct / 4 for r in records]))
    assert width == pytest.approx(2 * 1.96 * sd / math.sqrt(100), rel=0.15)
