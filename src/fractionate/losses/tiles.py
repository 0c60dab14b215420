"""One tile of logits to row sums and logit gradients: the inner part of `fused`.

A tile is a block of the vocabulary at a chunk of positions; its buffers stay in the processor's
cache. With student logits z_s, teacher logits z_t (after temperature), q, p their softmaxes and
d = z_s - z_t, everything is made of row sums. With c = logsumexp(z_s) - logsumexp(z_t):

    log(q / p) = d - c      reverse KL = sum q d - c      forward KL = c - sum p d

A law over the vocabulary is the mixture of its laws within the blocks, weighted by the blocks'
shares, so the first sweep over the blocks needs no running maximum: `combine` mixes what each block
found. Later sweeps know the shares and see the whole law.

Nothing is masked here: a token that one of the laws excludes makes its row's value infinite or NaN,
which the caller sees, and then takes the masked way (arXiv 2609.35259, section 3, for the losses).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

STUDENT_MAX, TEACHER_MAX, STUDENT_TOP, TEACHER_TOP = range(4)
STUDENT_D, TEACHER_D, TEACHER_Z, STUDENT_Z, D_MIN, D_MAX = range(4, 10)
VALUE, STUDENT_RATIO, FORWARD_SQUARE, REVERSE_SQUARE = range(10, 14)
ROWS = 14
"""Row sums of a tile: normalisers, means and extremes of the first sweep, sums of later ones."""


@final
@dataclass(frozen=True)
class Tile:
    """Buffers of b positions and v tokens.

    Attributes:
        student: z_s `[b, v]`; consumed.
        teacher: z_t `[b, v]`; consumed.
        q: student probabilities `[b, v]`, within the block or, with its share, of the whole law.
        p: teacher probabilities `[b, v]`, likewise.
        spare: `[b, v]` scratch, or an empty tensor where the kind needs none.
        work: a second such scratch.
        sums: what this block adds to the row sums `[ROWS, b]`, indexed by this module's constants.
        rows: row sums over all blocks `[ROWS, b]`, as far as the sweeps have come.
        shares: probability of this block under student and teacher, `[2, b, 1]`; None where there
            is only one block.
    """

    student: Tensor
    teacher: Tensor
    q: Tensor
    p: Tensor
    spare: Tensor
    work: Tensor
    sums: Tensor
    rows: Tensor
    shares: Tensor | None

    def column(self, index: int) -> Tensor:
        """A row sum over all blocks, as `[b, 1]`."""
        return self.rows[index].unsqueeze(-1)

    def dot(self, left: Tensor, right: Tensor, index: int, out: Tensor) -> None:
        """Row-wise inner product into `sums[index]`; `out` is scratch."""
        torch.mul(left, right, out=out)
        torch.sum(out, dim=-1, out=self.sums[index])


@final
@dataclass(frozen=True)
class Sweeps:
    """How a divergence goes over the blocks of a chunk.

    Attributes:
        keeps_logits: Whether later sweeps want z_s and z_t back, in `student` and `teacher`;
            otherwise they find `q` and `p` as the first sweep left them.
        first: Fills the normalisers and means of `sums`.
        middle: Fills further sums once the laws are known; None where there are none.
        gradient: Gives the unscaled logit gradient `[b, v]`, in one of the tile's buffers.
    """

    keeps_logits: bool
    first: Callable[[Tile], None]
    middle: Callable[[Tile, float], None] | None
    gradient: Callable[[Tile, float], Tensor]


def combine(sums: Tensor) -> tuple[Tensor, Tensor | None]:
    """Row sums of the whole vocabulary and the blocks' shares, after the first sweep.

    Args:
        sums: row sums of every block, `[ROWS, blocks, b]`.

    Returns:
        `[ROWS, b]` and `[2, blocks, b]`; the shares are None for a single block.
    """
    if sums.shape[1] == 1:
        return sums[:, 0], None
    rows = sums.new_empty(ROWS, sums.shape[2])
    shares: list[Tensor] = []
    for top, index, means in (
        (STUDENT_TOP, STUDENT_MAX, (STUDENT_D, STUDENT_Z)),
        (TEACHER_TOP, TEACHER_MAX, (TEACHER_D, TEACHER_Z)),
    ):
        torch.amax(sums[index], dim=0, out=rows[index])
        mass = (sums[index] - rows[index]).exp_().div_(sums[top])
        total = mass.sum(0)
        torch.reciprocal(total, out=rows[top])
        share = mass.div_(total)
        for mean in means:
            torch.sum(share * sums[mean], dim=0, out=rows[mean])
        shares.append(share)
    torch.amin(sums[D_MIN], dim=0, out=rows[D_MIN])
    torch.amax(sums[D_MAX], dim=0, out=rows[D_MAX])
    return rows, torch.stack(shares)


def add_up(sums: Tensor, rows: Tensor) -> None:
    """Take the sums of a later sweep into `rows`; a single block's are there already."""
    if sums.shape[1] == 1:
        return
    torch.sum(sums[VALUE:], dim=1, out=rows[VALUE:])


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


