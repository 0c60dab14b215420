"""How far the student has moved since it wrote the completions it trains on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fractionate.config import Temperature
from fractionate.losses import stale_rollout_weight
from fractionate.rollouts.completions import Completions
from fractionate.rollouts.sampling import sampler_log_probs


@dataclass(frozen=True)
class Staleness:
    """How far the present student has moved from the one that wrote some completions.

    Attributes:
        weights: Weight of each completion in the loss, `mean_n min(cap, ratio_n)`; none without a
            cap, which leaves completions unweighted.
        tokens: Tokens in the loss.
        clipped: Tokens whose ratio exceeds the cap.
        outside: Tokens that the present nucleus leaves out: their ratio is 0.
        kl: Sum of log q_old - log q over all other tokens, in nats. Where none is outside, over
            their number an estimate of KL(q_old || q), which is infinite elsewhere.
    """

    weights: Float[Tensor, " rows"] | None
    tokens: int
    clipped: int
    outside: int
    kl: float


@torch.no_grad()
def staleness(
    temperature: Temperature,
    *,
    logits: Float[Tensor, "tokens vocab"],
    rollout: Completions,
    mask: Bool[Tensor, "rows time"],
    cap: float | None,
) -> Staleness:
    """Compare the present sampling law with the one that wrote the completions.

    Args:
        temperature: The student's sampling temperature and nucleus define both laws.
        logits: Of the present student at all completion positions, row after row.
        rollout: The completions, with the log-probabilities they were drawn with.
        mask: Which of their tokens are in the loss.
        cap: Largest ratio that counts, or none.

    Source: arXiv 2609.35259, appendix A.3.
    """
    law = sampler_log_probs(
        logits, temperature=temperature.student_rollout, top_p=temperature.top_p
    )
    inside = rollout.mask
    present = torch.zeros(inside.shape, dtype=law.dtype, device=law.device)
    present[inside] = law.gather(-1, rollout.tokens[inside][:, None])[:, 0]
    behaviour = rollout.log_probs.to(law.dtype)
    gap = (present - behaviour)[mask]
    held = gap[gap > -torch.inf]
    plain = Staleness(
        weights=None,
        tokens=len(gap),
        clipped=0,
        outside=len(gap) - len(held),
        kl=float(-held.sum()),
    )
    if cap is None:
        return plain
    weights = stale_rollout_weight(
        log_prob=present, log_prob_behaviour=behaviour, mask=mask, cap=cap
    )
    return replace(plain, weights=weights, clipped=int((gap.exp() > cap).sum()))


def staleness_summary(parts: Sequence[Staleness]) -> dict[str, float]:
    """Fields of a step record: mean weight, shares of tokens, mean divergence in nats."""
    tokens = sum(part.tokens for part in parts)
    if tokens == 0:
        return {}
    weights = [part.weights for part in parts if part.weights is not None]
    outside = sum(part.outside for part in parts)
    found = {
        "stale_clipped": sum(part.clipped for part in parts) / tokens,
        "stale_outside": outside / tokens,
    }
    if outside < tokens:
        found["stale_kl"] = sum(part.kl for part in parts) / (tokens - outside)
    return found | ({"stale_weight": float(torch.cat(weights).mean())} if weights else {})
