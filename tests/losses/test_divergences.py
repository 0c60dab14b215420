import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import EXAMPLES
from fractionate.losses import (
    cross_entropy,
    entropy,
    entropy_aware,
    forward_kl,
    jsd,
    log_probs,
    mixed_kl,
    reverse_kl,
)
from fractionate.losses.checks import same_shape
from losses.laws import (
    DIVERGENCES,
    example_a,
    law,
    logit_gradient,
    normal,
    numbers,
    of_logits,
)

every_divergence = pytest.mark.parametrize(
    "divergence", list(DIVERGENCES.values()), ids=list(DIVERGENCES)
)
NEVER = -torch.inf


# The contract that every divergence keeps.


@every_divergence
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_zero_where_the_laws_are_equal(divergence, dtype):
    logits = (4 * normal(3, 2, 50)).to(dtype)
    assert of_logits(divergence, logits, logits).tolist() == [[0.0, 0.0]] * 3


@every_divergence
def test_gradient_is_zero_where_the_laws_are_equal(divergence):
    logits = normal(7)
    torch.testing.assert_close(
        logit_gradient(divergence, logits, logits), torch.zeros(7).double(), atol=1e-15, rtol=0
    )


@every_divergence
def test_positive_where_the_laws_differ(divergence):
    assert bool((of_logits(divergence, normal(20, 9), normal(20, 9, seed=1)) > 1e-4).all())


@every_divergence
@given(
    st.lists(st.floats(-30, 30), min_size=2, max_size=6),
    st.lists(st.floats(-30, 30), min_size=6, max_size=6),
    st.floats(-5, 5),
)
def test_never_negative_and_shift_invariant(divergence, student, teacher, shift):
    zs, zt = numbers(student), numbers(teacher[: len(student)])
    value = of_logits(divergence, zs, zt)
    assert float(value) >= 0
    torch.testing.assert_close(
        of_logits(divergence, zs + shift, zt - shift), value, atol=1e-11, rtol=1e-9
    )


@every_divergence
def test_gradient_is_the_finite_difference(divergence):
    teacher = normal(4, 6, seed=3)
    student = normal(4, 6, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: of_logits(divergence, z, teacher), student)


@every_divergence
def test_never_negative_for_nearly_equal_bf16_laws(divergence):
    student = 2 * normal(64, 4096)
    teacher = student + 1e-3 * normal(64, 4096, seed=1)
    value = of_logits(divergence, student.bfloat16(), teacher.bfloat16())
    assert value.dtype == torch.float32
    assert bool((value >= 0).all())


@every_divergence
def test_the_floor_leaves_the_gradient_alone(divergence):
    student = normal(64, 512).float()
    teacher = student + 1e-5 * normal(64, 512, seed=1).float()
    got = logit_gradient(divergence, student, teacher)
    exact = logit_gradient(divergence, student.double(), teacher.double())
    torch.testing.assert_close(got.double(), exact, atol=2e-7, rtol=0)


@every_divergence
def test_half_precision_log_probs_are_upcast(divergence):
    value = divergence(
        teacher_log_probs=log_probs(normal(3, 8)).bfloat16(),
        student_log_probs=log_probs(normal(3, 8, seed=1)).bfloat16(),
    )
    assert value.dtype == torch.float32


@every_divergence
def test_leading_dimensions_are_kept(divergence):
    student, teacher = normal(2, 3, 4, 5), normal(2, 3, 4, 5, seed=1)
    value = of_logits(divergence, student, teacher)
    assert value.shape == (2, 3, 4)
    torch.testing.assert_close(
        value[1, 2, 3], of_logits(divergence, student[1, 2, 3], teacher[1, 2, 3])
    )


@every_divergence
def test_no_positions_give_no_values(divergence):
    assert of_logits(divergence, normal(0, 5), normal(0, 5)).shape == (0,)


