import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from planted import KL, RATE, ROLLOUT, planted, scored, study

from fractionate.analysis.answer import answer, on_policy_worth
from fractionate.analysis.claims import TESTS, judge_claims
from fractionate.analysis.claims_grid import teacher_is_as_sparse
from fractionate.analysis.claims_sweep import forgetting_grows, teacher_forgets_less
from fractionate.analysis.evidence import (
    Finding,
    cautious_interval,
    cell_means,
    over_runs,
    rank_correlation,
    verdict_of,
)
from fractionate.analysis.paper import CLAIMS
from fractionate.analysis.runs import Runs, gather
from fractionate.records import CellResult, EvalRecord, WeightRecord


def verdicts(runs: Runs) -> Mapping[str, str]:
    return {
        claim.key: claim.finding.verdict if claim.finding else "untestable"
        for claim in judge_claims(runs)
    }


def test_every_test_has_its_published_side():
    assert set(TESTS) == set(CLAIMS)
    assert all(test.__doc__ for test in TESTS.values())


def test_a_study_where_the_rate_rules(rate_runs: Runs):
    found = verdicts(rate_runs)
    assert found["C5"] == "holds"
    assert found["C6"] == "holds"
    assert found["C7"] == "holds"
    assert found["C2"] == "does not hold"
    assert found["C21"] == "holds"
    assert found["C35"] == "holds"
    assert found["C20"] == "does not hold"


def test_a_study_where_forgetting_does_not_depend_on_the_rate():
    cells = planted(seeds=range(42, 47), forgetting={ROLLOUT: 0.1}, steps=2, items=20)
    found = verdicts(gather(cells, study=study()))
    assert found["C4"] == "does not hold"
    assert found["C6"] == "does not hold"


def test_a_study_with_opposite_sparsity():
    effects = {ROLLOUT: -0.1}
    cells = planted(seeds=(42, 43, 44), sparsity=effects, steps=2, items=20)
    found = verdicts(gather(cells, study=study()))
    assert found["C8"] == "does not hold"
    assert found["C7"] == "does not hold"


def test_claims_out_of_reach_say_what_they_need(rate_runs: Runs):
    needs = {claim.key: claim.untestable for claim in judge_claims(rate_runs)}
    assert needs["C9"] == "needs at least three learning rates"
    assert needs["C13"] == "needs at least three points of the rollout spectrum"
    assert needs["C12"] == "needs skills evaluated within the first third of training"


def test_early_forgetting_is_read_from_intermediate_evaluations():
    cells = planted(forgetting={RATE: 0.3}, at=(0, 50, 150), steps=2, items=10)
    assert verdicts(gather(cells, study=study()))["C12"] == "holds"


def test_a_rate_sweep_reaches_the_claims_about_lines():
    factors = {ROLLOUT: ("student", "teacher"), RATE: ("0.001", "0.002", "0.003", "0.004")}
    cells = planted(
        factors=factors, sparsity={RATE: -0.05}, forgetting={RATE: 0.1}, steps=2, items=10
    )
    found = verdicts(gather(cells, study=study()))
    assert found["C9"] == "holds"
    assert found["C10"] == "holds"
    assert found["C11"] in ("does not hold", "cannot be told")


def test_a_spectrum_reaches_its_claims():
    labels = tuple(f"spectrum(lam={lam})" for lam in (-1, 0, 1))
    factors = {ROLLOUT: labels, KL: ("forward", "reverse"), RATE: ("0.0005", "0.0025")}
    cells = planted(
        factors=factors,
        accuracy={f"{ROLLOUT}:{KL}": 0.15},
        forgetting={RATE: 0.3},
        sparsity={RATE: -0.2},
        seeds=(42, 43, 44),
        steps=2,
    )
    found = verdicts(gather(cells, study=study()))
    assert found["C14"] == "holds"
    assert found["C13"] == "does not hold"
    assert found["C15"] == "holds"


def test_one_seed_decides_nothing_about_differences():
    cells = planted(seeds=(42,), forgetting={RATE: 0.3}, steps=2, items=10)
    found = verdicts(gather(cells, study=study()))
    assert {found[key] for key in ("C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8")} == {
        "cannot be told"
    }


def test_the_verdict_needs_the_whole_interval():
    assert verdict_of(1.0, 2.0, above=0.5) == "holds"
    assert verdict_of(0.2, 2.0, above=0.5) == "cannot be told"
    assert verdict_of(-1.0, 0.4, above=0.5) == "does not hold"
    assert verdict_of(-1.0, 1.0, above=-2.0, below=2.0) == "holds"
    assert verdict_of(3.0, 4.0, above=-2.0, below=2.0) == "does not hold"
    assert verdict_of(-3.0, 1.0, above=-2.0, below=2.0) == "cannot be told"


