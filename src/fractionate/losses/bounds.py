"""How large the token gradients can be, and how far a rollout policy can move an update.

Bounds of arXiv 2609.35259 (theorems C.1 and C.2, corollary C.3) and sharper constants. Gradients
are taken in the student's tempered logits; in its raw logits they carry a further 1 / T_S. B bounds
the Jacobian of the logits at every visited prefix, TV is the total variation between the completion
laws of two rollout policies. The bounds say nothing about accuracy or forgetting, and are vacuous
where TV is near 1.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from fractionate.losses.checks import Real, one_of, same_shape
from fractionate.losses.divergences import relative_entropy
from fractionate.losses.log_probs import upcast

FORWARD_NORM_SUPREMUM = math.sqrt(2)
"""No forward-KL gradient reaches this norm with finite logits; two point masses approach it."""
REVERSE_NORM_PER_RANGE = 1 / (2 * math.sqrt(2))
"""Norm of the reverse-KL gradient per unit of log-ratio range, at most; attained at two tokens."""


def total_variation(
    *,
    teacher_log_probs: Float[Tensor, "*batch teacher_vocab"],
    student_log_probs: Float[Tensor, "*batch student_vocab"],
) -> Float[Tensor, "*batch"]:
    """`sum_v |q_v - p_v| / 2`, per position, in [0, 1].

    Raises:
        ValueError: the shapes differ.
    """
    same_shape(teacher_log_probs, student_log_probs)
    return (upcast(student_log_probs).exp() - upcast(teacher_log_probs).exp()).abs().sum(-1) / 2


def forward_gradient_norm(
    *,
    teacher_log_probs: Float[Tensor, "*batch teacher_vocab"],
    student_log_probs: Float[Tensor, "*batch student_vocab"],
) -> Float[Tensor, "*batch"]:
    """Norm of q - p, the forward-KL gradient, per position; below sqrt(2).

    Its square is at most 2 TV^2, hence at most the smaller of forward and reverse KL (Pinsker).

    Raises:
        ValueError: the shapes differ.
    """
    same_shape(teacher_log_probs, student_log_probs)
    difference = upcast(student_log_probs).exp() - upcast(teacher_log_probs).exp()
    return difference.square().sum(-1).sqrt()


def reverse_gradient_norm(
    *,
    teacher_log_probs: Float[Tensor, "*batch teacher_vocab"],
    student_log_probs: Float[Tensor, "*batch student_vocab"],
) -> Float[Tensor, "*batch"]:
    """Norm of q (r - R), r = log(q / p), R its mean under q: the reverse-KL gradient, per position.

    Unbounded over teachers; at most `REVERSE_NORM_PER_RANGE` times the log-ratio range. It is inf
    where the teacher excludes a token of the student.

    Raises:
        ValueError: the shapes differ.
    """
    same_shape(teacher_log_probs, student_log_probs)
    teacher, student = upcast(teacher_log_probs), upcast(student_log_probs)
    reverse = relative_entropy(student, teacher)
    ratio = torch.where(student > -torch.inf, student - teacher - reverse.unsqueeze(-1), 0.0)
    norm = (student.exp() * ratio).square().sum(-1).sqrt()
    excluded = ((teacher == -torch.inf) & (student > -torch.inf)).any(-1)
    return torch.where(excluded, torch.inf, norm)


def log_ratio_range(
    *,
    teacher_log_probs: Float[Tensor, "*batch teacher_vocab"],
    student_log_probs: Float[Tensor, "*batch student_vocab"],
) -> Float[Tensor, "*batch"]:
    """Max r - min r over the vocabulary, r = log(q / p), in nats per position.

    Tokens that both laws exclude do not count; one that a single law excludes makes the range inf.

    Raises:
        ValueError: the shapes differ.
    """
    same_shape(teacher_log_probs, student_log_probs)
    teacher, student = upcast(teacher_log_probs), upcast(student_log_probs)
    ratio = student - teacher
    nowhere = (teacher == -torch.inf) & (student == -torch.inf)
    highest = torch.where(nowhere, -torch.inf, ratio).amax(-1)
    return highest - torch.where(nowhere, torch.inf, ratio).amin(-1)


def forward_norm_bound(total_variation: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """sqrt(2) TV: the forward-KL gradient is nowhere longer."""
    return FORWARD_NORM_SUPREMUM * total_variation


def reverse_norm_bound(log_ratio_range: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Range / (2 sqrt(2)): the reverse-KL gradient is nowhere longer."""
    return REVERSE_NORM_PER_RANGE * log_ratio_range


def update_difference_bound(
    *,
    direction: str,
    jacobian_norm: Real,
    total_variation: Real,
    log_ratio_range: Real | None = None,
    sharp: bool = True,
) -> float:
    """Largest distance between the expected updates under two rollout policies.

    `2 sqrt(2) B TV` for forward KL (theorem C.1, for any teacher), and for reverse KL with
    log-ratio range at most rho `2 B rho TV` (corollary C.3) or, sharp, `B rho TV / sqrt(2)`. No
    bound in TV alone exists for reverse KL (theorem C.2).

    Raises:
        ValueError: unknown direction, or reverse without a log_ratio_range.
    """
    return 2 * total_variation * _norm_bound(direction, jacobian_norm, log_ratio_range, sharp=sharp)


def second_moment_bound(
    *,
    direction: str,
    jacobian_norm: Real,
    log_ratio_range: Real | None = None,
    sharp: bool = True,
) -> float:
    """Largest expected squared norm of a completion's gradient, under any rollout policy.

    `2 B^2` for forward KL, `B^2 rho^2` (corollary C.3) or, sharp, `B^2 rho^2 / 8` for reverse KL.
    The trace of the variance obeys the same bound.

    Raises:
        ValueError: unknown direction, or reverse without a log_ratio_range.
    """
    return _norm_bound(direction, jacobian_norm, log_ratio_range, sharp=sharp) ** 2


def _norm_bound(direction: str, jacobian: Real, ratio_range: Real | None, *, sharp: bool) -> float:
    one_of("direction", direction, ("forward", "reverse"))
    if direction == "forward":
        return FORWARD_NORM_SUPREMUM * jacobian
    if ratio_range is None:
        raise ValueError("direction='reverse' has no bound in TV alone: give log_ratio_range")
    return jacobian * ratio_range * (REVERSE_NORM_PER_RANGE if sharp else 1.0)