@every_divergence
def test_a_token_impossible_for_both_laws_adds_nothing(divergence):
    student, teacher = normal(3, 5), normal(3, 5, seed=1)
    never = torch.full((3, 1), NEVER).double()
    wide = of_logits(divergence, torch.cat([student, never], -1), torch.cat([teacher, never], -1))
    torch.testing.assert_close(wide, of_logits(divergence, student, teacher))
    gradient = logit_gradient(
        divergence, torch.cat([student, never], -1), torch.cat([teacher, never], -1)
    )
    torch.testing.assert_close(gradient[:, :5], logit_gradient(divergence, student, teacher))
    assert bool((gradient[:, 5] == 0).all())


@every_divergence
def test_unequal_vocabularies_are_refused(divergence):
    with pytest.raises(ValueError, match=r"teacher has 6 .* student 5.*vocab_size"):
        divergence(teacher_log_probs=log_probs(normal(6)), student_log_probs=log_probs(normal(5)))


@every_divergence
def test_a_nan_that_comes_in_goes_out_in_its_own_row(divergence):
    student, teacher = normal(2, 4), normal(2, 4, seed=1)
    student[0, 1] = torch.nan
    assert of_logits(divergence, student, teacher).isnan().tolist() == [True, False]


@every_divergence
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_scales_the_gradient_in_raw_logits(divergence, temperature):
    student, teacher = normal(6).requires_grad_(), normal(6, seed=1)
    value = divergence(
        teacher_log_probs=log_probs(teacher, temperature=0.7),
        student_log_probs=log_probs(student, temperature=temperature),
    )
    (got,) = torch.autograd.grad(value, student)
    expected = logit_gradient(divergence, student.detach() / temperature, teacher / 0.7)
    torch.testing.assert_close(got, expected / temperature)


# Infinities.


@pytest.mark.parametrize("name", ["forward", "mixed_0.25", "entropy_aware_0.5"])
def test_student_without_mass_under_the_teacher_is_refused(name):
    student, teacher = normal(2, 3, 5), normal(2, 3, 5, seed=1)
    student[1, 2, 4] = NEVER
    with pytest.raises(
        ValueError, match=r"forward KL is infinite at position \(1, 2\), token id 4"
    ):
        of_logits(DIVERGENCES[name], student, teacher)


@pytest.mark.parametrize("name", ["reverse", "mixed_0.25", "entropy_aware_0.5"])
def test_teacher_without_mass_under_the_student_is_refused(name):
    student, teacher = normal(2, 3, 5), normal(2, 3, 5, seed=1)
    teacher[0, 1, 3] = NEVER
    with pytest.raises(
        ValueError, match=r"reverse KL is infinite at position \(0, 1\), token id 3"
    ):
        of_logits(DIVERGENCES[name], student, teacher)


def test_mass_too_small_for_the_format_is_mass_all_the_same():
    with pytest.raises(ValueError, match="forward KL is infinite at position"):
        of_logits(forward_kl, torch.tensor([0.0, NEVER]), torch.tensor([0.0, -500.0]))


def test_forward_kl_allows_a_truncated_teacher():
    value = forward_kl(teacher_log_probs=law(1, 0), student_log_probs=law(0.25, 0.75))
    assert float(value) == pytest.approx(math.log(4))


def test_reverse_kl_allows_a_truncated_student():
    value = reverse_kl(teacher_log_probs=law(0.25, 0.75), student_log_probs=law(1, 0))
    assert float(value) == pytest.approx(math.log(4))


@pytest.mark.parametrize("beta", [0, 0.25, 1])
def test_jsd_never_raises(beta):
    student = law(1, 0).requires_grad_()
    value = jsd(teacher_log_probs=law(0, 1), student_log_probs=student, beta=beta)
    cap = sum(-b * math.log(b) for b in (beta, 1 - beta) if b)
    assert float(value.detach()) == pytest.approx(cap)
    assert bool(torch.autograd.grad(value, student)[0].isfinite().all())


