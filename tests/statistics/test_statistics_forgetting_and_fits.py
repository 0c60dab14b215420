import numpy as np
import pytest
import statsmodels.api as sm

from cases import EXAMPLES
from fractionate.rng import stream
from fractionate.statistics import (
    added_explanation,
    chance_corrected,
    forgetting,
    gain_and_drop,
    pareto_front,
    polynomial_fit,
    quadratic_fit,
    slope_and_curvature,
)

TASKS = ("mmlu_pro", "truthfulqa", "ifeval", "humaneval", "eq_bench", "bbq", "toxigen")
BASE = dict(zip(TASKS, (22.0, 27, 45, 30, 20, 40, 50), strict=True))
FINAL = dict(zip(TASKS, (15.0, 28, 20, 15, 5, 41, 45), strict=True))
KL = [0, 0.05, 0.1, 0.2, 0.4]
LOST = [0, 0.4, 1, 3.1, 9]


def test_every_definition_of_forgetting():
    result = forgetting(BASE, FINAL)
    expected = {
        "base_mean": "fg_base",
        "final_mean": "fg_fin",
        "mean_drop": "fg_abs",
        "relative_drop_of_mean": "fg_rel_of_mean",
        "mean_relative_drop": "fg_mean_rel",
        "mean_loss_only": "fg_posonly",
    }
    for field, key in expected.items():
        assert getattr(result, field) == pytest.approx(EXAMPLES[key]), field


def test_drops_are_matched_by_name():
    turned = forgetting(BASE, dict(reversed(FINAL.items())))
    assert turned == forgetting(BASE, FINAL)
    assert turned.drops["ifeval"] == 25.0


def test_a_base_at_or_below_zero_leaves_the_relative_drop_undefined_and_named():
    result = forgetting({**BASE, "eq_bench": -3.0}, FINAL)
    assert result.mean_relative_drop is None
    assert "eq_bench" in result.note
    assert result.relative_drop_of_mean is not None


def test_a_mean_base_below_zero_has_no_relative_drop():
    result = forgetting({"eq_bench": -3.0}, {"eq_bench": -5.0})
    assert (result.mean_drop, result.relative_drop_of_mean) == (2.0, None)


def test_other_benchmarks_are_refused_by_name():
    with pytest.raises(ValueError, match=r"unmatched: \['bbq'\]"):
        forgetting(BASE, {task: score for task, score in FINAL.items() if task != "bbq"})
    with pytest.raises(ValueError, match="base is empty"):
        forgetting({}, {})


def test_gain_on_the_target_against_the_drop_elsewhere():
    pair = gain_and_drop(
        {"target": 50, "a": 40, "b": 30}, {"target": 70, "a": 36, "b": 32}, target="target"
    )
    assert (pair.gain, pair.drop) == (20.0, 1.0)
    with pytest.raises(ValueError, match="no score"):
        gain_and_drop(BASE, FINAL, target="countdown")
    with pytest.raises(ValueError, match="at least one"):
        gain_and_drop({"a": 1.0}, {"a": 2.0}, target="a")


def test_the_pareto_front_drops_beaten_runs():
    front = pareto_front([60, 70, 80, 65, 80], [50, 45, 30, 40, 30])
    assert front.tolist() == [0, 1, 2, 4]


def test_pareto_front_needs_as_many_scores():
    with pytest.raises(ValueError, match="2 runs, retained has 1"):
        pareto_front([1, 2], [1])


def test_chance_corrected_worked_number():
    assert chance_corrected(0.72, 4) == pytest.approx(EXAMPLES["chance_corr"])
    assert chance_corrected([0.25, 1.0], 4) == pytest.approx(np.array([0.0, 1.0]))


@pytest.mark.parametrize(("accuracy", "options"), [(72, 4), (0.5, 1), (float("nan"), 4)])
def test_chance_correction_refuses_points_and_single_options(accuracy, options):
    with pytest.raises(ValueError, match=r"rate in|at least 2"):
        chance_corrected(accuracy, options)


