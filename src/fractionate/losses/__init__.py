"""Losses of distillation as pure functions of tensors; nothing else of the project is needed."""

from fractionate.losses.divergences import (
    cross_entropy,
    entropy,
    entropy_aware,
    forward_kl,
    jsd,
    mixed_kl,
    reverse_kl,
)
from fractionate.losses.estimators import (
    as_reward,
    estimate,
    forward_kl_from_student_tokens,
    sampled_loss,
    vopd_advantage,
)
from fractionate.losses.fused import linear_divergence
from fractionate.losses.log_probs import log_probs
from fractionate.losses.reductions import loss_denominator, reduce_loss, token_weights
from fractionate.losses.stats import DivergenceStats
from fractionate.losses.supports import topk_ids, topk_kl
from fractionate.losses.weights import (
    early_stop_mask,
    importance_weight,
    iw_opd_weights,
    reward_to_go,
    skip_mask,
    stale_rollout_weight,
    window_mask,
)

__all__ = [
    "DivergenceStats",
    "as_reward",
    "cross_entropy",
    "early_stop_mask",
    "entropy",
    "entropy_aware",
    "estimate",
    "forward_kl",
    "forward_kl_from_student_tokens",
    "importance_weight",
    "iw_opd_weights",
    "jsd",
    "linear_divergence",
    "log_probs",
    "loss_denominator",
    "mixed_kl",
    "reduce_loss",
    "reverse_kl",
    "reward_to_go",
    "sampled_loss",
    "skip_mask",
    "stale_rollout_weight",
    "token_weights",
    "topk_ids",
    "topk_kl",
    "vopd_advantage",
    "window_mask",
]
