from itertools import product

import numpy as np
import pytest
from scipy import stats

from cases import EXAMPLES
from fractionate.rng import stream
from fractionate.statistics import (
    contrast_of_differences,
    paired_contrast,
    paired_differences,
    range_permutation_test,
    sign_flip_test,
    smallest_sign_flip_p,
)


def _arms(blocks=6, items=40, gap=0.1):
    rng = stream(3, "arms")
    first = {seed: rng.random(items) < 0.6 + gap for seed in range(blocks)}
    second = {seed: rng.random(items) < 0.6 for seed in range(blocks)}
    return first, second


def test_the_difference_is_the_mean_over_blocks_of_item_differences():
    first, second = _arms()
    contrast = paired_contrast(first, second, rng=stream(0, "c"), draws=200)
    expected = [np.mean(first[s] * 1.0) - np.mean(second[s] * 1.0) for s in first]
    assert list(contrast.block_differences.values()) == pytest.approx(expected)
    assert contrast.difference == pytest.approx(np.mean(expected))
    assert (contrast.blocks, contrast.items) == (6, 240)


def test_the_t_test_over_blocks_agrees_with_scipy():
    first, second = _arms()
    contrast = paired_contrast(first, second, rng=stream(0, "c"), draws=200)
    theirs = stats.ttest_1samp(list(contrast.block_differences.values()), 0)
    assert contrast.p_t == pytest.approx(theirs.pvalue)
    interval = theirs.confidence_interval()
    assert (contrast.t.low, contrast.t.high) == pytest.approx((interval.low, interval.high))


def test_swapping_the_arms_turns_the_sign():
    first, second = _arms()
    one = paired_contrast(first, second, rng=stream(0, "c"), draws=500, method="percentile")
    other = paired_contrast(second, first, rng=stream(0, "c"), draws=500, method="percentile")
    assert other.difference == pytest.approx(-one.difference)
    assert other.bootstrap.high == pytest.approx(-one.bootstrap.low)
    assert other.sign_flip.p == one.sign_flip.p


def test_runs_may_be_single_scores():
    contrast = paired_contrast(
        {0: 71.0, 1: 72.0, 2: 74.0}, {0: 70.0, 1: 70.0, 2: 71.0}, rng=stream(0, "r"), draws=200
    )
    assert contrast.difference == pytest.approx(2.0)
    assert "10 distinct resamples" in contrast.bootstrap.note


def test_the_same_stream_gives_the_same_contrast():
    first, second = _arms()
    results = [
        paired_contrast(first, second, rng=stream(seed, "c"), draws=200) for seed in (0, 0, 1)
    ]
    assert results[0] == results[1]
    assert results[0].bootstrap != results[2].bootstrap


def test_one_block_has_no_interval_over_blocks():
    contrast = contrast_of_differences({42: [1, 0, 0, -1, 1]}, rng=stream(0, "o"), draws=200)
    assert (contrast.t, contrast.p_t) == (None, None)
    assert "one block" in contrast.note
    assert "nothing is said about seeds" in contrast.bootstrap.note


def test_equal_differences_have_no_t_test():
    contrast = contrast_of_differences({0: [0.1], 1: [0.1], 2: [0.1]}, rng=stream(0, "e"))
    assert contrast.p_t is None
    assert "equal" in contrast.note
    assert (contrast.bootstrap.low, contrast.bootstrap.high) == pytest.approx((0.1, 0.1))
    assert "same value" in contrast.bootstrap.note


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({}, {}, "first is empty"),
        ({0: [1.0]}, {1: [1.0]}, "without a partner"),
        ({0: [1.0, 0.0]}, {0: [1.0]}, "block 0 has 2 items in first, 1 in second"),
        ({0: [float("nan")]}, {0: [1.0]}, "NaN"),
    ],
)
def test_unpaired_data_are_refused(first, second, message):
    with pytest.raises(ValueError, match=message):
        paired_differences(first, second)


def test_smallest_sign_flip_p_of_the_examples():
    assert smallest_sign_flip_p(3) == EXAMPLES["signflip3"]
    assert smallest_sign_flip_p(36) == pytest.approx(EXAMPLES["signflip36"], rel=1e-12)


def test_three_pairs_of_one_sign_reach_the_smallest_p():
    result = sign_flip_test([1.0, 2.0, 3.0], rng=stream(0, "s"))
    assert (result.p, result.exact, result.permutations) == (0.25, True, 8)


def test_the_exact_test_enumerates_every_flip():
    d = stream(1, "flip").normal(0.4, 1, size=9)
    flips = np.array(list(product([-1, 1], repeat=9))) @ d
    expected = np.mean(np.abs(flips) >= abs(d.sum()) - 1e-12)
    assert sign_flip_test(d, rng=stream(0, "s")).p == pytest.approx(expected, abs=1e-15)


def test_ties_count_whatever_the_rounding():
    assert sign_flip_test([0.1, 0.2, -0.3], rng=stream(0, "s")).p == 1.0


def test_monte_carlo_approaches_the_exact_p():
    d = stream(2, "flip").normal(0.4, 1, size=12)
    exact = sign_flip_test(d, rng=stream(0, "s"))
    sampled = sign_flip_test(d, rng=stream(0, "s"), draws=20_000, max_exact=5)
    assert not sampled.exact
    assert sampled.p == pytest.approx(exact.p, abs=0.01)


def test_monte_carlo_p_is_never_zero():
    result = sign_flip_test(np.ones(40), rng=stream(0, "s"), draws=999)
    assert result.p == result.smallest_p == 1 / 1000


def test_a_planted_range_is_found_and_a_null_one_is_not():
    noise = stream(0, "range").normal(size=(5, 9))
    planted = noise + np.linspace(0, 6, 9)
    assert range_permutation_test(planted, rng=stream(0, "p"), draws=999).p == 0.001
    assert range_permutation_test(noise, rng=stream(0, "p"), draws=999).p > 0.05


def test_range_permutation_keeps_seed_differences_apart():
    # Seeds differ by far more than levels: only permuting within seeds sees the levels.
    values = np.array([[0.0, 1.0, 2.0]]) + np.array([[0.0], [100.0], [200.0], [300.0], [400.0]])
    result = range_permutation_test(values, rng=stream(0, "p"), draws=999)
    assert result.statistic == pytest.approx(2.0)
    assert result.p < 0.02


@pytest.mark.parametrize("values", [[1.0, 2.0], [[1.0], [2.0]], [[1.0, float("nan")]]])
def test_range_permutation_needs_a_complete_matrix(values):
    with pytest.raises(ValueError, match="values"):
        range_permutation_test(values, rng=stream(0, "p"))


@pytest.mark.slow
def test_sign_flip_p_is_valid_under_the_null():
    rng = stream(0, "null flips")
    p = [sign_flip_test(rng.standard_t(3, size=10), rng=rng).p for _ in range(2_000)]
    assert np.mean(np.array(p) <= 0.05) == pytest.approx(0.05, abs=0.015)


@pytest.mark.slow
def test_hierarchical_interval_covers_under_seed_and_item_noise():
    rng, hits, trials = stream(0, "coverage"), 0, 400
    for _ in range(trials):
        seeds = rng.normal(0.05, 0.05, size=18)
        blocks = {s: mean + rng.normal(0, 0.4, size=60) for s, mean in enumerate(seeds)}
        interval = contrast_of_differences(blocks, rng=rng, draws=600).bootstrap
        hits += interval.low <= 0.05 <= interval.high
    assert 0.92 <= hits / trials <= 1.0
