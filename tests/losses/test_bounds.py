import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import EXAMPLES
from fractionate.losses import bounds, forward_kl, log_probs, reverse_kl
from losses.laws import DIVERGENCES, example_a, law, logit_gradient, normal, numbers


def laws_of(student, teacher):
    return {"teacher_log_probs": log_probs(teacher), "student_log_probs": log_probs(student)}


logits = st.lists(st.floats(-20, 20), min_size=4, max_size=4)


@given(logits, logits)
def test_norms_are_those_of_the_gradients(student, teacher):
    zs, zt = numbers(student), numbers(teacher)
    for name, norm in (
        ("forward", bounds.forward_gradient_norm),
        ("reverse", bounds.reverse_gradient_norm),
    ):
        expected = logit_gradient(DIVERGENCES[name], zs, zt).norm()
        torch.testing.assert_close(norm(**laws_of(zs, zt)), expected, atol=1e-9, rtol=1e-7)


@given(logits, logits)
def test_the_forward_chain_of_bounds(student, teacher):
    laws = laws_of(numbers(student), numbers(teacher))
    norm = bounds.forward_gradient_norm(**laws)
    tv = bounds.total_variation(**laws)
    smaller = torch.minimum(forward_kl(**laws), reverse_kl(**laws))
    assert float(norm) <= float(bounds.forward_norm_bound(tv)) + 1e-12
    assert float(norm**2) <= float(2 * tv**2) + 1e-12 <= float(smaller) + 2e-12
    assert float(norm) < bounds.FORWARD_NORM_SUPREMUM


@given(logits, logits)
def test_the_sharp_reverse_bound(student, teacher):
    laws = laws_of(numbers(student), numbers(teacher))
    bound = bounds.reverse_norm_bound(bounds.log_ratio_range(**laws))
    assert float(bounds.reverse_gradient_norm(**laws)) <= float(bound) + 1e-12


def test_both_worst_ratios_are_attained_by_two_tokens():
    worst = EXAMPLES["worst_ratio_R"]
    uniform, tilted = {"student_log_probs": law(0.5, 0.5)}, law(0.1, 0.9)
    reverse = bounds.reverse_gradient_norm(teacher_log_probs=tilted, **uniform)
    ratio = reverse / bounds.log_ratio_range(teacher_log_probs=tilted, **uniform)
    assert float(ratio) == pytest.approx(EXAMPLES["R_const"], abs=1e-9)
    assert worst <= bounds.REVERSE_NORM_PER_RANGE == pytest.approx(EXAMPLES["R_const"], abs=1e-12)
    forward = bounds.forward_gradient_norm(teacher_log_probs=tilted, **uniform)
    tv = bounds.total_variation(teacher_log_probs=tilted, **uniform)
    assert float(forward**2 / (2 * tv**2)) == pytest.approx(EXAMPLES["worst_ratio_F"], abs=1e-9)


def test_worked_norms_of_example_a():
    laws = example_a()
    forward, reverse = bounds.forward_gradient_norm(**laws), bounds.reverse_gradient_norm(**laws)
    tv = bounds.total_variation(**laws)
    assert float(forward**2) == pytest.approx(EXAMPLES["n2F"], abs=1e-9)
    assert float(reverse**2) == pytest.approx(EXAMPLES["n2R"], abs=1e-9)
    assert float(tv) == pytest.approx(EXAMPLES["TVpq"], abs=1e-9)
    assert float(2 * tv**2) == pytest.approx(EXAMPLES["twoTV2"], abs=1e-9)
    smaller = min(float(forward_kl(**laws)), float(reverse_kl(**laws)))
    assert smaller == pytest.approx(EXAMPLES["minKL"], abs=1e-9)


def test_worked_log_ratio():
    laws = example_a()
    ratio = numbers(EXAMPLES["r"])
    torch.testing.assert_close(laws["student_log_probs"] - laws["teacher_log_probs"], ratio)
    torch.testing.assert_close(ratio, numbers(EXAMPLES["d"]))
    assert float(bounds.log_ratio_range(**laws)) == pytest.approx(float(ratio.max() - ratio.min()))


def test_the_forward_supremum_is_approached_by_point_masses():
    norm = bounds.forward_gradient_norm(**laws_of(numbers([20.0, 0, 0]), numbers([0.0, 20, 0])))
    assert float(norm**2) == pytest.approx(EXAMPLES["n2F_extreme"], abs=1e-9)


