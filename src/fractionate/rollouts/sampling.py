"""Drawing one token per row: temperature, nucleus, inverse CDF."""

from dataclasses import dataclass
from typing import Final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fractionate.rollouts.laws import nucleus_log_probs

_WIDE_VOCABULARY: Final = 1024
_SPAN: Final = 512
_ROWS_IN_CACHE: Final = 4


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

    The sum runs in float64 and the comparison is strict, so a token of weight 0 is never drawn. A
    wide vocabulary is searched span by span, then within one; the spans' own sums have the dtype
    of the weights.

    Args:
        weights: Not negative, not all 0 in a row, need not add up to 1.
        uniforms: One number in [0, 1) per row, float64.
    """
    size = weights.shape[-1]
    if size <= _WIDE_VOCABULARY:
        return _search(weights.cumsum(-1, dtype=torch.float64), uniforms)
    spans = nn.functional.pad(weights, (0, -size % _SPAN)).unflatten(-1, (-1, _SPAN))
    span, share, _ = _find_span(spans.sum(-1), uniforms)
    inside = spans[torch.arange(len(spans), device=spans.device), span]
    return span * _SPAN + _search(inside.cumsum(-1, dtype=torch.float64), share)


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
    if logits.shape[-1] > _WIDE_VOCABULARY:
        return _draw_wide(logits, uniforms, temperature)
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


def _draw_wide(logits: Tensor, uniforms: Tensor, temperature: float | int) -> Drawn:
    """Draw from wide rows: the weights are summed by spans, and kept of one span only."""
    top = logits.amax(-1, keepdim=True)
    span, share, totals = _find_span(_span_sums(logits, top, temperature), uniforms)
    columns = span[:, None] * _SPAN + torch.arange(_SPAN, device=logits.device)
    there = columns < logits.shape[-1]
    scaled = (_wide(logits.gather(-1, columns.where(there, 0))) - top) / temperature
    within = _search((scaled.exp() * there).cumsum(-1, dtype=torch.float64), share)
    log_probs = pick(scaled, within) - totals.log().to(scaled.dtype)
    return Drawn(span * _SPAN + within, log_probs)


def _span_sums(logits: Tensor, top: Tensor, temperature: float | int) -> Tensor:
    """exp((logits - top) / temperature) summed by spans, of a few rows that fit a cache at once."""
    size, few = logits.shape[-1], _ROWS_IN_CACHE if logits.device.type == "cpu" else len(logits)
    weights = _wide(logits[:0]).new_zeros(min(few, len(logits)), size + -size % _SPAN)
    sums = weights.new_empty(len(logits), weights.shape[-1] // _SPAN)
    for rows, highest, out in zip(logits.split(few), top.split(few), sums.split(few), strict=True):
        own = weights[: len(rows)]
        scaled = torch.sub(rows, highest, out=own[:, :size])
        if temperature != 1:
            scaled.div_(temperature)
        scaled.exp_()
        torch.sum(own.unflatten(-1, (-1, _SPAN)), -1, out=out)
    return sums


def _find_span(sums: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The span that holds the uniform, which share of it lies below, and the sum of all spans."""
    sums = sums.double()
    ends = sums.cumsum(-1)
    span, totals = _search(ends, uniforms), ends[:, -1]
    own = pick(sums, span)
    share = (uniforms * totals - (pick(ends, span) - own)) / own
    # below 1, so that the search inside the span ends inside it
    return span, share.clamp(0.0, 1.0 - 2.0**-53), totals


def _search(cumulative: Tensor, uniforms: Tensor) -> Tensor:
    # a uniform below 1 times the total stays below the total in float64, so the search ends inside
    targets = uniforms[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets, right=True)[:, 0]


def _wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
