import pytest
from planted import KL, RATE, planted, scored, study

from fractionate.analysis.advice import advise
from fractionate.analysis.compare import compare_cells
from fractionate.analysis.runs import Runs, gather
from fractionate.statistics import mcnemar_exact, seeds_needed


def test_advice_names_the_knob_and_its_uncertainty(rate_runs: Runs):
    found = advise(rate_runs)
    assert found.lines[0].startswith("Spend on the learning rate first")
    assert found.noise is not None
    assert found.noise.low < found.noise.sd < found.noise.high
    assert {arm.rate for arm in found.contenders} == {5e-4}


def test_seeds_follow_from_the_noise(rate_runs: Runs):
    found = advise(rate_runs)
    assert found.noise is not None
    for plan in found.seeds:
        sd = 2**0.5 * found.noise.sd
        assert plan.seeds == seeds_needed(plan.gap, sd=sd, paired=True)
        assert plan.fewest <= plan.seeds <= plan.most


def test_the_cheapest_of_the_best_is_named(null_runs: Runs):
    found = advise(null_runs)
    assert len(found.contenders) > 1
    assert found.cheapest is not None
    assert found.cheapest.rollout == "teacher"


def test_a_clear_winner_stands_alone():
    cells = planted(accuracy={RATE: -0.3}, factors={RATE: ("1", "2")}, steps=2, full=False,
                    seeds=(1, 2, 3, 4))  # fmt: skip
    found = advise(gather(cells, study=study()))
    assert [arm.key for arm in found.contenders] == [("1",)]


def test_one_seed_asks_for_another():
    found = advise(gather(planted(seeds=(42,), steps=2, full=False), study=study()))
    assert found.noise is None
    assert "at least two seeds" in " ".join(found.lines)


def test_two_cells_are_compared_item_by_item():
    first = scored({KL: "forward"}, 1, [1] * 12 + [0] * 18 + [1] * 100)
    second = scored({KL: "reverse"}, 1, [0] * 12 + [1] * 18 + [1] * 100)
    found = compare_cells(first, second)
    accuracy = next(row for row in found.metrics if row.metric == "accuracy")
    assert (accuracy.only_first, accuracy.only_second) == (12, 18)
    assert accuracy.p == pytest.approx(mcnemar_exact(12, 18))
    assert accuracy.difference == pytest.approx(-6 / 130)
    assert accuracy.low is not None
    assert accuracy.high is not None
    assert accuracy.low < accuracy.difference < accuracy.high
    assert found.differing == {KL: ("forward", "reverse")}


def test_several_differences_at_once_are_warned_of():
    found = compare_cells(scored({KL: "forward"}, 1, [1]), scored({KL: "reverse"}, 2, [0]))
    assert any("at once" in note for note in found.notes)


def test_items_that_are_not_shared_are_counted():
    found = compare_cells(scored({}, 1, [1, 0, 1]), scored({}, 2, [1, 0]))
    assert any("1 items are not shared" in note for note in found.notes)
    accuracy = next(row for row in found.metrics if row.metric == "accuracy")
    assert accuracy.items == 2


def test_samples_are_compared_by_bootstrap(rate_runs: Runs):
    first, second = rate_runs.runs[0].cell, rate_runs.runs[3].cell
    found = {row.metric: row for row in compare_cells(first, second).metrics}
    assert found["pass@4@1"].low is not None
    assert found["pass@4@1"].p is None
    assert found["tokens_trained"].low is None


def test_one_seed_rules_no_cell_out():
    found = advise(gather(planted(seeds=(42,), steps=2, full=False), study=study()))
    best = next(line for line in found.lines if line.startswith("The best cell"))
    assert "no other can be ruled out (one seed" in best
    assert not any("in reach" in line for line in found.lines)


def test_seeds_that_agree_exactly_give_no_noise():
    cells = [
        scored({RATE: rate}, seed, [1] * n + [0] * (8 - n))
        for rate, n in (("1", 7), ("2", 3))
        for seed in (1, 2)
    ]
    said = " ".join(advise(gather(cells)).lines)
    assert "no other can be ruled out (no spread is seen" in said
    assert "The seeds agree exactly in every cell" in said
    assert "[0.0" not in said