@pytest.mark.parametrize(("delta", "key"), [(1e-2, "0.01"), (1e-4, "0.0001"), (1e-8, "1e-08")])
def test_the_reverse_gradient_is_unbounded_while_the_forward_one_is_not(delta, key):
    laws = {"teacher_log_probs": law(delta, 1 - delta), "student_log_probs": law(0.5, 0.5)}
    reverse = bounds.reverse_gradient_norm(**laws)
    assert float(reverse) / math.sqrt(2) == pytest.approx(EXAMPLES[f"c2_{key}"], rel=1e-8)
    forward = bounds.forward_gradient_norm(**laws)
    assert float(forward) == pytest.approx(EXAMPLES[f"c2_fkl_{key}"], abs=1e-8)
    difference = 0.1 * float(reverse) / 2
    assert difference == pytest.approx(EXAMPLES[f"c2_diff_{key}"], rel=1e-7)


@pytest.mark.parametrize(("temperature", "key"), [(1.0, "T_rangeR_1"), (0.5, "T_rangeR_05")])
def test_a_sharper_teacher_stretches_the_log_ratio_range(temperature, key):
    got = bounds.log_ratio_range(
        teacher_log_probs=log_probs(numbers([2.0, 1, 0]), temperature=temperature),
        student_log_probs=log_probs(numbers([1.0, 0, -1])),
    )
    assert float(got) == pytest.approx(EXAMPLES[key], abs=1e-9)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_a_sharper_teacher_lengthens_the_reverse_gradient(temperature):
    laws = {
        "teacher_log_probs": log_probs(numbers([4.0, 0, -2]), temperature=temperature),
        "student_log_probs": law(0.5, 0.3, 0.2),
    }
    reverse, forward = bounds.reverse_gradient_norm(**laws), bounds.forward_gradient_norm(**laws)
    assert float(reverse) == pytest.approx(EXAMPLES[f"rk_T{temperature}"], abs=1e-9)
    assert float(forward) == pytest.approx(EXAMPLES[f"fk_T{temperature}"], abs=1e-9)


def test_worked_update_bounds():
    tv, rho = EXAMPLES["tv_seq"], EXAMPLES["sg_Rmax"]
    common = {"jacobian_norm": 1, "total_variation": tv}
    forward = bounds.update_difference_bound(direction="forward", **common)
    assert forward == pytest.approx(EXAMPLES["sg_bound_F"], abs=1e-9)
    reverse = {"direction": "reverse", "log_ratio_range": rho}
    paper = bounds.update_difference_bound(**reverse, **common, sharp=False)
    assert paper == pytest.approx(EXAMPLES["sg_bound_R_paper"], abs=1e-9)
    sharp = bounds.update_difference_bound(**reverse, **common)
    assert sharp == pytest.approx(EXAMPLES["sg_bound_R_sharp"], abs=1e-9)


def test_second_moments():
    assert bounds.second_moment_bound(direction="forward", jacobian_norm=3) == pytest.approx(18)
    reverse = {"direction": "reverse", "jacobian_norm": 3, "log_ratio_range": 2}
    assert bounds.second_moment_bound(**reverse, sharp=False) == pytest.approx(36)
    assert bounds.second_moment_bound(**reverse) == pytest.approx(4.5)


def test_reverse_has_no_bound_without_a_range():
    with pytest.raises(ValueError, match="log_ratio_range"):
        bounds.second_moment_bound(direction="reverse", jacobian_norm=1)
    with pytest.raises(ValueError, match="direction='jsd' is unknown"):
        bounds.second_moment_bound(direction="jsd", jacobian_norm=1)


def test_excluded_tokens():
    both = {"teacher_log_probs": law(0.5, 0.5, 0), "student_log_probs": law(0.2, 0.8, 0)}
    without = {"teacher_log_probs": law(0.5, 0.5), "student_log_probs": law(0.2, 0.8)}
    for function in (bounds.log_ratio_range, bounds.reverse_gradient_norm):
        torch.testing.assert_close(function(**both), function(**without))
    truncated = {"teacher_log_probs": law(1, 0), "student_log_probs": law(0.2, 0.8)}
    assert float(bounds.reverse_gradient_norm(**truncated)) == math.inf
    assert float(bounds.log_ratio_range(**truncated)) == math.inf


def test_unequal_vocabularies_are_refused():
    laws = {"teacher_log_probs": log_probs(normal(3)), "student_log_probs": log_probs(normal(4))}
    for function in (
        bounds.total_variation,
        bounds.forward_gradient_norm,
        bounds.reverse_gradient_norm,
        bounds.log_ratio_range,
    ):
        with pytest.raises(ValueError, match="vocab_size"):
            function(**laws)
