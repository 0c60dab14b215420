"""Which tokens count, and how much.

Masks (`early_stop_mask`, `window_mask`, `skip_mask`) take tokens out of numerator *and* denominator
of a loss. Weights (`iw_opd_weights`, `stale_rollout_weight`, `importance_weight`) multiply losses
and leave the denominator alone. A mask may be of any dtype, holds 0 and 1 only, and is never
broadcast: anything else is a `ValueError`.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fractionate.losses.checks import Mask, Real, as_mask, equal_shapes
from fractionate.losses.log_probs import upcast


def iw_opd_weights(
    advantages: Float[Tensor, "batch time"], mask: Mask, *, gamma: Real = 0.5
) -> Float[Tensor, "batch time"]:
    """`w_n = 1 + gamma (1 - sum_{k<n} |A_k| / sum_k |A_k|)` over the valid tokens of each row.

    In [1, 1 + gamma], starting at 1 + gamma and never rising; gamma = 0 is plain sampled OPD, and
    a row whose advantages are all 0 has weights 1 + gamma.

    Args:
        advantages: A_n = log p(y_n) - log q_old(y_n), nats, from the rollout-time log-probabilities
            where they exist; whatever stands under the mask.
        mask: True (or 1) where a token is in the loss.
        gamma: at least 0.

    Returns:
        Detached weights, 0 where masked.

    Raises:
        ValueError: gamma below 0 or not finite, a mask of another shape or with other numbers than
            0 and 1, or an advantage that is missing (not finite) at a valid token.

    Source: arXiv 2606.22600 (IW-OPD).
    """
    if not 0 <= gamma < float("inf"):
        raise ValueError(f"gamma={gamma} must be a finite number of at least 0")
    mask = as_mask(mask, advantages=advantages)
    size = torch.where(mask, upcast(advantages).detach().abs(), 0.0)
    if not bool(torch.isfinite(size).all()):
        position = tuple(int(index) for index in torch.nonzero(~torch.isfinite(size))[0])
        raise ValueError(
            f"advantages is {float(advantages[position])} at position {position}, a valid token: "
            "give the teacher's and the rollout's log-probability of every token in the loss"
        )
    up_to = size.cumsum(-1)
    before = torch.cat([torch.zeros_like(up_to[:, :1]), up_to[:, :-1]], dim=-1)[:, : size.shape[1]]
    total = up_to[:, -1:].clamp(min=1e-8)
    return torch.where(mask, 1 + gamma * (1 - before / total), 0.0)


def early_stop_mask(mask: Mask, n: int) -> Bool[Tensor, "rows columns"]:
    """The first `n` valid tokens of each row.

    Raises:
        ValueError: n below 1, or a mask with other numbers than 0 and 1.

    Source: arXiv 2605.27028 (early stopping of rollouts, N = 100).
    """
    if n < 1:
        raise ValueError(f"n={n} must be at least 1 token")
    mask = as_mask(mask)
    return mask & (mask.cumsum(-1) <= n)


def skip_mask(mask: Mask, n: int) -> Bool[Tensor, "rows columns"]:
    """All valid tokens of each row but the first `n`.

    Raises:
        ValueError: n below 0, or a mask with other numbers than 0 and 1.
    """
    if n < 0:
        raise ValueError(f"n={n} must be at least 0 tokens")
    mask = as_mask(mask)
    return mask & (mask.cumsum(-1) > n)


def window_mask(
    mask: Mask, first: Real | None = None, last: Real | None = None
) -> Bool[Tensor, "rows columns"]:
    """The first or the last share of the valid tokens of each row, rounded up to whole tokens.

    Args:
        mask: True (or 1) where a token is in the loss.
        first: share in (0, 1] counted from the start.
        last: share in (0, 1] counted from the end.

    Raises:
        ValueError: not exactly one of both given, a share outside (0, 1], or a mask with other
            numbers than 0 and 1.

    Source: the prefix and suffix ablations of arXiv 2606.22600.
    """
    if (first is None) == (last is None):
        raise ValueError(f"first={first}, last={last}: give exactly one of the two shares")
    name, part = ("first", first) if first is not None else ("last", last)
    if part is None or not 0 < part <= 1:
        raise ValueError(f"{name}={part} must be a share in (0, 1]")
    mask = as_mask(mask)
    length = mask.sum(-1, keepdim=True)
    # A product such as 0.1 * 30 may land a rounding error above the whole number it stands for.
    kept = torch.ceil(length.double() * part - 1e-9)
    rank = mask.cumsum(-1)
    return mask & (rank <= kept if first is not None else rank > length - kept)


def stale_rollout_weight(
    *,
    log_prob: Float[Tensor, "batch time"],
    log_prob_behaviour: Float[Tensor, "batch_behaviour time_behaviour"],
    mask: Mask,
    cap: Real = 2.0,
) -> Float[Tensor, " batch"]:
    """One detached weight per completion that was sampled from older weights.

    `w(y) = mean_n min(cap, exp(log q(y_n) - log q_old(y_n)))` over the valid tokens: a
    variance-limited heuristic for student rollouts, 1 without lag. A row without a valid token
    gets 0.

    Args:
        log_prob: log q of the tokens under the present student, nats.
        log_prob_behaviour: log-probability under the law that really drew them.
        mask: True (or 1) where a token is in the loss.
        cap: upper limit of a token's ratio.

    Raises:
        ValueError: shapes that differ, or a mask with other numbers than 0 and 1.

    Source: arXiv 2609.35259, appendix A.3.
    """
    mask = as_mask(mask, log_prob=log_prob, log_prob_behaviour=log_prob_behaviour)
    gap = torch.where(mask, upcast(log_prob).detach() - upcast(log_prob_behaviour).detach(), 0.0)
    ratios = torch.where(mask, gap.exp().clamp(max=cap), 0.0)
    return ratios.sum(-1) / mask.sum(-1).clamp(min=1)


def importance_weight(
    *, log_prob: Float[Tensor, "*batch"], log_prob_behaviour: Float[Tensor, "*behaviour"]
) -> Float[Tensor, "*batch"]:
    """exp(log q - log mu), detached: turns tokens from mu into tokens from q for a sampled loss.

    Unbiased only where mu gives mass to every token of q, so never for a truncated mu; its variance
    grows like 1 + chi^2(q || mu).

    Raises:
        ValueError: the shapes differ.
    """
    equal_shapes(log_prob=log_prob, log_prob_behaviour=log_prob_behaviour)
    return (upcast(log_prob).detach() - upcast(log_prob_behaviour).detach()).exp()


def reward_to_go(
    rewards: Float[Tensor, "batch time"], mask: Mask, *, discount: Real = 1.0
) -> Float[Tensor, "batch time"]:
    """Discounted sum of the rewards from each token on; masked positions neither give nor receive.

    Discounting counts positions. Returns 0 where masked.

    Raises:
        ValueError: a mask of another shape, or with other numbers than 0 and 1.
    """
    mask = as_mask(mask, rewards=rewards)
    valid = torch.where(mask, upcast(rewards), 0.0)
    returns = torch.zeros_like(valid)
    running = torch.zeros_like(valid[:, 0]) if valid.shape[1] else valid.sum(-1)
    for time in range(valid.shape[1] - 1, -1, -1):
        running = valid[:, time] + discount * running
        returns[:, time] = running
    return torch.where(mask, returns, 0.0)
