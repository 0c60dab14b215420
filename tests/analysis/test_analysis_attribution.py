import itertools

import numpy as np
import pytest
from planted import KL, RATE, ROLLOUT, planted, scored, study

from fractionate.analysis.anova_table import anova_table
from fractionate.analysis.answer import answer
from fractionate.analysis.attribution import attribute, cell_intervals, omega_squared
from fractionate.analysis.knobs import Knob, Share, Swing, decide
from fractionate.analysis.runs import Runs, gather
from fractionate.rng import stream
from fractionate.statistics import factorial_anova


def runs_of(seeds: int = 3, **planted_effects: dict[str, float]) -> Runs:
    cells = planted(seeds=tuple(range(42, 42 + seeds)), steps=2, full=False, **planted_effects)
    return gather(cells, study=study())


def test_shares_equal_those_of_the_analysis_of_variance():
    cube = stream(0, "test").normal(size=(2, 3, 2, 4))
    index = np.indices(cube.shape).reshape(4, -1)
    names = ("a", "b", "c")
    anova = factorial_anova(
        cube.ravel(),
        {name: index[axis].tolist() for axis, name in enumerate(names)},
        blocks={"seed": index[3].tolist()},
    )
    found = omega_squared(cube[None])[0]
    assert found == pytest.approx([term.omega2 for term in anova.terms])


@pytest.mark.parametrize("factor", [ROLLOUT, KL, RATE])
@pytest.mark.parametrize("seeds", [2, 4])
def test_the_planted_knob_is_named(factor: str, seeds: int):
    found = attribute(runs_of(seeds, accuracy={factor: 0.22}), "accuracy")
    assert found.named == factor
    knob = found.knobs[0]
    assert knob.factor == factor
    assert knob.share.low is not None
    assert knob.share.low > 0
    assert knob.first is not None
    assert knob.first >= 0.95
    assert knob.effect == pytest.approx(0.22, abs=0.08)


@pytest.mark.parametrize("draw", range(4))
def test_a_null_study_cannot_be_told(draw: int):
    cells = planted(seeds=(42, 43, 44, 45, 46), steps=2, draw=draw, full=False)
    runs = gather(cells, study=study())
    found = attribute(runs, "accuracy")
    assert found.named is None
    assert found.joint is None
    assert "cannot be told" in answer(runs).sentences[0]


def test_a_null_study_with_two_seeds_cannot_be_told():
    assert attribute(runs_of(2), "accuracy").named is None


def test_an_interaction_is_not_passed_off_as_a_knob():
    found = attribute(runs_of(4, accuracy={f"{ROLLOUT}:{KL}": 0.2}), "accuracy")
    assert found.named is None
    assert found.joint is not None
    assert set(found.joint.factors) == {ROLLOUT, KL}


def test_two_equal_knobs_are_not_ranked():
    found = attribute(runs_of(3, accuracy={KL: 0.2, RATE: -0.2}), "accuracy")
    assert found.named is None
    assert "order is not settled" in found.reason


def test_one_seed_cannot_be_told():
    found = attribute(runs_of(1, accuracy={RATE: 0.3}), "accuracy")
    assert found.named is None
    assert "one seed" in found.reason
    assert all(knob.share.omega2 is None for knob in found.knobs)
    assert found.knobs[0].swing.low is None


def test_a_constant_outcome_has_no_shares():
    runs = gather([scored({RATE: r}, s, [1, 0]) for r in "12" for s in (1, 2)])
    found = attribute(runs, "accuracy")
    assert found.named is None
    assert "the same in every run" in found.reason


def test_a_study_without_factors_has_nothing_to_attribute():
    found = attribute(gather([scored({}, s, [1, 0]) for s in (1, 2)]), "accuracy")
    assert found.reason == "nothing is varied in this study"


def test_the_swing_is_the_worst_setting():
    counts = {("a", "x"): 50, ("b", "x"): 48, ("a", "y"): 90, ("b", "y"): 40}
    cells = [
        scored({"f": f, "g": g}, seed, [1] * (n + seed) + [0] * (100 - n - seed))
        for (f, g), n in counts.items()
        for seed in (1, 2)
    ]
    swing = attribute(gather(cells), "accuracy").knobs
    knob = next(knob for knob in swing if knob.factor == "f")
    assert knob.swing.value == pytest.approx(0.5)
    assert (knob.swing.best, knob.swing.worst, knob.swing.at) == ("a", "b", ("y",))


def test_factors_left_out_are_averaged_over():
    found = attribute(runs_of(2, accuracy={RATE: 0.3}), "accuracy", ["lr"])
    assert [knob.factor for knob in found.knobs] == [RATE]
    assert found.runs == 4
    with pytest.raises(ValueError, match=r"does not vary 'method\.reduction'"):
        attribute(runs_of(2), "accuracy", ["method.reduction"])


