"""The masked way of the fused loss: for chunks in which a law excludes a token.

The tiles work without masks. Where that leaves a row infinite or NaN, this module does a chunk over
with the reference functions of `divergences` and autograd: slower, right in every corner.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from fractionate.losses import bounds, divergences


@final
@dataclass(frozen=True)
class MaskedRows:
    """Values `[rows]`, stacked statistics `[8, rows]` and logit gradient `[rows, V]` of a chunk."""

    values: Tensor
    stats: Tensor
    logit_gradient: Tensor


def masked_rows(
    logits: Float[Tensor, "2 rows vocab"], kind: str, parameter: float, first_position: int
) -> MaskedRows:
    """One chunk of tempered logits (student, teacher), by the reference functions.

    Raises:
        ValueError: a KL that takes part in the kind is infinite; positions count from
            `first_position`.
    """
    leaf = logits[0].detach().clone().requires_grad_()
    teacher = logits[1].log_softmax(-1)
    with torch.enable_grad():
        student = leaf.log_softmax(-1)
        value = divergences.UNCHECKED[kind](teacher, student, parameter)
        (logit_gradient,) = torch.autograd.grad(value.sum(), leaf)
    value, student = value.detach(), student.detach()
    if not bool(torch.isfinite(value).all()):
        divergences.refuse_infinite(
            value, teacher, student, kind, parameter, first_position=first_position
        )
    return MaskedRows(value.clamp(min=0), _stats(teacher, student), logit_gradient)


def _stats(teacher: Tensor, student: Tensor) -> Tensor:
    laws = {"teacher_log_probs": teacher, "student_log_probs": student}
    forward = divergences.relative_entropy(teacher, student)
    reverse = divergences.relative_entropy(student, teacher)
    teacher_entropy = divergences.entropy(log_probs=teacher)
    return torch.stack(
        [
            forward.clamp(min=0),
            reverse.clamp(min=0),
            teacher_entropy,
            divergences.entropy(log_probs=student),
            forward.clamp(min=0) + teacher_entropy,
            bounds.forward_gradient_norm(**laws),
            bounds.reverse_gradient_norm(**laws),
            bounds.log_ratio_range(**laws),
        ]
    )