def test_the_quadratic_law_of_forgetting():
    fit = quadratic_fit(KL, LOST)
    assert fit.coefficients == pytest.approx(EXAMPLES["kf_co"], abs=1e-9)
    assert fit.r2 == pytest.approx(EXAMPLES["kf_R2"], abs=1e-9)
    assert polynomial_fit(KL, LOST, degree=1).r2 == pytest.approx(EXAMPLES["kf_R2lin"], abs=1e-9)


def test_leave_one_out_refits_without_each_point():
    x, y = np.array(KL), np.array(LOST)
    press = 0.0
    for i in range(x.size):
        keep = np.arange(x.size) != i
        press += (y[i] - np.polyval(np.polyfit(x[keep], y[keep], 2), x[i])) ** 2
    expected = 1 - press / np.sum((y - y.mean()) ** 2)
    assert quadratic_fit(x, y).loo_r2 == pytest.approx(expected)


def test_few_points_carry_a_warning():
    assert "prove little" in quadratic_fit(KL, LOST).note


def test_a_constant_outcome_has_no_r2():
    fit = quadratic_fit(KL, [2.0] * 5)
    assert (fit.r2, fit.loo_r2) == (None, None)
    assert "constant" in fit.note


def test_a_point_that_decides_a_coefficient_alone_has_no_leave_one_out():
    fit = polynomial_fit([0, 0, 0, 1], [1.0, 2.0, 1.5, 4.0], degree=1)
    assert fit.loo_r2 is None
    assert "leave-one-out" in fit.note


@pytest.mark.parametrize(
    ("x", "message"), [([0, 1, 2], "3 points cannot test 3"), ([0, 0, 1, 1, 1], "distinct")]
)
def test_too_few_points_are_refused(x, message):
    with pytest.raises(ValueError, match=message):
        quadratic_fit(x, np.arange(len(x)))


def test_slope_and_curvature_agree_with_statsmodels():
    rng = stream(0, "trend")
    x = np.repeat(np.log2([1, 2, 3, 4, 5, 6]), 3)
    y = 70 - 2 * x - x**2 + rng.normal(size=x.size)
    trend = slope_and_curvature(x, y)
    centred = x - x.mean()
    fit = sm.OLS(y, sm.add_constant(np.column_stack([centred, centred**2]))).fit()
    for ours, index in ((trend.slope, 1), (trend.curvature, 2)):
        assert ours.estimate == pytest.approx(fit.params[index])
        assert (ours.se, ours.t, ours.p) == pytest.approx(
            (fit.bse[index], fit.tvalues[index], fit.pvalues[index])
        )
        assert (ours.low, ours.high) == pytest.approx(tuple(fit.conf_int()[index]))
    assert trend.linear_slope.estimate == pytest.approx(np.polyfit(x, y, 1)[0])


def test_a_perfect_parabola_has_no_t():
    trend = slope_and_curvature([0, 1, 2, 3, 4], [0, 1, 4, 9, 16])
    assert (trend.slope.estimate, trend.curvature.estimate) == pytest.approx((4.0, 1.0))
    assert (trend.curvature.t, trend.curvature.p) == (None, None)


def test_added_explanation_is_the_nested_f_test():
    rng = stream(0, "nested")
    kl, rollout = rng.random(30), np.tile([-1.0, 1.0], 15)
    y = 3 * kl + 9 * kl**2 + 0.4 * rollout + rng.normal(0, 0.3, size=30)
    ours = added_explanation(y, {"kl": kl, "kl^2": kl**2}, {"rollout": rollout})
    small = sm.OLS(y, sm.add_constant(np.column_stack([kl, kl**2]))).fit()
    full = sm.OLS(y, sm.add_constant(np.column_stack([kl, kl**2, rollout]))).fit()
    f, p, _ = full.compare_f_test(small)
    assert (ours.f, ours.p) == pytest.approx((f, p))
    assert (ours.base_r2, ours.full_r2) == pytest.approx((small.rsquared, full.rsquared))
    assert (ours.df_extra, ours.df_residual) == (1, 26)
    assert ours.full_loo_r2 > ours.base_loo_r2


def test_added_columns_must_be_new_and_independent():
    with pytest.raises(ValueError, match="new columns"):
        added_explanation(LOST, {"kl": KL}, {"kl": KL})
    with pytest.raises(ValueError, match="collinear"):
        added_explanation(LOST, {"kl": KL}, {"twice": np.multiply(KL, 2)})
