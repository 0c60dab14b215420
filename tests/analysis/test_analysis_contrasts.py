import itertools

import numpy as np
import pytest
from planted import KL, RATE, ROLLOUT, planted, scored, study

from cases import EXAMPLES
from fractionate.analysis.contrasts import (
    difference_of_differences,
    paired_effect,
    simple_effects,
)
from fractionate.analysis.hypotheses import judge_hypotheses
from fractionate.analysis.runs import Runs, gather
from fractionate.config import Hypothesis
from fractionate.statistics import t_interval, tost

EXAMPLE_O = (
    (72, 73, 71), (71, 72, 72), (72, 70, 71), (60, 52, 57),
    (73, 72, 74), (71, 73, 72), (45, 35, 52), (50, 58, 41),
)  # fmt: skip
"""Accuracy in percent per cell: rollout, then KL, then rate."""


@pytest.fixture(scope="module")
def example() -> Runs:
    levels = itertools.product(("student", "teacher"), ("forward", "reverse"), ("1", "5"))
    return gather(
        [
            scored(
                dict(zip((ROLLOUT, KL, RATE), arm, strict=True)), seed, [1] * n + [0] * (100 - n)
            )
            for arm, row in zip(levels, EXAMPLE_O, strict=True)
            for seed, n in enumerate(row)
        ]
    )


def test_simple_effects_are_the_worked_ones(example: Runs):
    found = simple_effects(example, "accuracy", "rollout", levels=("student", "teacher"))
    assert [100 * effect.difference for effect in found] == pytest.approx(
        list(EXAMPLES["simple"].values())
    )


def test_difference_of_differences_is_the_worked_one(example: Runs):
    found = difference_of_differences(
        example,
        "accuracy",
        first=(ROLLOUT, ("student", "teacher")),
        second=(KL, ("reverse", "forward")),
    )
    assert 100 * found.difference == pytest.approx(abs(EXAMPLES["did"]))
    assert found.low is not None
    assert found.low > 0


def test_one_setting_gives_the_paired_t_interval(example: Runs):
    effect = paired_effect(
        example,
        "accuracy",
        ROLLOUT,
        levels=("student", "teacher"),
        within={KL: "forward", RATE: "1"},
    )
    expected = t_interval(np.array([72, 73, 71]) / 100 - np.array([73, 72, 74]) / 100)
    assert (effect.low, effect.high) == pytest.approx((expected.low, expected.high))
    assert effect.df == 2


def test_equivalence_at_one_setting_is_the_paired_tost(example: Runs):
    effect = paired_effect(
        example,
        "accuracy",
        ROLLOUT,
        levels=("student", "teacher"),
        within={KL: "forward", RATE: "5"},
    )
    differences = np.array([71, 72, 72]) / 100 - np.array([71, 73, 72]) / 100
    for margin in (0.005, 0.02):
        assert effect.equivalent(margin) == tost(differences, margin=margin).equivalent


def test_an_effect_that_differs_between_settings_is_no_noise(example: Runs):
    under = paired_effect(
        example, "accuracy", ROLLOUT, levels=("student", "teacher"), within={KL: "reverse"}
    )
    assert len(under.pairs) == 6
    assert under.df == 4
    assert under.told


def test_pairs_name_setting_and_seed(example: Runs):
    effect = paired_effect(example, "accuracy", RATE, levels=("5", "1"))
    assert effect.pairs["student", "reverse", "seed 0"] == pytest.approx(-0.12)


def test_unknown_levels_are_named(example: Runs):
    with pytest.raises(ValueError, match=r"has no level 'techer'\. Levels: student, teacher"):
        paired_effect(example, "accuracy", ROLLOUT, levels=("student", "techer"))


def test_items_give_a_second_interval(example: Runs):
    effect = paired_effect(example, "accuracy", ROLLOUT, levels=("student", "teacher"), items=True)
    assert effect.item_low is not None
    assert effect.item_high is not None
    assert effect.item_low < effect.difference < effect.item_high


def test_one_seed_has_no_interval():
    cells = [scored({ROLLOUT: r}, 1, [1, 0, 1]) for r in ("student", "teacher")]
    effect = paired_effect(gather(cells), "accuracy", ROLLOUT, levels=("student", "teacher"))
    assert (effect.se, effect.low, effect.p) == (None, None, None)
    assert not effect.told
    assert not effect.equivalent(0.5)


