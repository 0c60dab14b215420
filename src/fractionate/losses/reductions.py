"""From one loss per token to one number per optimizer step.

A reduction is a numerator, summed over the tokens of a micro-batch, and a denominator that belongs
to the whole optimizer step: `loss_denominator` of each micro-batch and rank, taken after the
rollout from the tokens that are in the loss, and summed. Then any split into micro-batches gives
the same loss and the same gradient.

| how | weight of a token of a completion of L tokens, N non-empty completions | who uses it |
|---|---|---|
| `sequence_mean` | 1 / (N L) | arXiv 2609.35259, equation 1 |
| `token_mean` | 1 / (all tokens) | DAPO, arXiv 2503.14476 |
| `constant` | 1 / (N max_length) | Dr. GRPO, arXiv 2503.20783 |
| `sequence_sum` | 1 / N | sequence KL; early stopping, arXiv 2605.27028 |

A row without a valid token leaves numerator and denominator. Values under the mask are replaced,
never multiplied by 0, so a NaN there stays out.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fractionate.losses.checks import Mask, Real, as_mask, one_of
from fractionate.losses.log_probs import upcast

REDUCTIONS = ("sequence_mean", "token_mean", "constant", "sequence_sum")


def loss_denominator(mask: Mask, *, how: str, max_length: int | None = None) -> Float[Tensor, ""]:
    """What this micro-batch adds to the denominator of its optimizer step.

    Tokens for `token_mean`; non-empty rows for `sequence_mean` and `sequence_sum`; non-empty rows
    times `max_length` for `constant`. Sum it over the micro-batches and ranks of the step.

    Args:
        mask: True (or 1) where a token is in the loss, after every weighting that is a mask.
        how: one of `REDUCTIONS`.
        max_length: completion limit in tokens, for `constant` only.

    Returns:
        A float64 scalar: counts stay exact.

    Raises:
        ValueError: unknown `how`, `constant` without a positive `max_length`, or a mask that holds
            other numbers than 0 and 1.
    """
    one_of("how", how, REDUCTIONS)
    mask = as_mask(mask)
    if how == "token_mean":
        return mask.sum().double()
    rows = mask.any(-1).sum().double()
    return rows * _limit(max_length) if how == "constant" else rows


def token_weights(
    mask: Mask,
    *,
    how: str,
    denominator: Tensor | Real,
    max_length: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "rows columns"]:
    """The weight of every token in the loss of its step, 0 where masked.

    `(token_weights(...) * per_token).sum()` equals `reduce_loss(per_token, ...)`; the fused
    `linear_divergence` takes these weights.

    Args:
        mask: True (or 1) where a token is in the loss.
        how: one of `REDUCTIONS`.
        denominator: sum of `loss_denominator` over the step; 0 (an empty step) gives weights 0.
        max_length: as in `loss_denominator`, checked for `constant`.
        dtype: of the weights.

    Raises:
        ValueError: as `loss_denominator`, or a denominator that is negative, not finite, or 0
            though the mask holds a token.
    """
    one_of("how", how, REDUCTIONS)
    if how == "constant":
        _limit(max_length)
    mask = as_mask(mask)
    share = torch.tensor(_inverse(denominator, mask), dtype=torch.float64, device=mask.device)
    weight = share.expand(mask.shape)
    if how == "sequence_mean":
        weight = weight / mask.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(mask, weight, 0.0).to(dtype)


def reduce_loss(
    per_token: Float[Tensor, "batch time"],
    mask: Mask,
    *,
    how: str,
    max_length: int | None = None,
    denominator: Tensor | Real | None = None,
) -> Float[Tensor, ""]:
    """The loss of a micro-batch, as its share of the optimizer step.

    Args:
        per_token: one loss per token (nats), whatever stands under the mask.
        mask: True (or 1) where a token is in the loss.
        how: one of `REDUCTIONS`.
        max_length: completion limit in tokens, for `constant` only.
        denominator: sum of `loss_denominator` over all micro-batches and ranks of the step;
            None says that this batch is the whole step.

    Returns:
        A scalar in at least float32, attached to the graph; 0 with zero gradients if the mask is
        empty.

    Raises:
        ValueError: as `token_weights`, or a mask of another shape than `per_token`.
    """
    mask = as_mask(mask, per_token=per_token)
    if denominator is None:
        denominator = loss_denominator(mask, how=how, max_length=max_length)
    values = torch.where(mask, upcast(per_token), 0.0)
    weights = token_weights(
        mask, how=how, denominator=denominator, max_length=max_length, dtype=values.dtype
    )
    return (values * weights).sum()


def _inverse(denominator: Tensor | Real, mask: Tensor) -> float:
    """1 / denominator, and 0 where the whole step is empty."""
    total = float(denominator)
    if not 0 <= total < float("inf"):
        raise ValueError(
            f"denominator={total} must be a finite number of at least 0: sum loss_denominator "
            "over the micro-batches of the step"
        )
    if total == 0 and bool(mask.any()):
        raise ValueError(
            "denominator=0 says that the step is empty, but the mask holds a token: sum "
            "loss_denominator over all micro-batches of the step"
        )
    return 1 / total if total else 0.0


def _limit(max_length: int | None) -> int:
    if max_length is None or max_length < 1:
        raise ValueError(
            f"reduction 'constant' divides by max_length={max_length}: "
            "give the completion limit in tokens"
        )
    return max_length
