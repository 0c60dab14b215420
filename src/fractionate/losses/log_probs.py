"""From logits to log-probabilities, in the one order that is right."""

import torch
from jaxtyping import Float
from torch import Tensor

from fractionate.losses.checks import Real, positive, vocabulary_axis


def upcast(tensor: Tensor) -> Tensor:
    """The tensor in at least float32: bf16 and fp16 become float32, float64 stays."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def log_probs(
    logits: Float[Tensor, "*batch vocab"],
    *,
    temperature: Real = 1.0,
    vocab_size: int | None = None,
) -> Float[Tensor, "*batch kept"]:
    """Log-probabilities (nats) of the law `softmax(logits[..., :vocab_size] / temperature)`.

    The order matters: slice to `vocab_size`, upcast to at least float32, divide by the temperature,
    log-softmax. So padding rows of a vocabulary leave the law and the rest is renormalised, and
    neither the division nor the softmax is done in half precision. An upcast cannot undo the
    rounding of the logits themselves: bf16 logits near 20 lie 0.125 apart.

    Args:
        logits: raw scores, any leading dimensions; -inf marks an impossible token.
        temperature: above 0; applied to logits, never to log-probabilities. No T^2 factor.
        vocab_size: number of leading ids to keep; None keeps all.

    Returns:
        Log-probabilities in float32, or float64 if the logits are.

    Raises:
        ValueError: temperature not above 0, vocab_size outside 1..V, or no vocabulary axis.

    Source: arXiv 2609.35259, appendix D.2.2 (temperatures inside the loss).
    """
    scale = positive("temperature", temperature)
    vocabulary_axis("logits", logits)
    if vocab_size is not None:
        logits = logits[..., : kept_vocabulary(vocab_size, logits.shape[-1])]
    return torch.log_softmax(upcast(logits) / scale, dim=-1)


def kept_vocabulary(vocab_size: int, width: int) -> int:
    """`vocab_size`, if logits of this width have as many entries.

    Raises:
        ValueError: vocab_size outside 1..width.
    """
    if not 1 <= vocab_size <= width:
        raise ValueError(f"vocab_size={vocab_size} must lie in 1..{width}, the width of the logits")
    return vocab_size