def test_the_cautious_interval_holds_both_sides():
    draws = np.linspace(1.0, 3.0, 1001)
    low, high = cautious_interval(1.5, draws)
    assert low == pytest.approx(2 * 1.5 - 2.95)
    assert high == pytest.approx(2.95)


def test_draws_have_the_spread_of_a_mean():
    def cell(rate: str, seed: int, right: int):
        return scored({RATE: rate}, seed, [1] * right + [0] * (100 - right))

    counts = {"1": (50, 52, 54, 56, 58), "2": (63, 61, 59, 57, 55)}
    cells = [cell(rate, seed, n) for rate, row in counts.items() for seed, n in enumerate(row)]
    means = cell_means(gather(cells), "accuracy")
    assert means.means == pytest.approx([0.54, 0.59])
    difference = means.draws[:, 1] - means.draws[:, 0]
    assert difference.mean() == pytest.approx(0.05, abs=0.01)
    # Paired differences 13, 9, 5, 1, -3 points: standard error 2.83 points, four degrees of freedom
    half = np.quantile(difference, 0.975) - np.quantile(difference, 0.5)
    assert half == pytest.approx(2.776 * 0.02828, rel=0.2)


def test_rank_correlation_handles_ties():
    up = np.array([1.0, 2.0, 3.0])
    assert rank_correlation(up, 10 * up) == pytest.approx(1.0)
    assert rank_correlation(up, -up) == pytest.approx(-1.0)
    assert rank_correlation(up, np.ones(3)) is None
    tied = rank_correlation(np.array([1.0, 1.0, 2.0]), up)
    assert tied == pytest.approx(np.sqrt(3) / 2)


# ---------------------------------------------------------------- the answer


def test_the_answer_has_three_sentences(rate_runs: Runs):
    found = answer(rate_runs)
    assert len(found.sentences) == 3
    assert found.sentences[0].startswith("The learning rate explains most of accuracy (ω²")
    assert "learning rate explains most of update sparsity" in found.sentences[1]
    assert "on-policy" in found.sentences[2].lower()


def test_gain_of_student_rollouts_is_found_with_its_cost():
    cells = planted(accuracy={ROLLOUT: -0.2}, seeds=(42, 43, 44), steps=3, full=False)
    runs = gather(cells, study=study())
    found = on_policy_worth(runs)
    assert found.verdict == "worth"
    assert found.ratios["seconds"] == pytest.approx(2.0)
    assert found.ratios["flops"] == pytest.approx(2.1 / 1.1)
    assert found.generated == 3 * 1280
    assert "3,840 generated tokens" in answer(runs).sentences[2]


def test_equal_policies_are_not_worth_the_dearer_one():
    def cell(rollout: str, seed: int, right: int):
        answers = [1] * right + [0] * (400 - right)
        flops = {"student": 2.0, "teacher": 1.0}[rollout]
        return scored({ROLLOUT: rollout}, seed, answers, flops=flops)

    counts = {"student": (280, 282, 279, 281), "teacher": (281, 280, 280, 279)}
    runs = gather([cell(r, seed, n) for r, row in counts.items() for seed, n in enumerate(row)])
    assert on_policy_worth(runs).verdict == "not worth"


def test_a_gain_that_turns_round_depends():
    cells = planted(accuracy={f"{ROLLOUT}:{KL}": 0.3}, seeds=(42, 43, 44, 45), steps=2, full=False)
    found = on_policy_worth(gather(cells, study=study()))
    assert found.verdict == "depends"
    assert [effect.within for effect in found.split] == [{KL: "forward"}, {KL: "reverse"}]


def test_without_both_policies_it_was_not_studied():
    cells = planted(factors={RATE: ("0.001", "0.002")}, steps=2, full=False)
    found = answer(gather(cells, study=study()))
    assert "was not studied" in found.sentences[2]
    assert "was not measured" in found.sentences[1]


# ---------------------------------------------------------------- too little to decide