def _normalise(tile: Tile) -> None:
    """The two laws within the block, and their normalisers."""
    torch.softmax(tile.student, -1, out=tile.q)
    torch.softmax(tile.teacher, -1, out=tile.p)
    for source, index in (
        (tile.student, STUDENT_MAX),
        (tile.teacher, TEACHER_MAX),
        (tile.q, STUDENT_TOP),
        (tile.p, TEACHER_TOP),
    ):
        torch.amax(source, dim=-1, out=tile.sums[index])


# ---------------------------------------------------------------- forward, reverse: two buffers


def _forward_first(tile: Tile) -> None:
    _normalise(tile)
    difference = tile.student.sub_(tile.teacher)
    tile.dot(tile.p, difference, TEACHER_D, tile.teacher)


def _forward_gradient(tile: Tile, parameter: float) -> Tensor:  # noqa: ARG001 - one signature for all kinds
    if tile.shares is None:
        return torch.sub(tile.q, tile.p, out=tile.student)
    student, teacher = tile.shares
    return torch.mul(tile.q, student, out=tile.student).addcmul_(tile.p, teacher, value=-1)


def _reverse_first(tile: Tile) -> None:
    _normalise(tile)
    difference = torch.sub(tile.student, tile.teacher, out=tile.p)
    tile.dot(tile.q, difference, STUDENT_D, tile.teacher)


def _reverse_gradient(tile: Tile, parameter: float) -> Tensor:  # noqa: ARG001 - one signature for all kinds
    gradient = torch.sub(tile.p, tile.column(STUDENT_D), out=tile.student).mul_(tile.q)
    return gradient if tile.shares is None else gradient.mul_(tile.shares[0])


# ---------------------------------------------------------------- all others, from the logits


def _means(tile: Tile) -> None:
    _normalise(tile)
    difference = torch.sub(tile.student, tile.teacher, out=tile.spare)
    tile.dot(tile.p, tile.teacher, TEACHER_Z, tile.work)
    tile.dot(tile.q, difference, STUDENT_D, tile.work)
    tile.dot(tile.p, difference, TEACHER_D, tile.work)


def _whole_laws(tile: Tile) -> None:
    """`q` and `p` as parts of the whole laws; a single block has them still."""
    if tile.shares is None:
        return
    torch.softmax(tile.student, -1, out=tile.q).mul_(tile.shares[0])
    torch.softmax(tile.teacher, -1, out=tile.p).mul_(tile.shares[1])


def _mixed_gradient(tile: Tile, parameter: float) -> Tensor:
    _whole_laws(tile)
    difference = tile.student.sub_(tile.teacher)
    shift = parameter * tile.column(STUDENT_D) - (1 - parameter)
    return difference.mul_(parameter).sub_(shift).mul_(tile.q).sub_(tile.p, alpha=1 - parameter)