def test_a_term_of_weight_zero_cannot_be_infinite():
    truncated = {"teacher_log_probs": law(1, 0), "student_log_probs": law(0.5, 0.5)}
    assert float(mixed_kl(**truncated, reverse_weight=0)) == pytest.approx(math.log(2))
    swapped = {"teacher_log_probs": law(0.5, 0.5), "student_log_probs": law(1, 0)}
    assert float(mixed_kl(**swapped, reverse_weight=1)) == pytest.approx(math.log(2))


def test_a_closed_gate_cannot_be_infinite():
    laws = {"teacher_log_probs": law(0.9, 0.1), "student_log_probs": law(1, 0)}
    assert float(entropy_aware(**laws, threshold=0.5)) == pytest.approx(-math.log(0.9))
    with pytest.raises(ValueError, match="forward KL is infinite"):
        entropy_aware(**laws, threshold=0.1)


# Worked numbers.


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (forward_kl, "fkl"),
        (reverse_kl, "rkl"),
        (lambda **laws: jsd(**laws, beta=0.1), "jsd0.1"),
        (lambda **laws: jsd(**laws, beta=0.5), "jsd0.5"),
        (lambda **laws: mixed_kl(**laws, reverse_weight=0.25), "mix25"),
        (lambda **laws: jsd(**laws, beta=1e-6) / 1e-6, "jsd_small_over_beta"),
        (lambda **laws: jsd(**laws, beta=1 - 1e-6) / 1e-6, "jsd_big_over"),
        (cross_entropy, "CEpq"),
        (lambda **laws: entropy(log_probs=laws["teacher_log_probs"]), "Hp"),
        (lambda **laws: entropy(log_probs=laws["student_log_probs"]), "Hq"),
        (lambda **laws: entropy_aware(**laws, threshold=1), "eopd_lo"),
        (lambda **laws: entropy_aware(**laws, threshold=0.5), "eopd_hi"),
    ],
)
def test_worked_values(value, key):
    assert float(value(**example_a())) == pytest.approx(EXAMPLES[key], abs=1e-9)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("forward", "gF"),
        ("reverse", "gR"),
        ("jsd_0.1", "gJ0.1"),
        ("jsd_0.5", "gJ0.5"),
        ("mixed_0.25", "gM25"),
    ],
)
def test_worked_gradients(name, key):
    laws = example_a()
    got = logit_gradient(DIVERGENCES[name], laws["student_log_probs"], laws["teacher_log_probs"])
    torch.testing.assert_close(got, numbers(EXAMPLES[key]), atol=1e-9, rtol=0)


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_jsd_mixes_probabilities_with_beta_on_the_teacher(beta):
    laws = example_a()
    mixture = numbers(EXAMPLES[f"m{beta}"]).log()
    parts = [
        weight * forward_kl(teacher_log_probs=laws[name], student_log_probs=mixture)
        for weight, name in ((beta, "teacher_log_probs"), (1 - beta, "student_log_probs"))
    ]
    assert float(jsd(**laws, beta=beta)) == pytest.approx(float(sum(parts)), abs=1e-12)


@given(st.lists(st.floats(-40, 40), min_size=3, max_size=3), st.floats(0.01, 0.99))
def test_jsd_is_capped_by_the_entropy_of_beta(student, beta):
    value = of_logits(lambda **laws: jsd(**laws, beta=beta), numbers(student), numbers([0.0, 9, 1]))
    assert float(value) <= -beta * math.log(beta) - (1 - beta) * math.log(1 - beta) + 1e-12


def test_worked_cap_of_jsd():
    cap = jsd(teacher_log_probs=law(1, 0), student_log_probs=law(0, 1), beta=0.1)
    assert float(cap) == pytest.approx(EXAMPLES["jsd_cap_0.1"], abs=1e-12)