def skilled(levels: Mapping[str, str], seed: int, skill: Sequence[int], kept: float) -> CellResult:
    """A cell with accuracy 5 of 8, one skill before (all right) and after, and its sparsity."""
    cell = scored(levels, seed, [1] * 5 + [0] * 3)

    def records(answers: Sequence[int]) -> tuple[EvalRecord, ...]:
        return tuple(
            EvalRecord("skill:add", f"add{i}", 0.0, 1, c, 0, 0, 0, 2) for i, c in enumerate(answers)
        )

    weights = WeightRecord(
        parameters=100,
        unmoved={"1e-06": kept},
        unmoved_inclusive={"1e-06": kept},
        unmoved_relative=kept,
        by_layer={},
        by_matrix={},
        rounding_null={"1e-06": kept},
        rounding_bound=kept,
        delta_l2=1.0,
        relative_l1=0.1,
    )
    evaluations = {0: records([1] * len(skill)), 150: (*cell.evaluations[150], *records(skill))}
    return replace(cell, evaluations=evaluations, weights={150: weights})


def test_seeds_that_agree_exactly_hold_no_claim():
    labels = itertools.product(("student", "teacher"), ("forward", "reverse"), ("0.0005", "0.0025"))
    cells = [
        skilled(dict(zip((ROLLOUT, KL, RATE), arm, strict=True)), seed, [1] * 8, 0.5)
        for arm in labels
        for seed in (1, 2)
    ]
    found = {claim.key: claim.finding for claim in judge_claims(gather(cells, study=study()))}
    for key in ("C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C11"):
        finding = found[key]
        assert finding is not None
        assert finding.verdict == "cannot be told", key
        assert "no spread is seen" in finding.text


def forgetting_of_pairs(pairs: Mapping[str, tuple[Sequence[int], Sequence[int]]]) -> Finding:
    """C11 for wrong answers of 20 by rate: (student by seed, teacher by seed)."""
    cells = [
        skilled({ROLLOUT: policy, RATE: rate}, seed, [0] * wrong + [1] * (20 - wrong), 0.5)
        for rate, sides in pairs.items()
        for policy, side in zip(("student", "teacher"), sides, strict=True)
        for seed, wrong in enumerate(side)
    ]
    return teacher_forgets_less(gather(cells, study=study()))


def test_ties_speak_for_neither_side_of_forgetting():
    tied = forgetting_of_pairs({"1": ((1, 2, 1), (2, 1, 1)), "2": ((3, 2, 3), (2, 3, 3))})
    assert tied.verdict == "cannot be told"
    assert "2 tied, no pair differs" in tied.text
    half = forgetting_of_pairs({"1": ((1, 2, 1), (2, 1, 1)), "2": ((9, 8, 9), (1, 1, 2))})
    assert half.verdict == "cannot be told"
    both = forgetting_of_pairs({"1": ((8, 9, 8), (2, 1, 1)), "2": ((9, 8, 9), (1, 1, 2))})
    assert both.verdict == "holds"
    lost = forgetting_of_pairs({"1": ((2, 1, 1), (8, 9, 8)), "2": ((1, 1, 2), (9, 8, 9))})
    assert lost.verdict == "does not hold"


def test_one_pair_decides_nothing_about_forgetting():
    assert forgetting_of_pairs({"1": ((9, 8, 9), (1, 1, 2))}).verdict == "cannot be told"


@pytest.mark.parametrize(("teacher", "verdict"), [(0.9, "cannot be told"), (0.2, "does not hold")])
def test_one_pair_can_refute_but_not_show_that_the_teacher_is_as_sparse(
    teacher: float, verdict: str
):
    cells = [
        skilled({ROLLOUT: policy}, seed, [1] * 8, kept + 0.001 * noise)
        for policy, kept, noises in (("student", 0.5, (0, 1)), ("teacher", teacher, (2, 0)))
        for seed, noise in enumerate(noises)
    ]
    found = teacher_is_as_sparse(gather(cells, study=study()))
    assert found.verdict == verdict


def test_equal_values_of_runs_decide_nothing():
    assert over_runs("ratio", [1.0, 1.0, 1.0], above=0.5).verdict == "cannot be told"
    assert over_runs("ratio", [1.0, 1.1, 1.0], above=0.5).verdict == "holds"


def test_an_interval_ends_where_its_statistic_does():
    found = over_runs("rank correlation", [1.0, 0.2, 0.6], below=0.5, span=(-1.0, 1.0))
    assert found.text.startswith("rank correlation 0.60 [−0.39 to 1.00]")


def test_a_perfect_rank_correlation_lies_in_its_own_interval():
    factors = {ROLLOUT: ("student", "teacher"), RATE: ("0.001", "0.002", "0.003", "0.004")}
    cells = planted(factors=factors, forgetting={RATE: 0.1}, steps=2, items=10)
    text = forgetting_grows(gather(cells, study=study())).text
    assert "correlation 1.00 [" in text
    assert "to 1.00]" in text