def _entropy_aware_gradient(tile: Tile, parameter: float) -> Tensor:
    _whole_laws(tile)
    difference = tile.student.sub_(tile.teacher)
    gate = (teacher_entropy(tile.rows) > parameter).to(tile.p.dtype).unsqueeze(-1)
    return difference.sub_(tile.column(STUDENT_D) - gate).mul_(tile.q).sub_(tile.p.mul_(gate))


def _jsd_middle(tile: Tile, parameter: float) -> None:
    """Log m = max(log p, log q) + log1p(b expm1(-|r|)) with r = log(q / p), as in `divergences`.

    Leaves log(q / m) in `student` and q in `teacher`.
    """
    if parameter in {0.0, 1.0}:
        tile.sums[VALUE:].zero_()
        tile.student.zero_()
        return
    _whole_laws(tile)
    log_ratio = tile.student.sub_(tile.teacher).sub_(log_normaliser_gap(tile.rows).unsqueeze(-1))
    excess = torch.abs(log_ratio, out=tile.teacher).neg_().expm1_()
    smaller = torch.heaviside(log_ratio, log_ratio.new_zeros(()), out=tile.spare)
    smaller.mul_(2 * parameter - 1).add_(1 - parameter)
    excess.mul_(smaller).log1p_()
    torch.clamp(log_ratio, min=0, out=tile.spare).add_(excess)
    from_teacher = tile.p.mul_(tile.spare).sum(-1).mul_(-parameter)
    log_ratio.clamp_(max=0).sub_(excess)
    from_student = torch.mul(tile.q, log_ratio, out=tile.p).sum(-1)
    tile.sums[STUDENT_RATIO] = from_student
    torch.add(from_teacher, from_student, alpha=1 - parameter, out=tile.sums[VALUE])
    tile.teacher.copy_(tile.q)


def _jsd_gradient(tile: Tile, parameter: float) -> Tensor:
    log_ratio = tile.student.sub_(tile.column(STUDENT_RATIO))
    return log_ratio.mul_(tile.teacher).mul_(1 - parameter)


TILE_KINDS: dict[str, Sweeps] = {
    "forward": Sweeps(False, _forward_first, None, _forward_gradient),
    "reverse": Sweeps(False, _reverse_first, None, _reverse_gradient),
    "mixed": Sweeps(True, _means, None, _mixed_gradient),
    "entropy_aware": Sweeps(True, _means, None, _entropy_aware_gradient),
    "jsd": Sweeps(True, _normalise, _jsd_middle, _jsd_gradient),
}


# ---------------------------------------------------------------- statistics


def with_statistics(kind: str, parameter: float) -> tuple[Sweeps, float]:
    """The sweeps of a kind that fill every row sum which `DivergenceStats` needs, and a parameter.

    Forward and reverse KL go as the ends of `mixed`, which leaves the logits alone.
    """
    ends = {"forward": 0.0, "reverse": 1.0}
    plain = TILE_KINDS["mixed" if kind in ends else kind]
    after = plain.middle

    def middle(tile: Tile, parameter: float) -> None:
        _gradient_norms(tile)
        if after is not None:
            after(tile, parameter)

    return Sweeps(True, _all_means, middle, plain.gradient), ends.get(kind, parameter)


def _all_means(tile: Tile) -> None:
    _means(tile)
    torch.aminmax(tile.spare, dim=-1, out=(tile.sums[D_MIN], tile.sums[D_MAX]))
    tile.dot(tile.q, tile.student, STUDENT_Z, tile.work)


def _gradient_norms(tile: Tile) -> None:
    _whole_laws(tile)
    torch.sub(tile.q, tile.p, out=tile.work)
    tile.dot(tile.work, tile.work, FORWARD_SQUARE, tile.work)
    difference = torch.sub(tile.student, tile.teacher, out=tile.spare)
    difference.sub_(tile.column(STUDENT_D)).mul_(tile.q)
    tile.dot(difference, difference, REVERSE_SQUARE, tile.work)
