import numpy as np
import pytest
from scipy import stats

from cases import EXAMPLES
from fractionate.rng import stream
from fractionate.statistics import (
    bootstrap_interval,
    distinct_resamples,
    hierarchical_bootstrap,
    interval_from_replicates,
)

SKEWED = stream(5, "skewed").lognormal(size=40)


def test_three_seeds_have_ten_resamples():
    assert distinct_resamples(3) == EXAMPLES["boot_multisets3"]


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_the_mean_agrees_with_scipy_up_to_monte_carlo(method):
    ours = bootstrap_interval(SKEWED, rng=stream(0, "m"), draws=20_000, method=method)
    name = {"percentile": "percentile", "bca": "BCa"}[method]
    theirs = stats.bootstrap(
        (SKEWED,), np.mean, n_resamples=20_000, method=name, rng=stream(1, "m")
    ).confidence_interval
    spread = theirs.high - theirs.low
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.03 * spread)
    assert ours.method == method


def test_any_statistic_of_whole_rows():
    pairs = np.column_stack([SKEWED, 2 * SKEWED])
    interval = bootstrap_interval(
        pairs, lambda rows: float(np.corrcoef(rows.T)[0, 1]), rng=stream(0, "r"), draws=200
    )
    # Rows stay whole, so a perfect correlation survives every resample.
    assert (interval.low, interval.high) == pytest.approx((1.0, 1.0))


def test_bca_leans_towards_the_long_tail():
    bca = bootstrap_interval(SKEWED, rng=stream(0, "t"))
    plain = bootstrap_interval(SKEWED, rng=stream(0, "t"), method="percentile")
    assert bca.high > plain.high
    assert bca.low > plain.low


@pytest.mark.parametrize(
    ("make", "data"), [(bootstrap_interval, SKEWED), (hierarchical_bootstrap, [SKEWED, SKEWED + 1])]
)
def test_the_stream_is_used_and_decides(make, data):
    first, again, other = (make(data, rng=stream(s, "x"), draws=300) for s in (0, 0, 1))
    assert first == again
    assert (first.low, first.high) != (other.low, other.high)


def test_the_generator_is_a_required_argument():
    with pytest.raises(TypeError, match="rng"):
        bootstrap_interval(SKEWED)


def test_without_variation_the_interval_is_a_point_and_says_so():
    interval = bootstrap_interval([2.0, 2.0, 2.0], rng=stream(0, "v"), draws=100)
    assert (interval.low, interval.high, interval.method) == (2.0, 2.0, "percentile")
    assert "same value" in interval.note


def test_bca_that_is_undefined_says_so():
    interval = interval_from_replicates([1.0, 2.0, 3.0], 9.0, jackknife=[1.0, 2.0])
    assert interval.method == "percentile"
    assert "BCa undefined" in interval.note


def test_a_nan_replicate_is_refused():
    with pytest.raises(ValueError, match="replicates"):
        bootstrap_interval([1.0, 2.0], lambda v: v.sum() * np.nan, rng=stream(0, "n"), draws=100)


def test_blocks_weigh_alike_whatever_their_items():
    interval = hierarchical_bootstrap([[1.0] * 99, [0.0]], rng=stream(0, "w"), draws=300)
    assert interval.estimate == 0.5


def test_items_are_resampled_inside_their_block():
    # Equal block means: all the variation of the interval is that of the items.
    interval = hierarchical_bootstrap([[0.0, 1.0] * 50] * 8, rng=stream(0, "i"), draws=4_000)
    half = (interval.high - interval.low) / 2
    assert half == pytest.approx(1.96 * 0.5 / np.sqrt(800), rel=0.1)


def test_blocks_of_one_value_are_a_plain_bootstrap_of_blocks():
    values = [[v] for v in SKEWED[:12]]
    interval = hierarchical_bootstrap(values, rng=stream(0, "p"), draws=20_000, method="percentile")
    spread = np.std(SKEWED[:12]) / np.sqrt(12)
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * spread, rel=0.15)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [([], "empty"), ([[1.0]], "one block of one item"), ([[1.0], []], "block 1 has 0 values")],
)
def test_what_cannot_be_resampled_is_refused(blocks, message):
    with pytest.raises(ValueError, match=message):
        hierarchical_bootstrap(blocks, rng=stream(0, "e"))


def test_too_few_draws_or_units_are_refused():
    with pytest.raises(ValueError, match="at least 100"):
        bootstrap_interval(SKEWED, rng=stream(0, "d"), draws=10)
    with pytest.raises(ValueError, match="at least two units"):
        bootstrap_interval([1.0], rng=stream(0, "d"))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_coverage_of_a_mean_of_forty_items(method):
    rng, hits, trials = stream(0, "coverage"), 0, 1_000
    for _ in range(trials):
        interval = bootstrap_interval(
            rng.normal(1.0, 1.0, size=40), rng=rng, draws=500, method=method
        )
        hits += interval.low <= 1.0 <= interval.high
    assert hits / trials == pytest.approx(0.94, abs=0.025)