def hypothesis(**changes: object) -> Hypothesis:
    fields = {
        "outcome": "accuracy",
        "factor": ROLLOUT,
        "treatment": "student",
        "control": "teacher",
        "equivalence_margin": 0.03,
        **changes,
    }
    return Hypothesis.model_validate(fields)


def test_a_planted_difference_is_claimed():
    cells = planted(accuracy={ROLLOUT: -0.2}, seeds=range(42, 46), steps=2, full=False)
    (tested,) = judge_hypotheses(gather(cells, study=study()), [hypothesis()])
    assert tested.verdict == "higher"
    assert tested.holm_p is not None
    assert tested.holm_p < 0.05


def test_equal_arms_are_called_equivalent_only_within_the_margin():
    def cell(rollout: str, seed: int, right: int):
        return scored({ROLLOUT: rollout}, seed, [1] * right + [0] * (400 - right))

    counts = {"student": (280, 282, 279, 281), "teacher": (281, 280, 280, 279)}
    runs = gather([cell(r, seed, n) for r, row in counts.items() for seed, n in enumerate(row)])
    (wide,) = judge_hypotheses(runs, [hypothesis()])
    (narrow,) = judge_hypotheses(runs, [hypothesis(equivalence_margin=0.001)])
    (none,) = judge_hypotheses(runs, [hypothesis(equivalence_margin=None)])
    assert wide.verdict == "equivalent"
    assert narrow.verdict == "cannot be told"
    assert none.reason == "no difference is shown, and no margin was declared"


def test_within_makes_one_contrast_per_level(rate_runs: Runs):
    tested = judge_hypotheses(rate_runs, [hypothesis(within="kl")])
    assert [item.effect.within for item in tested if item.effect] == [
        {KL: "forward"},
        {KL: "reverse"},
    ]


def test_a_hypothesis_that_cannot_be_tested_stays_in_the_table(rate_runs: Runs):
    (missing,) = judge_hypotheses(rate_runs, [hypothesis(outcome="pass@3@0.5")])
    assert missing.verdict == "cannot be told"
    assert missing.reason is not None
    assert "pass@3@0.5" in missing.reason
    (absent,) = judge_hypotheses(rate_runs, [hypothesis(within="method.reduction")])
    assert absent.reason == "the study does not vary method.reduction"


def test_holm_counts_the_whole_family(rate_runs: Runs):
    alone = judge_hypotheses(rate_runs, [hypothesis(factor=RATE, treatment="0.0025",
                                                    control="0.0005")])  # fmt: skip
    family = judge_hypotheses(
        rate_runs,
        [hypothesis(factor=RATE, treatment="0.0025", control="0.0005"), hypothesis()],
    )
    assert alone[0].holm_p is not None
    assert family[0].holm_p == pytest.approx(2 * alone[0].holm_p)


@pytest.mark.parametrize("right", [(5, 5), (6, 5), (0, 0)])
def test_seeds_that_agree_exactly_decide_nothing(right: tuple[int, int]):
    counts = dict(zip(("student", "teacher"), right, strict=True))
    cells = [
        scored({ROLLOUT: rollout}, seed, [1] * n + [0] * (8 - n))
        for rollout, n in counts.items()
        for seed in (1, 2)
    ]
    (tested,) = judge_hypotheses(gather(cells), [hypothesis(equivalence_margin=0.2)])
    assert tested.verdict == "cannot be told"
    assert tested.reason is not None
    assert tested.reason.startswith("no spread is seen")
    assert tested.effect is not None
    assert (tested.effect.low, tested.effect.high, tested.effect.p) == (None, None, None)
    assert not tested.effect.equivalent(0.9)


def test_rounding_is_no_spread():
    cells = [
        scored({ROLLOUT: rollout}, seed, [1] * n + [0] * (10 - n))
        for seed, counts in ((1, (7, 6)), (2, (4, 3)))
        for rollout, n in zip(("student", "teacher"), counts, strict=True)
    ]
    effect = paired_effect(gather(cells), "accuracy", ROLLOUT, levels=("student", "teacher"))
    assert effect.se == 0
    assert not effect.told
