import pytest
import torch

from cases import BUGS, EXAMPLES
from fractionate.losses import forward_kl, log_probs
from losses.laws import numbers, pair


def test_temperature_divides_logits_before_the_softmax():
    case = BUGS["B11"]
    got = log_probs(numbers(case["input"]["logits"]), temperature=case["input"]["temperature"])
    torch.testing.assert_close(got, numbers(case["expect"]["log_probs"]), atol=1e-9, rtol=0)


def test_no_squared_temperature_in_the_loss():
    student, teacher = pair("B")
    value = forward_kl(
        teacher_log_probs=log_probs(teacher, temperature=2),
        student_log_probs=log_probs(student, temperature=2),
    )
    assert float(value) == pytest.approx(BUGS["B11"]["expect"]["forward_kl_pair_B_T2"], abs=1e-9)


@pytest.mark.parametrize(
    ("key", "logits", "temperature"),
    [("T_q", [1, 0, -1], 1), ("T_p1", [2, 1, 0], 1.0), ("T_p05", [2, 1, 0], 0.5)],
)
def test_worked_laws_at_temperature(key, logits, temperature):
    got = log_probs(numbers(logits).double(), temperature=temperature).exp()
    torch.testing.assert_close(got, numbers(EXAMPLES[key]), atol=1e-9, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_is_upcast_before_temperature_and_softmax(dtype):
    logits = torch.zeros(32768, dtype=dtype)
    got = log_probs(logits, temperature=0.7)
    assert got.dtype == torch.float32
    assert float(got[0]) == pytest.approx(-10.39720771, abs=1e-6)


def test_bf16_logits_near_twenty_are_quantised_before_any_upcast():
    above = torch.nextafter(torch.tensor(20.0).bfloat16(), torch.tensor(30.0).bfloat16())
    assert float(above - 20) == EXAMPLES["logit_spacing20"]


def test_float64_stays():
    assert log_probs(numbers([1.0, 2.0])).dtype == torch.float64


def test_slice_comes_first_and_renormalises():
    got = log_probs(numbers([1.0, 2.0, 50.0]), vocab_size=2)
    torch.testing.assert_close(got, log_probs(numbers([1.0, 2.0])))


def test_an_impossible_token_stays_impossible():
    got = log_probs(numbers([0.0, 0.0, -torch.inf]))
    torch.testing.assert_close(got.exp(), numbers([0.5, 0.5, 0.0]))


@pytest.mark.parametrize("temperature", [0, -1.0, float("inf"), float("nan")])
def test_temperature_must_be_positive(temperature):
    with pytest.raises(ValueError, match="temperature"):
        log_probs(numbers([1.0, 2.0]), temperature=temperature)


@pytest.mark.parametrize("vocab_size", [0, 3])
def test_vocab_size_must_fit(vocab_size):
    with pytest.raises(ValueError, match="vocab_size"):
        log_probs(numbers([1.0, 2.0]), vocab_size=vocab_size)
