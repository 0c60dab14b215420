"""What every token tells about its two laws, beside the loss."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from fractionate.losses import tiles


@final
@dataclass(frozen=True)
class DivergenceStats:
    """Detached per-token measurements `[N]` at the loss temperatures, whatever loss is trained.

    With p the teacher's law, q the student's, r = log(q / p), F forward and R reverse KL. A KL that
    the trained loss does not need may be inf here. Log F, CE, H(p) and H(q) apart: F can be tiny
    while CE and H(p) are both near log V (arXiv 2609.35259, experiment on the entropy trap).

    Attributes:
        forward_kl: F = KL(teacher || student), nats.
        reverse_kl: R = KL(student || teacher), nats.
        teacher_entropy: H(p), nats.
        student_entropy: H(q), nats.
        cross_entropy: CE(p, q) = F + H(p), nats.
        forward_grad_norm: norm of q - p, the forward gradient in the student's tempered logits.
        reverse_grad_norm: norm of q (r - R), the reverse gradient in the tempered logits.
        log_ratio_range: max r - min r over the vocabulary, nats.
    """

    forward_kl: Float[Tensor, " positions"]
    reverse_kl: Float[Tensor, " positions"]
    teacher_entropy: Float[Tensor, " positions"]
    student_entropy: Float[Tensor, " positions"]
    cross_entropy: Float[Tensor, " positions"]
    forward_grad_norm: Float[Tensor, " positions"]
    reverse_grad_norm: Float[Tensor, " positions"]
    log_ratio_range: Float[Tensor, " positions"]


def stats_from_rows(rows: Float[Tensor, "rows positions"]) -> Float[Tensor, "8 positions"]:
    """The fields of `DivergenceStats`, stacked in their order, from the row sums of the tiles."""
    gap = tiles.log_normaliser_gap(rows)
    forward = (gap - rows[tiles.TEACHER_D]).clamp(min=0)
    teacher_entropy = tiles.teacher_entropy(rows)
    return torch.stack(
        [
            forward,
            (rows[tiles.STUDENT_D] - gap).clamp(min=0),
            teacher_entropy,
            tiles.student_entropy(rows),
            forward + teacher_entropy,
            rows[tiles.FORWARD_SQUARE].sqrt(),
            rows[tiles.REVERSE_SQUARE].sqrt(),
            rows[tiles.D_MAX] - rows[tiles.D_MIN],
        ]
    )
