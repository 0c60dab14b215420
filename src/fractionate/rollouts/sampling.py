"""Drawing one token per row: temperature, nucleus, inverse CDF."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fractionate.rollouts.laws import nucleus_log_probs


@dataclass(frozen=True)
class Drawn:
    """Tokens drawn, with their log-probability under the law they were drawn from.

    Attributes:
        tokens: One token per row.
        log_probs: Temperature and nucleus included, in nats; 0 where the choice was greedy.
    """

    tokens: Int[Tensor, " rows"]
    log_probs: Float[Tensor, " rows"]


def sampler_log_probs(
    logits: Float[Tensor, "*batch vocab"], *, temperature: float | int, top_p: float | int = 1.0
) -> Float[Tensor, "*batch vocab"]:
    """The law that a sampler really draws from: logits / temperature, softmax, nucleus.

    Raises:
        ValueError: The temperature is not above 0 (a greedy choice is no law to mix).
    """
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}: a law needs one above 0")
    return nucleus_log_probs((_wide(logits) / temperature).log_softmax(-1), top_p=top_p)


def inverse_cdf(
    weights: Float[Tensor, "rows vocab"], uniforms: Float[Tensor, " rows"]
) -> Int[Tensor, " rows"]:
    """The token whose slice of the cumulative weights holds the uniform.

    The sum runs in float64 and the comparison is strict, so a token of weight 0 is never drawn.

    Args:
        weights: Not negative, not all 0 in a row, need not add up to 1.
        uniforms: One number in [0, 1) per row, float64.
    """
    return _search(weights.cumsum(-1, dtype=torch.float64), uniforms)


def draw_from_law(
    log_probs: Float[Tensor, "rows vocab"], uniforms: Float[Tensor, " rows"]
) -> Drawn:
    """Draw from normalised log-probabilities."""
    tokens = inverse_cdf(log_probs.exp(), uniforms)
    return Drawn(tokens, pick(log_probs, tokens))


def draw_from_logits(
    logits: Float[Tensor, "rows vocab"],
    uniforms: Float[Tensor, " rows"],
    *,
    temperature: float | int,
    top_p: float | int = 1.0,
) -> Drawn:
    """Draw from a model's own law; temperature 0 takes the likeliest token, ties by lowest id."""
    if temperature == 0:
        tokens = logits.argmax(-1)
        return Drawn(tokens, torch.zeros_like(tokens, dtype=_wide(logits[:0]).dtype))
    if top_p < 1.0:
        law = sampler_log_probs(logits, temperature=temperature, top_p=top_p)
        return draw_from_law(law, uniforms)
    scaled = _wide(logits) / temperature
    scaled = scaled - scaled.amax(-1, keepdim=True)
    cumulative = scaled.exp().cumsum(-1, dtype=torch.float64)
    tokens = _search(cumulative, uniforms)
    return Drawn(tokens, pick(scaled, tokens) - cumulative[:, -1].log().to(scaled.dtype))


def entropy(logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
    """Entropy of the model's law at temperature 1, in nats."""
    log_probs = _wide(logits).log_softmax(-1)
    return torch.special.entr(log_probs.exp()).sum(-1)


def pick(
    log_probs: Float[Tensor, "rows vocab"], tokens: Int[Tensor, " rows"]
) -> Float[Tensor, " rows"]:
    """The entry of each row's token."""
    return log_probs.gather(-1, tokens[:, None])[:, 0]


def _search(cumulative: Tensor, uniforms: Tensor) -> Tensor:
    # a uniform below 1 times the total stays below the total in float64, so the search ends inside
    targets = uniforms[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets, right=True)[:, 0]


def _wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
