import pytest
from planted import FACTORS, ROLLOUT, planted, study

from fractionate.analysis.outcome_names import measured_names, refuse_unmeasured
from fractionate.analysis.runs import gather
from fractionate.config import Study, StudyFileError

EVALUATE = {
    "coverage": {"samples": 4, "k": [1, 4], "temperatures": [0.5]},
    "harder": {},
    "sparsity": {"thresholds": [1e-6]},
}


def declaring(outcome: str, evaluate: dict[str, object]) -> Study:
    declared = {
        "outcome": outcome,
        "factor": ROLLOUT,
        "treatment": "student",
        "control": "teacher",
    }
    return study(evaluate=evaluate, hypotheses=[declared])


@pytest.mark.parametrize(
    ("outcome", "there"),
    [
        ("pass@32@0.5", "pass@1@0.5, pass@2@0.5, pass@4@0.5"),
        ("pass@3@0.5", "pass@1@0.5"),
        ("pass@4@1", "pass@1@0.5"),
        ("distinct@1", "distinct@0.5"),
        ("completion_rate@1", "completion_rate@0.5"),
        ("sparsity@1e-08", "sparsity@1e-06"),
        ("sparsity@1e-6", "sparsity@1e-06"),
        ("rounding_null@0", "rounding_null@1e-06"),
        ("harder_pass@2", "Add its measurement"),
        ("skill:add", "Add its measurement"),
        ("kl_to_base", "Add its measurement"),
    ],
)
def test_an_outcome_that_evaluate_leaves_out_is_refused(outcome: str, there: str):
    with pytest.raises(StudyFileError, match=rf"hypotheses\[0\]\.outcome: '{outcome}'.*{there}"):
        refuse_unmeasured(declaring(outcome, EVALUATE))


@pytest.mark.parametrize(
    "outcome",
    ["accuracy", "pass@4@0.5", "distinct@0.5", "harder", "sparsity@1e-06", "delta_l2", "flops"],
)
def test_an_outcome_that_evaluate_makes_is_taken(outcome: str):
    refuse_unmeasured(declaring(outcome, EVALUATE))


def test_accuracy_may_come_from_the_coverage_samples():
    refuse_unmeasured(declaring("accuracy", {"accuracy": None, "coverage": {}}))
    with pytest.raises(StudyFileError, match="not measured"):
        refuse_unmeasured(declaring("accuracy", {"accuracy": None}))


def test_everything_recorded_may_be_declared():
    (run, *_) = gather(planted(items=5, steps=2, factors=FACTORS)).runs
    evaluate = study().evaluate.model_dump()
    complete = study(evaluate={**evaluate, "drift": {}}).evaluate
    assert set(run.final) <= set(measured_names(complete))
