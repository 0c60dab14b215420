import pytest
import torch

from cases import EXAMPLES
from fractionate.losses import entropy
from fractionate.metrics import (
    accuracy,
    corrected_scores,
    mean_distinct,
    mean_pass_at_k,
    pass_at_k,
    position_profile,
    skill_forgetting,
    solution_recall,
    wilson_interval,
)
from fractionate.records import EvalRecord


def record(suite="accuracy", samples=1, correct=0, **fields):
    counted = {"distinct": 0, "unanswered": 0, "truncated": 0, "tokens": 5, **fields}
    return EvalRecord(suite, "item", 0.5, samples, correct, **counted)


def test_accuracy_has_wilsons_interval():
    found = accuracy([record(correct=int(i < 171)) for i in range(200)])
    assert (found.correct, found.scored, found.rate) == (171, 200, 0.855)
    assert [found.low, found.high] == pytest.approx(EXAMPLES["wil_171"], abs=1e-9)


def test_truncated_and_unanswered_count_as_wrong_and_are_reported():
    found = accuracy([record(correct=1), record(unanswered=1, truncated=1)])
    assert (found.rate, found.answered, found.finished) == (0.5, 0.5, 0.5)


def test_unscored_is_not_wrong():
    found = accuracy([record(correct=1), record(reasons={"unscored": 1})])
    assert (found.rate, found.scored, found.unscored) == (1.0, 1, 1)


def test_only_unscored_completions_have_no_rate():
    found = accuracy([record(reasons={"unscored": 1})])
    assert (found.rate, found.low, found.high) == (None, None, None)


def test_no_completion_is_an_error():
    with pytest.raises(ValueError, match="nothing was evaluated"):
        accuracy([])


def test_pass_at_k_is_averaged_over_items_not_pooled():
    records = [record(samples=10, correct=correct) for correct in (0, 1, 3, 10, 10)]
    found = mean_pass_at_k(records, (1, 5, 10))
    assert list(found.values()) == pytest.approx(EXAMPLES["pk_mean"], abs=1e-9)


def test_distinct_solutions_are_averaged_over_items():
    assert mean_distinct([record(distinct=3), record(distinct=0)]) == 1.5


def test_recall_against_the_solver():
    found = solution_recall(["a"], ["a", "b"])
    assert (found.found, found.exist, found.recall) == (1, 2, 0.5)


@pytest.mark.parametrize(("found", "solver"), [(["c"], ["a"]), ([], [])])
def test_recall_needs_the_solvers_own_forms(found, solver):
    with pytest.raises(ValueError, match="solver's set"):
        solution_recall(found, solver)


def test_skills_are_forgotten_in_points():
    base = [record("skill:add", samples=10, correct=9), record("skill:cmp", samples=10, correct=8)]
    final = [record("skill:add", samples=10, correct=4), record("skill:cmp", samples=10, correct=9)]
    found = skill_forgetting(base, final)
    assert found.drops == pytest.approx({"add": 50.0, "cmp": -10.0})
    assert found.mean_drop == pytest.approx(20.0)


def test_skills_without_a_record_are_an_error():
    with pytest.raises(ValueError, match="no record of a skill"):
        skill_forgetting([record()], [record()])


def test_chance_is_zero_on_the_corrected_scale():
    scores = {"parity": 50.0, "op": 100.0}
    assert corrected_scores(scores, {"parity": 0.5, "op": 0.55}) == {"parity": 0.0, "op": 100.0}


@pytest.mark.parametrize(("chance", "message"), [({}, "no chance level"), ({"a": 1.0}, "must lie")])
def test_every_corrected_skill_has_a_chance_below_one(chance, message):
    with pytest.raises(ValueError, match=message):
        corrected_scores({"a": 50.0}, chance)


def test_profile_counts_the_tokens_it_rests_on():
    values = torch.tensor([[1.0, 3.0, 5.0], [3.0, float("nan"), float("nan")]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    assert position_profile(values, mask, width=2) == [(pytest.approx(7 / 3), 3), (5.0, 1)]


def test_contract_functions_are_found_here():
    assert pass_at_k(10, 3, 5) == pytest.approx(EXAMPLES["pk_3"][2])
    assert wilson_interval(140, 200) == pytest.approx(tuple(EXAMPLES["wil_140"]))


def test_entropy_along_a_completion_is_a_mean_over_positions():
    laws = torch.tensor([[[0.5, 0.5], [0.9, 0.1]]], dtype=torch.float64)
    rows = entropy(log_probs=laws.log())
    assert rows[0].tolist() == pytest.approx(EXAMPLES["ent_rows"], abs=1e-9)
    mask = torch.ones(1, 2, dtype=torch.bool)
    assert position_profile(rows, mask) == [(pytest.approx(EXAMPLES["ent_mean"], abs=1e-9), 2)]


def test_entropy_of_example_a():
    law = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    assert float(entropy(log_probs=law.log())) == pytest.approx(EXAMPLES["ent_q"], abs=1e-9)
