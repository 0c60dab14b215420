import pytest
import torch
from scipy.stats import chisquare

from cases import BUGS, EXAMPLES
from fractionate.rng import stream
from fractionate.rollouts.sampling import (
    draw_from_law,
    draw_from_logits,
    entropy,
    inverse_cdf,
    sampler_log_probs,
)

LAW = torch.tensor([0.50, 0.30, 0.15, 0.05], dtype=torch.float64)


def uniforms(count: int, name: str = "test") -> torch.Tensor:
    return torch.from_numpy(stream(7, name).random(count))


def test_temperature_worked_numbers():
    law = sampler_log_probs(LAW.log(), temperature=0.5)
    assert torch.allclose(law.exp(), torch.tensor(EXAMPLES["temp05"], dtype=torch.float64))
    assert float(law[0]) == pytest.approx(EXAMPLES["temp05_lp0"], abs=1e-9)


def test_temperature_divides_logits_before_the_softmax():
    case = BUGS["B11"]
    logits = torch.tensor(case["input"]["logits"], dtype=torch.float64)
    law = sampler_log_probs(logits, temperature=case["input"]["temperature"])
    assert law.tolist() == pytest.approx(case["expect"]["log_probs"], abs=1e-9)
    assert law.tolist() != pytest.approx(case["faulty"]["temperature_ignored"], abs=1e-3)


def test_draws_follow_the_law():
    tokens = inverse_cdf(LAW.expand(20_000, 4), uniforms(20_000))
    counts = torch.bincount(tokens, minlength=4).numpy()
    assert chisquare(counts, LAW.numpy() * 20_000).pvalue > 0.01


def test_weights_need_not_add_up_to_one():
    numbers = uniforms(500)
    expected = inverse_cdf(LAW.expand(500, 4), numbers)
    assert torch.equal(inverse_cdf(7 * LAW.expand(500, 4), numbers), expected)


@pytest.mark.parametrize("number", [0.0, 1e-300, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_token_of_weight_zero_is_never_drawn(number: float, dtype: torch.dtype):
    weights = torch.tensor([[0.0, 0.0, 0.25, 0.0, 0.25, 0.0]], dtype=dtype)
    token = int(inverse_cdf(weights, torch.tensor([number], dtype=torch.float64)))
    assert token in (2, 4)


def test_the_last_uniform_falls_inside_a_wide_vocabulary():
    weights = torch.rand(1, 50_000, generator=torch.Generator().manual_seed(0))
    token = inverse_cdf(weights, torch.tensor([1 - 2**-53], dtype=torch.float64))
    assert int(token) == 49_999


@pytest.mark.parametrize("size", [1025, 2048, 5000])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_wide_vocabulary_is_searched_as_a_narrow_one(size: int, temperature: float):
    logits = 3 * torch.randn(203, size, generator=torch.Generator().manual_seed(2))
    logits[:, ::3] = -torch.inf
    logits[7, : size - 2] = -torch.inf  # all but the last span are empty
    numbers = uniforms(203)
    drawn = draw_from_logits(logits, numbers, temperature=temperature)
    law = (logits.double() / temperature).log_softmax(-1)
    cumulative = law.exp().cumsum(-1)
    targets = numbers[:, None] * cumulative[:, -1:]
    expected = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    assert torch.equal(drawn.tokens, expected)
    assert torch.equal(inverse_cdf(law.exp(), numbers), expected)
    assert torch.allclose(
        drawn.log_probs.double(), law.gather(-1, expected[:, None])[:, 0], atol=1e-5
    )


@pytest.mark.parametrize("number", [0.0, 1e-300, 0.5, 1 - 2**-53])
def test_a_wide_vocabulary_never_yields_a_token_of_weight_zero(number: float):
    logits = torch.full((1, 3000), -torch.inf)
    logits[0, [700, 1400, 2999]] = 0.25
    drawn = draw_from_logits(logits, torch.tensor([number], dtype=torch.float64), temperature=1.0)
    assert int(drawn.tokens) in (700, 1400, 2999)
    assert float(drawn.log_probs) == pytest.approx(-1.0986123, abs=1e-6)


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_log_probs_are_those_of_the_law_really_drawn_from(top_p: float):
    logits = torch.randn(64, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    drawn = draw_from_logits(logits, uniforms(64), temperature=0.7, top_p=top_p)
    law = sampler_log_probs(logits, temperature=0.7, top_p=top_p)
    expected = law.gather(-1, drawn.tokens[:, None])[:, 0]
    assert torch.allclose(drawn.log_probs, expected, atol=1e-12)
    assert torch.equal(draw_from_law(law, uniforms(64)).tokens, drawn.tokens)


def test_temperature_zero_is_greedy_and_certain():
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]])
    drawn = draw_from_logits(logits, uniforms(2), temperature=0.0)
    assert drawn.tokens.tolist() == [1, 0]
    assert drawn.log_probs.tolist() == [0.0, 0.0]


def test_half_precision_logits_are_widened_first():
    logits = torch.tensor([[20.0, 19.875, -5.0]], dtype=torch.bfloat16)
    drawn = draw_from_logits(logits, uniforms(1), temperature=0.5)
    assert drawn.log_probs.dtype == torch.float32
    assert sampler_log_probs(logits, temperature=0.5).dtype == torch.float32


def test_entropy_counts_zero_probabilities_as_zero():
    logits = torch.tensor([[0.0, 0.0, -torch.inf], [5.0, -torch.inf, -torch.inf]])
    assert entropy(logits).tolist() == pytest.approx([0.6931472, 0.0])


def test_a_mixed_law_needs_a_temperature_above_zero():
    with pytest.raises(ValueError, match="temperature"):
        sampler_log_probs(LAW.log(), temperature=0.0)
