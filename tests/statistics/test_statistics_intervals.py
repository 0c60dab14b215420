import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

from cases import EXAMPLES
from fractionate.statistics import (
    binomial_se,
    clopper_pearson_interval,
    mcnemar_exact,
    paired_difference_se,
    t_critical,
    t_interval,
    unpaired_difference_se,
    wilson_interval,
)


@pytest.mark.parametrize("hits", [0, 140, 171, 191, 198, 200])
def test_wilson_worked_numbers(hits):
    assert wilson_interval(hits, 200) == pytest.approx(EXAMPLES[f"wil_{hits}"], abs=1e-12)


def test_wilson_of_a_language_share():
    assert wilson_interval(950, 1000) == pytest.approx(EXAMPLES["wil_lang"], abs=1e-12)


def test_wilson_ends_are_exact_at_none_and_all():
    assert wilson_interval(0, 200)[0] == 0.0
    assert wilson_interval(200, 200)[1] == 1.0


def test_wilson_of_arrays_is_elementwise():
    low, high = wilson_interval([140, 171], [200, 200])
    assert (low[1], high[1]) == pytest.approx(EXAMPLES["wil_171"])
    assert (low[0], high[0]) == pytest.approx(EXAMPLES["wil_140"])


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
@pytest.mark.parametrize(
    ("method", "ours"), [("wilson", wilson_interval), ("beta", clopper_pearson_interval)]
)
@pytest.mark.parametrize("hits", [0, 1, 17, 30])
def test_rate_intervals_agree_with_statsmodels(confidence, method, ours, hits):
    theirs = proportion_confint(hits, 30, alpha=1 - confidence, method=method)
    assert ours(hits, 30, confidence=confidence) == pytest.approx(theirs, abs=1e-12)


def test_clopper_pearson_worked_number():
    assert clopper_pearson_interval(171, 200) == pytest.approx(EXAMPLES["cp_171"], abs=1e-12)


def _coverage(interval, n, rate):
    """Exact coverage of a rate interval: the binomial mass of the counts whose interval holds."""
    hits = np.arange(n + 1)
    low, high = interval(hits, n)
    return stats.binom.pmf(hits[(low <= rate) & (rate <= high)], n, rate).sum()


def test_clopper_pearson_never_undercovers():
    assert min(_coverage(clopper_pearson_interval, 50, r) for r in np.linspace(0.01, 0.99, 99)) > (
        0.95 - 1e-9
    )


def test_wilson_covers_its_confidence_on_average():
    covered = [_coverage(wilson_interval, 200, r) for r in np.linspace(0.05, 0.95, 181)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.004)


def test_a_rate_where_a_count_is_meant_is_refused():
    with pytest.raises(ValueError, match="whole counts, not rates"):
        wilson_interval(0.855, 200)


@pytest.mark.parametrize(("hits", "n"), [(3, 2), (0, 0), (-1, 5)])
def test_impossible_counts_are_refused(hits, n):
    with pytest.raises(ValueError, match=r"exceed|at least 1|negative"):
        wilson_interval(hits, n)


@pytest.mark.parametrize("hits", [140, 171, 191, 198])
def test_binomial_se_worked_numbers(hits):
    assert binomial_se(hits / 200, 200) == pytest.approx(EXAMPLES[f"se_{hits}"], abs=1e-12)


def test_binomial_se_of_a_language_share():
    assert binomial_se(0.95, 1000) == pytest.approx(EXAMPLES["se1000"], abs=1e-12)


def test_evaluation_noise_in_points():
    assert 100 * binomial_se(0.7, 200) == pytest.approx(EXAMPLES["evalsd70"])
    assert 100 * binomial_se(0.85, 200) == pytest.approx(EXAMPLES["evalsd85"])


def test_binomial_se_of_points_is_refused():
    with pytest.raises(ValueError, match="divide points by 100"):
        binomial_se(85.5, 200)


def test_three_seeds_pay_a_wide_t_interval():
    summary = t_interval([0.72, 0.74, 0.70])
    assert summary.sem == pytest.approx(EXAMPLES["sem3"])
    assert summary.half_width == pytest.approx(EXAMPLES["ci3"])
    assert (summary.low, summary.high) == pytest.approx((0.72 - 0.0496828, 0.72 + 0.0496828))
    assert t_critical(2) == pytest.approx(EXAMPLES["t2"], abs=1e-12)


def test_equal_values_give_an_interval_of_width_zero():
    summary = t_interval([3.0, 3.0])
    assert (summary.low, summary.high) == (3.0, 3.0)


def test_one_value_has_no_t_interval():
    with pytest.raises(ValueError, match="at least 2"):
        t_interval([0.7])


def test_nan_is_refused_by_index():
    with pytest.raises(ValueError, match="first at index 1"):
        t_interval([0.7, float("nan"), 0.6])


def test_mcnemar_worked_number():
    assert mcnemar_exact(12, 18) == pytest.approx(EXAMPLES["mcnemar"], abs=1e-12)


@pytest.mark.parametrize(("b", "c"), [(0, 5), (7, 7), (1, 9), (40, 20)])
def test_mcnemar_agrees_with_statsmodels(b, c):
    theirs = mcnemar([[50, b], [c, 50]], exact=True).pvalue
    assert mcnemar_exact(b, c) == pytest.approx(theirs, rel=1e-10)


def test_mcnemar_without_discordant_pairs_is_one():
    assert mcnemar_exact(0, 0) == 1.0


def test_difference_se_paired_against_unpaired():
    assert paired_difference_se(12, 18, 200) == pytest.approx(EXAMPLES["diff_se_paired"])
    assert unpaired_difference_se(0.72, 0.75, 200, 200) == pytest.approx(
        EXAMPLES["diff_se_indep"], abs=1e-12
    )


def test_paired_se_is_that_of_the_item_differences():
    differences = np.repeat([1.0, -1.0, 0.0], [12, 18, 170])
    assert paired_difference_se(12, 18, 200) == pytest.approx(differences.std() / np.sqrt(200))


def test_more_discordant_pairs_than_items_are_refused():
    with pytest.raises(ValueError, match="do not fit"):
        paired_difference_se(12, 18, 20)