def test_the_same_records_give_the_same_intervals(rate_runs: Runs):
    assert attribute(rate_runs, "accuracy").knobs == attribute(rate_runs, "accuracy").knobs


def test_the_table_holds_every_term_with_its_interval(rate_runs: Runs):
    table = anova_table(attribute(rate_runs, "accuracy"))
    assert len(table) == 1 + 7 + 2  # the seed block, all terms, residual and total
    assert table["ss"][:-1].sum() == pytest.approx(table["ss"]["total"])
    assert table.loc[RATE, "omega2_low"] < table.loc[RATE, "omega2"]


def test_cell_intervals_pool_the_spread_within_a_kl():
    def cell(kl: str, rate: str, seed: int, right: int):
        return scored({KL: kl, RATE: rate}, seed, [1] * right + [0] * (100 - right))

    counts = {"forward": ((60, 62), (70, 68)), "reverse": ((10, 50), (40, 0))}
    cells = [
        cell(kl, rate, seed, n)
        for kl, rows in counts.items()
        for rate, row in zip("12", rows, strict=True)
        for seed, n in enumerate(row)
    ]
    ends = cell_intervals(gather(cells), "accuracy")
    width = {key: high - low for key, (_, low, high) in ends.items()}
    assert width["forward", "1"] == pytest.approx(width["forward", "2"])
    assert width["reverse", "1"] > 10 * width["forward", "1"]


def test_with_one_seed_a_cell_shows_the_interval_of_its_items():
    cells = [scored({RATE: "1"}, 1, [1] * 70 + [0] * 30)]
    mean, low, high = cell_intervals(gather(cells), "accuracy")[("1",)]
    assert low < mean < high


@pytest.mark.slow
def test_the_rule_rarely_names_a_knob_of_pure_noise():
    named = 0
    for draw in range(60):
        noise = stream(draw, "null").normal(0.6, 0.03, (8, 2))
        cells = []
        labels = list(itertools.product("ab", "cd", "ef"))
        for place, levels in enumerate(labels):
            for seed in (0, 1):
                right = round(1000 * noise[place, seed])
                answers = [1] * (right // 5) + [0] * (200 - right // 5)
                cells.append(scored(dict(zip("xyz", levels, strict=True)), seed, answers))
        named += attribute(gather(cells), "accuracy").named is not None
    assert named <= 3


def test_seeds_that_agree_exactly_name_no_knob():
    cells = [
        scored({RATE: rate, KL: kl}, seed, [1] * n + [0] * (8 - n))
        for (rate, n) in (("1", 7), ("2", 3))
        for kl in ("forward", "reverse")
        for seed in (1, 2)
    ]
    found = attribute(gather(cells), "accuracy")
    assert found.named is None
    assert found.joint is None
    assert "no spread is seen" in found.reason
    assert found.knobs[0].share.low is None
    assert found.knobs[0].swing.low is None
    assert len(anova_table(found)) == 1 + 3 + 2


def test_an_outcome_at_the_floor_is_said_to_be():
    runs = gather([scored({RATE: r}, s, [0, 0]) for r in "12" for s in (1, 2)])
    assert attribute(runs, "accuracy").reason == "at the floor: no student solves any"
    assert "accuracy cannot be told here: at the floor" in answer(runs).sentences[0]


def knob(name: str, share: tuple[float, float], first: float, swing: float) -> Knob:
    omega = Share((name,), sum(share) / 2, *share)
    return Knob(name, omega, first, Swing(0.2, swing, 0.4, "a", "b", ()), None, None)


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        (
            (knob(ROLLOUT, (0.3, 0.6), 0.97, -0.1), knob(KL, (0.1, 0.4), 0.03, 0.1)),
            (
                "by ω² the rollout policy and the KL direction both matter, but the worst-case "
                "swing of the rollout policy is not told from noise"
            ),
        ),
        (
            (knob(ROLLOUT, (0.3, 0.6), 0.7, 0.1), knob(KL, (0.1, 0.4), 0.3, 0.1)),
            (
                "by ω² the rollout policy and the KL direction both matter, but their order is not "
                "settled (the rollout policy is first in 70% of replicates)"
            ),
        ),
        (
            (knob(ROLLOUT, (-0.1, 0.6), 0.96, -0.1), knob(KL, (0.1, 0.2), 0.04, 0.1)),
            (
                "by ω² only the KL direction matters, but the rollout policy, whose ω² is larger, "
                "is not told from noise"
            ),
        ),
        (
            (knob(ROLLOUT, (-0.1, 0.6), 0.7, -0.1),),
            "no knob's share of the variance (ω²) is told from noise",
        ),
    ],
)
def test_the_reason_says_what_is_missing(knobs: tuple[Knob, ...], reason: str):
    assert decide(knobs) == (None, reason)