@pytest.mark.parametrize(("temperature", "key"), [(1.0, "T_gF"), (2.0, "T2_gF")])
def test_worked_forward_gradient_in_raw_logits(temperature, key):
    student = numbers([1.0, 0, -1]).requires_grad_()
    value = forward_kl(
        teacher_log_probs=log_probs(numbers([2.0, 1, 0]), temperature=0.5),
        student_log_probs=log_probs(student, temperature=temperature),
    )
    (got,) = torch.autograd.grad(value, student)
    torch.testing.assert_close(got, numbers(EXAMPLES[key]), atol=1e-9, rtol=0)


def test_worked_entropies_of_rows():
    rows = entropy(log_probs=torch.stack([law(0.5, 0.5), law(0.9, 0.1)]))
    torch.testing.assert_close(rows, numbers(EXAMPLES["ent_rows"]), atol=1e-9, rtol=0)
    assert float(rows.mean()) == pytest.approx(EXAMPLES["ent_mean"], abs=1e-9)


def test_entropy_is_at_most_log_vocabulary_and_twelve_nats_need_more_than_llama_has():
    uniform = log_probs(torch.zeros(128_256, dtype=torch.float64))
    assert float(entropy(log_probs=uniform)) == pytest.approx(math.log(128_256))
    assert math.exp(12) == pytest.approx(EXAMPLES["nats12"])
    assert float(entropy(log_probs=uniform)) < 12


def test_a_bounded_kl_of_softmaxes():
    shifted = of_logits(forward_kl, numbers([0.0, 0.0]), numbers([0.3, 0.0]))
    value, bound = EXAMPLES["kl_softmax_bound"]
    assert float(shifted) == pytest.approx(value, abs=1e-9)
    assert value <= 0.3**2 / 8 == pytest.approx(bound)


# Limits.


def test_jsd_over_beta_tends_to_forward_kl_and_is_zero_at_the_end():
    student, teacher = normal(5), normal(5, seed=1)
    small = of_logits(lambda **laws: jsd(**laws, beta=1e-7), student, teacher) / 1e-7
    torch.testing.assert_close(small, of_logits(forward_kl, student, teacher), rtol=1e-5, atol=0)
    assert float(of_logits(lambda **laws: jsd(**laws, beta=0), student, teacher)) == 0


def test_jsd_over_one_minus_beta_tends_to_reverse_kl_and_is_zero_at_the_end():
    student, teacher = normal(5), normal(5, seed=1)
    big = of_logits(lambda **laws: jsd(**laws, beta=1 - 1e-7), student, teacher) / 1e-7
    torch.testing.assert_close(big, of_logits(reverse_kl, student, teacher), rtol=1e-5, atol=0)
    assert float(of_logits(lambda **laws: jsd(**laws, beta=1), student, teacher)) == 0


def test_mixed_kl_is_linear_and_meets_both_ends():
    laws = example_a()
    forward, reverse = forward_kl(**laws), reverse_kl(**laws)
    for weight in (0, 1e-9, 0.3, 1 - 1e-9, 1):
        expected = weight * reverse + (1 - weight) * forward
        torch.testing.assert_close(mixed_kl(**laws, reverse_weight=weight), expected)


def test_entropy_aware_is_reverse_kl_above_and_the_sum_below_the_gate():
    laws = example_a()
    torch.testing.assert_close(entropy_aware(**laws, threshold=math.log(3)), reverse_kl(**laws))
    torch.testing.assert_close(
        entropy_aware(**laws, threshold=-1), reverse_kl(**laws) + forward_kl(**laws)
    )


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_shares_outside_the_unit_interval_are_refused(share):
    with pytest.raises(ValueError, match="beta"):
        jsd(**example_a(), beta=share)
    with pytest.raises(ValueError, match="reverse_weight"):
        mixed_kl(**example_a(), reverse_weight=share)


def test_the_threshold_of_the_gate_must_be_a_number():
    with pytest.raises(ValueError, match="threshold is NaN"):
        entropy_aware(**example_a(), threshold=float("nan"))


def test_laws_need_a_vocabulary_axis():
    with pytest.raises(ValueError, match="teacher is a single number: a vocabulary axis is needed"):
        same_shape(torch.zeros(()), torch.zeros(3))
