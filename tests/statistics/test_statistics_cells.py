import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats
from statistics_example import FACTORS, LEVELS, OUTCOME, without

from cases import EXAMPLES
from fractionate.rng import stream
from fractionate.statistics import (
    cell_summary,
    difference_of_differences,
    factorial_anova,
    hc3_regression,
    simple_effects,
    welch_test,
)

SIGN = {"student": -1, "teacher": 1, "forward": -1, "reverse": 1, "low": -1, "high": 1}
RK = {"first": ("R", ("student", "teacher")), "second": ("K", ("reverse", "forward"))}


def test_simple_effects_of_the_example():
    effects = simple_effects(OUTCOME, FACTORS, factor="R", contrast=("student", "teacher"))
    ours = {
        "".join(f"{name}{SIGN[level]}" for name, level in e.at.items()): e.contrast.difference
        for e in effects
    }
    assert ours == pytest.approx(EXAMPLES["simple"])


def test_simple_effects_carry_their_own_welch_interval():
    effects = simple_effects(OUTCOME, FACTORS, factor="R", contrast=("student", "teacher"))
    effect = next(e for e in effects if e.at == {"K": "reverse", "L": "low"}).contrast
    theirs = stats.ttest_ind([72, 70, 71], [45, 35, 52], equal_var=False)
    assert (effect.t, effect.p, effect.df) == pytest.approx(
        (theirs.statistic, theirs.pvalue, theirs.df)
    )
    interval = theirs.confidence_interval()
    assert (effect.low, effect.high) == pytest.approx((interval.low, interval.high))


def test_difference_of_differences_of_the_example():
    assert difference_of_differences(OUTCOME, FACTORS, **RK).difference == pytest.approx(
        EXAMPLES["did"]
    )


def test_difference_of_differences_is_twice_the_interaction_effect():
    effect = factorial_anova(OUTCOME, FACTORS, levels=LEVELS).term("R:K").effect
    contrast = difference_of_differences(OUTCOME, FACTORS, **RK)
    assert contrast.difference == pytest.approx(-2 * effect)


def test_with_equal_variances_its_se_is_that_of_the_pooled_model():
    balanced = [value for cell in range(8) for value in (cell - 1.0, cell, cell + 1.0)]
    contrast = difference_of_differences(balanced, FACTORS, **RK)
    # Four times the standard error sd / sqrt(N) of a mean of code times outcome.
    assert contrast.se == pytest.approx(4 / np.sqrt(24))
    assert contrast.df == pytest.approx(16)


def test_cell_standard_deviations_of_the_example():
    ours = {
        str(tuple(SIGN[str(level)] for level in cell.levels.values())): cell.sd
        for cell in cell_summary(OUTCOME, FACTORS)
    }
    assert ours == pytest.approx(EXAMPLES["cellsd"])


def test_a_cell_of_one_run_has_no_standard_deviation():
    outcome, factors, _ = without((1, 2))
    cell = cell_summary(outcome, factors)[0]
    assert (cell.n, cell.sd) == (1, None)


def test_a_contrast_with_a_single_run_says_so():
    outcome, factors, _ = without((1, 2))
    effects = simple_effects(outcome, factors, factor="R", contrast=("student", "teacher"))
    assert effects[0].contrast.se is None
    assert "one run" in effects[0].contrast.reason


def test_a_contrast_that_lacks_a_cell_is_refused():
    outcome, factors, _ = without((0, 1, 2))
    with pytest.raises(ValueError, match=r"no run.*'student', 'forward', 'low'"):
        simple_effects(outcome, factors, factor="R", contrast=("student", "teacher"))


@pytest.mark.parametrize("pair", [("student", "student"), ("student", "mixture")])
def test_contrast_levels_must_be_two_of_the_factor(pair):
    with pytest.raises(ValueError, match="two different levels of 'R'"):
        simple_effects(OUTCOME, FACTORS, factor="R", contrast=pair)


def test_unknown_or_repeated_factors_are_refused():
    with pytest.raises(ValueError, match="no factor 'rate'"):
        simple_effects(OUTCOME, FACTORS, factor="rate", contrast=("a", "b"))
    with pytest.raises(ValueError, match="name two factors"):
        difference_of_differences(OUTCOME, FACTORS, first=RK["first"], second=RK["first"])


def test_welch_agrees_with_scipy():
    rng = stream(0, "welch")
    first, second = rng.normal(size=5), rng.normal(1, 6, size=9)
    ours, theirs = welch_test(first, second), stats.ttest_ind(first, second, equal_var=False)
    assert (ours.t, ours.p, ours.df) == pytest.approx((theirs.statistic, theirs.pvalue, theirs.df))


def test_welch_of_equal_runs_gives_a_reason_not_nan():
    contrast = welch_test([0.7, 0.7], [0.3, 0.3])
    assert (contrast.difference, contrast.se) == (pytest.approx(0.4), 0.0)
    assert (contrast.t, contrast.p) == (None, None)
    assert "zero variance" in contrast.reason


def test_hc3_agrees_with_statsmodels():
    columns = {name: [SIGN[level] for level in column] for name, column in FACTORS.items()}
    columns["RK"] = [r * k for r, k in zip(columns["R"], columns["K"], strict=True)]
    matrix = sm.add_constant(np.column_stack(list(columns.values())))
    fit = sm.OLS(OUTCOME, matrix).fit(cov_type="HC3", use_t=True)
    ours = hc3_regression(OUTCOME, columns)
    assert [c.name for c in ours] == ["constant", "R", "K", "L", "RK"]
    assert [c.estimate for c in ours] == pytest.approx(fit.params)
    assert [c.se for c in ours] == pytest.approx(fit.bse)
    assert [c.p for c in ours] == pytest.approx(fit.pvalues)
    assert [(c.low, c.high) for c in ours] == [pytest.approx(row) for row in fit.conf_int()]


def test_hc3_refuses_a_run_alone_in_its_cell():
    with pytest.raises(ValueError, match="run 0 is alone"):
        hc3_regression([1.0, 2.0, 4.0], {"a": [1, -1, -1]})


def test_hc3_of_a_perfect_fit_has_no_t():
    slope = hc3_regression([1.0, 2.0, 3.0, 4.0], {"x": [0, 1, 2, 3]})[1]
    assert (slope.estimate, slope.se, slope.t, slope.p) == (pytest.approx(1.0), 0.0, None, None)


@pytest.mark.parametrize("column", [[1, 1, 1, 1], [1, 2, 3]])
def test_hc3_refuses_collinear_or_short_columns(column):
    with pytest.raises(ValueError, match=r"collinear|every column"):
        hc3_regression([1.0, 2.0, 4.0, 3.0], {"a": column})
