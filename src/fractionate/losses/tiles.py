"""One tile of logits to divergences and logit gradients, in place: the inner part of `fused`.

A tile is a block of rows whose four buffers stay in the processor's cache. With student logits z_s,
teacher logits z_t (after temperature), q, p their softmaxes and d = z_s - z_t, everything is made
of row sums. With c = logsumexp(z_s) - logsumexp(z_t):

    log(q / p) = d - c      reverse KL = sum q d - c      forward KL = c - sum p d

Nothing is masked here: a token that one of the laws excludes makes its row's value infinite or NaN,
which the caller sees, and then takes the masked way (arXiv 2609.35259, section 3, for the losses).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

STUDENT_MAX, TEACHER_MAX, STUDENT_TOP, TEACHER_TOP, STUDENT_D, TEACHER_D, TEACHER_Z, VALUE = range(
    8
)
STUDENT_Z, D_MIN, D_MAX, FORWARD_SQUARE, REVERSE_SQUARE = range(8, 13)
PLAIN_ROWS, ALL_ROWS = 8, 13


@final
@dataclass(frozen=True)
class Tile:
    """Buffers of one block of b rows; the logits are consumed.

    Attributes:
        student: z_s `[b, V]`; holds the unscaled logit gradient afterwards if it was asked for.
        teacher: z_t `[b, V]`; scratch afterwards.
        q: student probabilities `[b, V]`.
        p: teacher probabilities `[b, V]`.
        spare: `[b, V]` scratch, or an empty tensor where the kind and the caller need none.
        rows: row sums `[rows, b]`, indexed by the constants of this module.
    """

    student: Tensor
    teacher: Tensor
    q: Tensor
    p: Tensor
    spare: Tensor
    rows: Tensor

    def column(self, index: int) -> Tensor:
        """A row sum as `[b, 1]`."""
        return self.rows[index].unsqueeze(-1)

    def dot(self, left: Tensor, right: Tensor, index: int, out: Tensor) -> None:
        """Row-wise inner product into `rows[index]`; `out` is scratch."""
        torch.mul(left, right, out=out)
        torch.sum(out, dim=-1, out=self.rows[index])


def run_tile(
    tile: Tile, kind: str, parameter: float, *, with_gradient: bool, with_stats: bool
) -> None:
    """Fill `tile.rows`, and `tile.student` with the logit gradient if `with_gradient`."""
    torch.softmax(tile.student, -1, out=tile.q)
    torch.softmax(tile.teacher, -1, out=tile.p)
    for source, index in (
        (tile.student, STUDENT_MAX),
        (tile.teacher, TEACHER_MAX),
        (tile.q, STUDENT_TOP),
        (tile.p, TEACHER_TOP),
    ):
        torch.amax(source, dim=-1, out=tile.rows[index])
    if with_stats:
        tile.dot(tile.q, tile.student, STUDENT_Z, tile.spare)
    tile.student.sub_(tile.teacher)
    if with_stats:
        _stats(tile)
    TILE_KINDS[kind](tile, parameter, with_gradient)


def log_normaliser_gap(rows: Tensor) -> Tensor:
    """C = logsumexp(z_s) - logsumexp(z_t) of every row, from maxima and top probabilities."""
    gap = rows[STUDENT_MAX] - rows[TEACHER_MAX]
    return gap + (rows[TEACHER_TOP] / rows[STUDENT_TOP]).log()


def teacher_entropy(rows: Tensor) -> Tensor:
    """H(p) of every row, in nats; needs TEACHER_Z."""
    return (rows[TEACHER_MAX] - rows[TEACHER_TOP].log() - rows[TEACHER_Z]).clamp(min=0)


def student_entropy(rows: Tensor) -> Tensor:
    """H(q) of every row, in nats; needs STUDENT_Z."""
    return (rows[STUDENT_MAX] - rows[STUDENT_TOP].log() - rows[STUDENT_Z]).clamp(min=0)


def divergence(rows: Tensor, kind: str, parameter: float) -> Tensor:
    """The divergence of every row from its sums, before the floor at 0."""
    if kind == "jsd":
        return rows[VALUE]
    gap = log_normaliser_gap(rows)
    if kind == "forward":
        return gap - rows[TEACHER_D]
    reverse = rows[STUDENT_D] - gap
    if kind == "reverse":
        return reverse
    forward = gap - rows[TEACHER_D]
    if kind == "mixed":
        return parameter * reverse + (1 - parameter) * forward
    return reverse + torch.where(teacher_entropy(rows) > parameter, forward, 0.0)


def _forward(tile: Tile, parameter: float, with_gradient: bool) -> None:  # noqa: FBT001, ARG001 - one signature for all kinds
    tile.dot(tile.p, tile.student, TEACHER_D, tile.teacher)
    if with_gradient:
        torch.sub(tile.q, tile.p, out=tile.student)


def _reverse(tile: Tile, parameter: float, with_gradient: bool) -> None:  # noqa: FBT001, ARG001 - one signature for all kinds
    tile.dot(tile.q, tile.student, STUDENT_D, tile.teacher)
    if with_gradient:
        tile.student.sub_(tile.column(STUDENT_D)).mul_(tile.q)


def _mixed(tile: Tile, parameter: float, with_gradient: bool) -> None:  # noqa: FBT001 - one signature for all kinds
    tile.dot(tile.q, tile.student, STUDENT_D, tile.teacher)
    tile.dot(tile.p, tile.student, TEACHER_D, tile.teacher)
    if with_gradient:
        shift = parameter * tile.column(STUDENT_D) - (1 - parameter)
        tile.student.mul_(parameter).sub_(shift).mul_(tile.q).sub_(tile.p, alpha=1 - parameter)


def _entropy_aware(tile: Tile, parameter: float, with_gradient: bool) -> None:  # noqa: FBT001 - one signature for all kinds
    tile.dot(tile.p, tile.teacher, TEACHER_Z, tile.teacher)
    tile.dot(tile.q, tile.student, STUDENT_D, tile.teacher)
    tile.dot(tile.p, tile.student, TEACHER_D, tile.teacher)
    if with_gradient:
        gate = (teacher_entropy(tile.rows) > parameter).to(tile.p.dtype).unsqueeze(-1)
        tile.student.sub_(tile.column(STUDENT_D) - gate).mul_(tile.q).sub_(tile.p.mul_(gate))


def _jsd(tile: Tile, parameter: float, with_gradient: bool) -> None:  # noqa: FBT001 - one signature for all kinds
    """Log m = max(log p, log q) + log1p(b expm1(-|r|)) with r = log(q / p), as in `divergences`."""
    if parameter in {0.0, 1.0}:
        tile.rows[VALUE].zero_()
        tile.student.zero_()
        return
    log_ratio = tile.student.sub_(log_normaliser_gap(tile.rows).unsqueeze(-1))
    excess = torch.abs(log_ratio, out=tile.teacher).neg_().expm1_()
    smaller = torch.heaviside(log_ratio, log_ratio.new_zeros(()), out=tile.spare)
    smaller.mul_(2 * parameter - 1).add_(1 - parameter)
    excess.mul_(smaller).log1p_()
    torch.clamp(log_ratio, min=0, out=tile.spare).add_(excess)
    from_teacher = tile.p.mul_(tile.spare).sum(-1).mul_(-parameter)
    log_ratio.clamp_(max=0).sub_(excess)
    from_student = torch.mul(tile.q, log_ratio, out=tile.p).sum(-1)
    torch.add(from_teacher, from_student, alpha=1 - parameter, out=tile.rows[VALUE])
    if with_gradient:
        log_ratio.sub_(from_student.unsqueeze(-1)).mul_(tile.q).mul_(1 - parameter)


TILE_KINDS: dict[str, Callable[[Tile, float, bool], None]] = {
    "forward": _forward,
    "reverse": _reverse,
    "mixed": _mixed,
    "entropy_aware": _entropy_aware,
    "jsd": _jsd,
}


def _stats(tile: Tile) -> None:
    """Every row sum that `DivergenceStats` needs; only `tile.spare` is overwritten."""
    difference = tile.student
    tile.dot(tile.p, tile.teacher, TEACHER_Z, tile.spare)
    tile.dot(tile.q, difference, STUDENT_D, tile.spare)
    tile.dot(tile.p, difference, TEACHER_D, tile.spare)
    torch.aminmax(difference, dim=-1, out=(tile.rows[D_MIN], tile.rows[D_MAX]))
    torch.sub(tile.q, tile.p, out=tile.spare)
    tile.dot(tile.spare, tile.spare, FORWARD_SQUARE, tile.spare)
    torch.sub(difference, tile.column(STUDENT_D), out=tile.spare).mul_(tile.q)
    tile.dot(tile.spare, tile.spare, REVERSE_SQUARE, tile.spare)
