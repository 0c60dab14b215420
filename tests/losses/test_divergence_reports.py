"""Reported faults of other losses, as cases: divergences of two laws."""

import pytest
import torch

from cases import BUGS, PAIRS
from fractionate.losses import cross_entropy, forward_kl, jsd, log_probs, mixed_kl, reverse_kl
from losses.laws import DIVERGENCES, logit_gradient, numbers, of_logits, pair

every_divergence = pytest.mark.parametrize(
    "divergence", list(DIVERGENCES.values()), ids=list(DIVERGENCES)
)


def test_b1_jsd_mixes_before_the_log():
    student, teacher = pair("B")
    value = of_logits(DIVERGENCES["jsd_0.5"], student, teacher)
    assert float(value) == pytest.approx(BUGS["B1"]["expect"]["jsd"], abs=1e-9)


def test_b2_both_laws_are_compared_at_the_same_position():
    case = BUGS["B2"]
    student, teacher = (
        numbers(case["input"]["student_logits"]),
        numbers(case["input"]["teacher_logits"]),
    )
    expected = numbers(case["expect"]["forward_kl"]).double()
    torch.testing.assert_close(of_logits(forward_kl, student, teacher), expected, atol=1e-9, rtol=0)


def test_b3_the_vocabulary_is_summed():
    student, teacher = pair("A")
    value = of_logits(forward_kl, student[None], teacher[None])
    assert value.shape == (1,)
    assert float(value) == pytest.approx(BUGS["B3"]["expect"]["forward_kl"], abs=1e-9)


@pytest.mark.parametrize(
    ("divergence", "name"), [(forward_kl, "forward_kl"), (reverse_kl, "reverse_kl")]
)
def test_b8_each_direction_falls_at_every_step_on_itself(divergence, name):
    expected = BUGS["B8"]["expect"]
    student, teacher = pair("A")
    value = of_logits(divergence, student, teacher)
    assert float(value) == pytest.approx(expected[name], abs=1e-9)
    for _ in range(100):
        student = student - 0.1 * logit_gradient(divergence, student, teacher)
        before, value = value, of_logits(divergence, student, teacher)
        assert float(value) < float(before)
    assert float(value) == pytest.approx(expected[f"{name}_after_100_steps_on_it"], abs=1e-9)


@pytest.mark.parametrize("beta", [0.1, 0.9, 0.001, 0.999])
def test_b9_beta_weights_the_teacher(beta):
    value = of_logits(lambda **laws: jsd(**laws, beta=beta), *pair("A"))
    assert float(value) == pytest.approx(BUGS["B9"]["expect"]["jsd"][str(beta)], abs=1e-9)


@pytest.mark.parametrize("weight", ["0.0", "0.25", "0.5", "1.0"])
def test_b9_the_continuous_knob_is_the_linear_mix(weight):
    value = of_logits(lambda **laws: mixed_kl(**laws, reverse_weight=float(weight)), *pair("A"))
    assert float(value) == pytest.approx(BUGS["B9"]["expect"]["mixed_kl"][weight], abs=1e-9)


def test_b10_a_kl_is_no_cross_entropy():
    case = BUGS["B10"]
    teacher = numbers(case["input"]["teacher_logits"])
    student = numbers(case["input"]["student_logits"]).expand_as(teacher)
    laws = {"teacher_log_probs": log_probs(teacher), "student_log_probs": log_probs(student)}
    expected = numbers(case["expect"]["forward_kl"])
    torch.testing.assert_close(forward_kl(**laws), expected, atol=1e-9, rtol=0)
    faulty = numbers(case["faulty"]["cross_entropy"])
    torch.testing.assert_close(cross_entropy(**laws), faulty, atol=1e-9, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_b12a_impossible_for_both_is_finite(dtype):
    case = BUGS["B12a"]
    student = torch.tensor(case["input"]["student_logits"], dtype=dtype)
    teacher = torch.tensor(case["input"]["teacher_logits"], dtype=dtype)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-6
    for name, key in (("forward", "forward_kl"), ("reverse", "reverse_kl"), ("jsd_0.5", "jsd_0.5")):
        value = of_logits(DIVERGENCES[name], student, teacher)
        assert float(value) == pytest.approx(case["expect"][key], abs=tolerance)
        gradient = logit_gradient(DIVERGENCES[name], student, teacher).double()
        expected = numbers(case["expect"][f"grad_{key}"])
        torch.testing.assert_close(gradient, expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    ("name", "key"), [("forward", "forward_kl"), ("reverse", "reverse_kl"), ("jsd_0.5", "jsd_0.5")]
)
def test_b14_half_precision_inputs_are_upcast(name, key):
    expected = BUGS["B14"]["expect"]
    generator = torch.Generator().manual_seed(0)
    student = 2 * torch.randn(4, 32768, generator=generator, dtype=torch.float64)
    teacher = student + 0.02 * torch.randn(4, 32768, generator=generator, dtype=torch.float64)
    divergence = DIVERGENCES[name]
    low = of_logits(divergence, student.bfloat16(), teacher.bfloat16())
    assert float(low.mean()) == pytest.approx(expected["bf16_inputs_upcast"][key], abs=1e-6)
    high = of_logits(divergence, student, teacher)
    assert float(high.mean()) == pytest.approx(expected["float64_inputs"][key], abs=1e-9)


@pytest.mark.parametrize(
    ("name", "key"), [("forward", "forward_kl"), ("reverse", "reverse_kl"), ("jsd_0.5", "jsd_0.5")]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_b14_extreme_logits(name, key, dtype):
    case = BUGS["B14"]["input"]["extreme"]
    student, teacher = (
        torch.tensor(case[f"{who}_logits"], dtype=dtype) for who in ("student", "teacher")
    )
    value = of_logits(DIVERGENCES[name], student, teacher)
    assert float(value) == pytest.approx(BUGS["B14"]["expect"]["extreme"][key], rel=1e-6)


@every_divergence
def test_b34_equal_laws_divide_nothing_by_zero(divergence):
    case = BUGS["B34"]["input"]
    student, teacher = numbers(case["student_logits"]), numbers(case["teacher_logits"])
    assert float(of_logits(divergence, student, teacher)) == BUGS["B34"]["expect"]["loss"]
    torch.testing.assert_close(
        logit_gradient(divergence, student, teacher), torch.zeros(4).double(), atol=1e-12, rtol=0
    )


@pytest.mark.parametrize("name", ["forward", "reverse", "jsd_0.5"])
def test_pair_a_values_and_gradients(name):
    key = {"forward": "grad_forward_kl", "reverse": "grad_reverse_kl", "jsd_0.5": "grad_jsd_0.5"}[
        name
    ]
    got = logit_gradient(DIVERGENCES[name], *pair("A"))
    torch.testing.assert_close(got, numbers(PAIRS["A"][key]), atol=1e-9, rtol=0)
