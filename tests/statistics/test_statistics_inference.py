"""Equivalence, multiplicity and power."""

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestIndPower, TTestPower
from statsmodels.stats.weightstats import ttost_paired

from cases import EXAMPLES
from fractionate.rng import stream
from fractionate.statistics import (
    benjamini_hochberg,
    binomial_se,
    equivalence_test,
    expected_range,
    factorial_mde,
    factorial_power,
    holm,
    run_sd,
    seeds_needed,
    tost,
    two_cell_power,
    welch_test,
)

P = [0.001, 0.012, 0.02, 0.04, 0.3]


@pytest.mark.parametrize(("mean", "margin"), [(0.2, 3.0), (2.5, 3.0), (-4.0, 3.0), (0.0, 0.1)])
def test_tost_agrees_with_statsmodels(mean, margin):
    d = stream(4, "tost").normal(mean, 2.0, size=9)
    p, lower, upper = ttost_paired(d, np.zeros(9), -margin, margin)
    ours = tost(d, margin=margin)
    assert (ours.p, ours.p_lower, ours.p_upper) == pytest.approx((p, lower[1], upper[1]))


@pytest.mark.parametrize("seed", range(8))
def test_equivalence_is_the_interval_inside_the_margin(seed):
    result = tost(stream(seed, "band").normal(1.0, 2.0, size=8), margin=2.0)
    assert result.equivalent == (result.p < 0.05)
    assert result.equivalent == (result.low > -2.0 and result.high < 2.0)


def test_tost_of_a_welch_difference():
    welch = welch_test([70.0, 71.0, 72.0, 71.0], [71.0, 70.0, 71.0, 73.0])
    result = equivalence_test(welch.difference, se=welch.se, df=welch.df, margin=5.0)
    assert result.equivalent
    assert result.p == pytest.approx(stats.t.sf((5.0 - 0.25) / welch.se, welch.df))


@pytest.mark.parametrize(("value", "equivalent"), [(0.1, True), (3.0, False), (-7.0, False)])
def test_equal_differences_are_judged_by_their_mean(value, equivalent):
    result = tost([value] * 3, margin=3.0)
    assert (result.p, result.equivalent) == (None, equivalent)
    assert result.note.startswith("no spread is seen")
    assert "no p-value" in result.note


def test_one_difference_or_no_margin_is_refused():
    with pytest.raises(ValueError, match="at least 2"):
        tost([1.0], margin=3.0)
    with pytest.raises(ValueError, match="margin"):
        tost([1.0, 2.0], margin=0.0)


@pytest.mark.slow
def test_tost_errs_at_its_level_on_the_margin():
    rng = stream(0, "tost level")
    claims = [tost(rng.normal(3.0, 1.0, size=10), margin=3.0).equivalent for _ in range(4_000)]
    assert np.mean(claims) == pytest.approx(0.05, abs=0.012)


@pytest.mark.parametrize(
    ("adjust", "key", "theirs"), [(holm, "holm", "holm"), (benjamini_hochberg, "bh", "fdr_bh")]
)
def test_adjusted_p_values(adjust, key, theirs):
    assert adjust(P) == pytest.approx(EXAMPLES[key])
    shuffled = stream(0, "p").permutation([*P, 0.02, 0.9])
    assert adjust(shuffled) == pytest.approx(multipletests(shuffled, method=theirs)[1])


@pytest.mark.parametrize("bad", [[], [1.2], [-0.1], [float("nan")]])
def test_impossible_p_values_are_refused(bad):
    with pytest.raises(ValueError, match="p_values"):
        holm(bad)


@pytest.mark.parametrize("gap", [2, 3, 5, 10])
def test_power_of_three_seeds(gap):
    power = two_cell_power(gap, sd=3.5, seeds=3)
    assert power == pytest.approx(EXAMPLES["pw3"][str(gap)], abs=1e-9)


@pytest.mark.parametrize("key", EXAMPLES["pw_tab"])
def test_seeds_table(key):
    gap, sd = (float(part) for part in key.split("/"))
    ours = [seeds_needed(gap, sd=sd, paired=paired) for paired in (False, True)]
    assert ours == EXAMPLES["pw_tab"][key]


@pytest.mark.parametrize("seeds", [2, 5, 40])
def test_power_agrees_with_statsmodels(seeds):
    unpaired = TTestIndPower().power(0.7, seeds, 0.05)
    paired = TTestPower().power(0.7, seeds, 0.05)
    assert two_cell_power(0.7, sd=1.0, seeds=seeds) == pytest.approx(unpaired)
    assert two_cell_power(0.7, sd=1.0, seeds=seeds, paired=True) == pytest.approx(paired)


def test_power_of_no_gap_is_the_level():
    assert two_cell_power(0.0, sd=1.0, seeds=4, alpha=0.1) == pytest.approx(0.1)


# Residual degrees of freedom: 24 - 8 cells with one task, 72 - 24 cells with three.
@pytest.mark.parametrize(("runs", "df"), [(24, 16), (72, 48)])
def test_factorial_power_and_detectable_effect(runs, df):
    for gap in (1, 2, 3):
        power = factorial_power(gap, sd=3.5, runs=runs, residual_df=df)
        assert power == pytest.approx(EXAMPLES["pwfac"][f"{gap}_{runs}"], abs=1e-9)
    effect = factorial_mde(sd=3.5, runs=runs, residual_df=df)
    assert effect == pytest.approx(EXAMPLES[f"mde{runs}"], abs=1e-9)


def test_evaluation_noise_adds_to_seed_noise():
    total = run_sd(0.035, rate=0.7, items=200)
    assert 100 * total == pytest.approx(EXAMPLES["sd_total"])


@pytest.mark.parametrize("k", [2, 3, 5, 9])
def test_expected_range_of_noise_means(k):
    assert expected_range(k) == pytest.approx(EXAMPLES["er"][str(k)], abs=1e-9)


@pytest.mark.parametrize("k", [5, 9])
def test_expected_range_in_points(k):
    noise = 100 * binomial_se(0.85, 3 * 200)
    assert expected_range(k) * noise == pytest.approx(EXAMPLES[f"er_pp{k}"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: expected_range(1), "at least 2 means"),
        (lambda: two_cell_power(1, sd=1, seeds=1), "at least 2 per cell"),
        (lambda: two_cell_power(1, sd=0, seeds=3), "sd"),
        (lambda: seeds_needed(0, sd=1), "gap"),
        (lambda: factorial_mde(sd=1, runs=8, residual_df=0), "residual_df"),
        (lambda: run_sd(-1, rate=0.5, items=10), "seed_sd"),
    ],
)
def test_impossible_designs_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
