"""Exact divergences from hidden states and output heads, never holding the whole logits.

`linear_divergence` walks over chunks of positions. A chunk's logits are formed, turned into values
and logit gradients in place, and used up by the two gradient products before the next chunk; inside
a chunk the elementwise work goes by tiles that stay in the processor's cache. Peak extra memory is
the gradient of the student's head plus one chunk, independent of the number of positions.

Left out against common fused losses: no compiled kernel, no vocabulary tiles, no low-precision
products. Logits are formed in at least float32 from upcast operands, on every device: with bf16 or
fp16 inputs one float32 copy of each head is held during the call, and the result is the exact
divergence of those inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, cast, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from fractionate.losses import tiles
from fractionate.losses.checks import Real, not_nan, one_of, positive, share
from fractionate.losses.divergences import UNCHECKED
from fractionate.losses.log_probs import kept_vocabulary
from fractionate.losses.masked import masked_rows
from fractionate.losses.stats import DivergenceStats, stats_from_rows

CHUNK_BYTES = 48 * 2**20
"""Budget for the logits of teacher and student of one chunk of positions, in bytes."""
SMALLEST_CHUNK = 64
"""Fewer rows than this make the matrix products slow, whatever the vocabulary."""
TILE_ELEMENTS = 49_152
"""Logits per tile on a CPU: four float32 buffers of this size fit a 1 MiB cache."""


def linear_divergence(  # noqa: PLR0913 - the contract's own arguments: two laws, one method
    *,
    student_hidden: Float[Tensor, "positions student_width"],
    student_head: Float[Tensor, "student_vocab student_width"],
    teacher_hidden: Float[Tensor, "positions teacher_width"],
    teacher_head: Float[Tensor, "teacher_vocab teacher_width"],
    kind: str,
    parameter: Real | None = None,
    student_temperature: Real = 1.0,
    teacher_temperature: Real = 1.0,
    vocab_size: int | None = None,
    token_weights: Float[Tensor, " positions"] | None = None,
    return_stats: bool = False,
    chunk_size: int | None = None,
) -> (
    Float[Tensor, ""]
    | Float[Tensor, " positions"]
    | tuple[Float[Tensor, ""] | Float[Tensor, " positions"], DivergenceStats]
):
    """The exact divergence of two next-token laws given by hidden states and output heads.

    The laws are `softmax((hidden @ head.T)[:, :vocab_size] / temperature)`. Values are those of
    `forward_kl`, `reverse_kl`, `jsd`, `mixed_kl` and `entropy_aware`; gradients go to
    `student_hidden` and `student_head`, through the temperature, and never to the teacher.

    Args:
        student_hidden: last hidden states of the student, one row per position in the loss.
        student_head: output head of the student; may be tied to its embedding.
        teacher_hidden: last hidden states of the teacher at the same positions.
        teacher_head: output head of the teacher; longer or shorter heads need `vocab_size`.
        kind: `forward`, `reverse`, `jsd`, `mixed` or `entropy_aware`.
        parameter: beta of `jsd`, reverse_weight of `mixed`, threshold (nats) of `entropy_aware`;
            None for the other two.
        student_temperature: divides the student's logits.
        teacher_temperature: divides the teacher's logits.
        vocab_size: number of leading ids kept in both laws; None keeps all.
        token_weights: one weight per position, already divided by the step's denominator
            (`token_weights` of the reductions). Given, the weighted scalar sum is returned and the
            gradients are formed in the forward pass: the fast form. A second backward pass through
            the same graph forms them anew. A position of weight 0 stays out of sum and gradients,
            even where its value is NaN. Used in the dtype of the logits.
        return_stats: also return `DivergenceStats`, at the loss temperatures.
        chunk_size: positions per chunk; None takes as many as `CHUNK_BYTES` holds.

    Returns:
        Nats per position `[N]`, or the weighted sum (a scalar) with `token_weights`; in at least
        float32. With `return_stats` the pair of that and the statistics. N = 0 gives an empty
        tensor or a zero, attached to the graph.

    Raises:
        ValueError: shapes that do not fit, unequal vocabularies without `vocab_size`, a parameter
            that is missing, out of range or not wanted, or an infinite KL (with position and token
            id).

    Source: arXiv 2609.35259, equation 1 (per-token divergence); the form is this project's.
    """
    heads = (student_head, teacher_head)
    _check_shapes(student_hidden, teacher_hidden, heads, token_weights)
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size} must be at least 1 position, or None")
    plan = _Plan(
        kind=kind,
        parameter=_parameter(kind, parameter),
        student_scale=1 / positive("student_temperature", student_temperature),
        teacher_scale=1 / positive("teacher_temperature", teacher_temperature),
        vocab=_vocabulary(student_head.shape[0], teacher_head.shape[0], vocab_size),
        with_stats=return_stats,
        chunk_size=chunk_size,
    )
    operands = (student_hidden, student_head, teacher_hidden, teacher_head)
    weights = None if token_weights is None else token_weights.to(_Operands(*operands).dtype)
    value, stats = _apply(*operands, weights, plan)
    if not return_stats:
        return value
    return value, DivergenceStats(*stats.unbind(0))


@final
@dataclass(frozen=True)
class _Plan:
    """Everything about a call that is not a tensor."""

    kind: str
    parameter: float
    student_scale: float
    teacher_scale: float
    vocab: int
    with_stats: bool
    chunk_size: int | None

    def rows_per_chunk(self, dtype: torch.dtype) -> int:
        if self.chunk_size is not None:
            return self.chunk_size
        return max(SMALLEST_CHUNK, CHUNK_BYTES // (2 * self.vocab * dtype.itemsize))


@final
@dataclass(frozen=True)
class _Operands:
    """The four operands as given, and the dtype in which logits are formed."""

    student_hidden: Tensor
    student_head: Tensor
    teacher_hidden: Tensor
    teacher_head: Tensor

    @property
    def dtype(self) -> torch.dtype:
        dtype = torch.float32
        for field in fields(self):
            dtype = torch.promote_types(dtype, getattr(self, field.name).dtype)
        return dtype

    def cast(self, vocab: int) -> "_Operands":
        """The operands in the dtype of the logits, heads cut to the vocabulary."""
        dtype = self.dtype
        return _Operands(
            self.student_hidden.to(dtype),
            self.student_head[:vocab].to(dtype),
            self.teacher_hidden.to(dtype),
            self.teacher_head[:vocab].to(dtype),
        )


@final
class _Gradients:
    """Gradients of the weighted sum, gathered chunk by chunk; None where nobody asks."""

    def __init__(
        self, cast: _Operands, given: _Operands, scaled: Tensor, wanted: tuple[bool, bool]
    ) -> None:
        self._cast, self._given, self._scaled = cast, given, scaled
        self.unused = (scaled == 0).unsqueeze(-1)  # [N, 1]: NaN times 0 would stay NaN
        self.hidden = torch.empty_like(cast.student_hidden) if wanted[0] else None
        shape = given.student_head.shape
        self.head = cast.student_head.new_zeros(shape) if wanted[1] else None

    def add(self, start: int, stop: int, logit_gradient: Tensor) -> None:
        """Take in the unscaled logit gradient of rows start..stop; weights enter at width H."""
        scale, unused = self._scaled[start:stop].unsqueeze(-1), self.unused[start:stop]
        head = self._cast.student_head
        if self.hidden is not None:
            hidden = torch.mm(logit_gradient, head, out=self.hidden[start:stop])
            hidden.mul_(scale).masked_fill_(unused, 0)
        if self.head is not None:
            rows = (self._cast.student_hidden[start:stop] * scale).masked_fill_(unused, 0)
            self.head[: len(head)].addmm_(logit_gradient.t(), rows)

    def finished(self) -> tuple[Tensor | None, Tensor | None]:
        """Both gradients in the dtypes of what they belong to."""
        hidden, head = self.hidden, self.head
        return (
            None if hidden is None else hidden.to(self._given.student_hidden.dtype),
            None if head is None else head.to(self._given.student_head.dtype),
        )


@final
@dataclass(frozen=True)
class _Outcome:
    """Values `[N]`, statistics `[8, N]` (or `[8, 0]`), and the gradients of the weighted sum."""

    values: Tensor
    stats: Tensor
    gradients: tuple[Tensor | None, Tensor | None]


def _evaluate(
    given: _Operands, plan: _Plan, weights: Tensor | None, wanted: tuple[bool, bool]
) -> _Outcome:
    """One pass by fast tiles; with masks if there are none, or a row is infinite or NaN."""
    with torch.no_grad(), torch.autocast(given.student_hidden.device.type, enabled=False):
        cast = given.cast(plan.vocab)
        scale = cast.student_hidden.new_tensor(plan.student_scale).expand(len(cast.student_hidden))
        if weights is not None:
            scale = scale * weights
        if plan.kind in tiles.TILE_KINDS:
            gradients = _Gradients(cast, given, scale, wanted)
            values, stats = _fast_pass(cast, plan, gradients)
            if bool(torch.isfinite(values).all() & torch.isfinite(stats).all()):
                return _Outcome(values, stats, gradients.finished())
        gradients = _Gradients(cast, given, scale, wanted)
        values, stats = _masked_pass(cast, plan, gradients)
        return _Outcome(values, stats, gradients.finished())


def _chunk_logits(cast: _Operands, plan: _Plan, start: int, buffers: Tensor) -> tuple[Tensor, int]:
    """Logits over temperature of the chunk at `start`, as `[2, rows, V]` (student, teacher)."""
    stop = min(start + buffers.shape[1], len(cast.student_hidden))
    logits = buffers[:, : stop - start]
    for out, hidden, head, scale in (
        (logits[0], cast.student_hidden, cast.student_head, plan.student_scale),
        (logits[1], cast.teacher_hidden, cast.teacher_head, plan.teacher_scale),
    ):
        torch.addmm(out, hidden[start:stop], head.t(), beta=0, alpha=scale, out=out)
    return logits, stop


def _chunk_buffers(cast: _Operands, plan: _Plan) -> Tensor:
    rows = min(plan.rows_per_chunk(cast.dtype), max(1, len(cast.student_hidden)))
    return cast.student_hidden.new_empty(2, rows, plan.vocab)


def _fast_pass(cast: _Operands, plan: _Plan, gradients: _Gradients) -> tuple[Tensor, Tensor]:
    positions = len(cast.student_hidden)
    with_gradient = gradients.hidden is not None or gradients.head is not None
    buffers = _chunk_buffers(cast, plan)
    height = buffers.shape[1]
    if cast.student_hidden.device.type == "cpu":
        height = min(height, max(1, TILE_ELEMENTS // plan.vocab))
    spare_rows = height if plan.with_stats or plan.kind == "jsd" else 0
    q, p = cast.student_hidden.new_empty(2, height, plan.vocab)
    spare = cast.student_hidden.new_empty(spare_rows, plan.vocab)
    kept_rows = tiles.ALL_ROWS if plan.with_stats else tiles.PLAIN_ROWS
    rows = cast.student_hidden.new_zeros(kept_rows, positions)
    for start in range(0, positions, buffers.shape[1]):
        (student, teacher), stop = _chunk_logits(cast, plan, start, buffers)
        for low in range(0, stop - start, height):
            high = min(low + height, stop - start)
            tile = tiles.Tile(
                student=student[low:high],
                teacher=teacher[low:high],
                q=q[: high - low],
                p=p[: high - low],
                spare=spare[: high - low],
                rows=rows[:, start + low : start + high],
            )
            tiles.run_tile(
                tile,
                plan.kind,
                plan.parameter,
                with_gradient=with_gradient,
                with_stats=plan.with_stats,
            )
        if with_gradient:
            gradients.add(start, stop, student)
    values = tiles.divergence(rows, plan.kind, plan.parameter).clamp(min=0)
    stats = stats_from_rows(rows) if plan.with_stats else rows.new_empty(8, 0)
    return values, stats


def _masked_pass(cast: _Operands, plan: _Plan, gradients: _Gradients) -> tuple[Tensor, Tensor]:
    """The same pass by autograd on the reference functions, chunk by chunk.

    Raises:
        ValueError: a KL that takes part is infinite.
    """
    values: list[Tensor] = []
    stats: list[Tensor] = []
    buffers = _chunk_buffers(cast, plan)
    for start in range(0, len(cast.student_hidden), buffers.shape[1]):
        logits, stop = _chunk_logits(cast, plan, start, buffers)
        rows = masked_rows(logits, plan.kind, plan.parameter, start)
        values.append(rows.values)
        stats.append(rows.stats)
        gradient = rows.logit_gradient.masked_fill_(gradients.unused[start:stop], 0)
        gradients.add(start, stop, gradient)
    return torch.cat(values), torch.cat(stats, dim=1)


class _LinearDivergence(torch.autograd.Function):
    """Autograd around `_evaluate`; the gradients wait as attributes, not as saved tensors.

    A saved tensor would be shared with the graph, and the leaf would copy the head's gradient
    instead of taking it.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        *operands, weights, plan = arguments
        ctx.plan, ctx.ready = plan, None
        ctx.save_for_backward(*operands, weights)
        wanted = tuple(ctx.needs_input_grad[:2]) if weights is not None else (False, False)
        outcome = _evaluate(_Operands(*operands), plan, weights, wanted)
        ctx.mark_non_differentiable(outcome.stats)
        if weights is None:
            return outcome.values, outcome.stats
        ctx.ready = outcome.gradients
        return outcome.values.masked_fill(weights == 0, 0).mul_(weights).sum(), outcome.stats

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - the decorator hides the names
        ctx: Any,
        *upstream: Tensor,
    ) -> tuple[Tensor | None, ...]:
        *operands, weights = ctx.saved_tensors
        ready, ctx.ready = ctx.ready, None
        gradient = upstream[0]
        if ready is None:
            scale = gradient if weights is None else gradient * weights
            wanted = tuple(ctx.needs_input_grad[:2])
            plan = ctx.plan
            ready = _evaluate(_Operands(*operands), plan, scale, wanted).gradients
        elif gradient.device.type != "cpu" or gradient.item() != 1:
            ready = tuple(None if g is None else g.mul_(gradient) for g in ready)
        return (*ready, None, None, None, None)


_apply = cast(
    Callable[..., tuple[Tensor, Tensor]],
    _LinearDivergence.apply,  # pyright: ignore[reportUnknownMemberType] - torch leaves it untyped
)


def _parameter(kind: str, parameter: Real | None) -> float:
    one_of("kind", kind, UNCHECKED)
    names = {"jsd": "beta", "mixed": "reverse_weight", "entropy_aware": "threshold"}
    if kind not in names:
        if parameter is not None:
            raise ValueError(f"kind={kind!r} takes no parameter: leave parameter={parameter} out")
        return 0.0
    if parameter is None:
        raise ValueError(f"kind={kind!r} needs parameter, its {names[kind]}")
    check = not_nan if kind == "entropy_aware" else share
    return check(names[kind], parameter)


def _vocabulary(student: int, teacher: int, vocab_size: int | None) -> int:
    if vocab_size is not None:
        kept_vocabulary(vocab_size, student)
        return kept_vocabulary(vocab_size, teacher)
    if student != teacher:
        raise ValueError(
            f"student_head has {student} rows and teacher_head {teacher}: give vocab_size, the "
            "number of ids that both tokenizers share, to slice both"
        )
    return student


def _check_shapes(
    student_hidden: Tensor,
    teacher_hidden: Tensor,
    heads: tuple[Tensor, Tensor],
    token_weights: Tensor | None,
) -> None:
    for name, hidden, head in (
        ("student", student_hidden, heads[0]),
        ("teacher", teacher_hidden, heads[1]),
    ):
        if hidden.ndim != 2 or head.ndim != 2 or hidden.shape[1] != head.shape[1]:
            raise ValueError(
                f"{name}_hidden {tuple(hidden.shape)} and {name}_head {tuple(head.shape)} must be "
                "[positions, width] and [vocabulary, width] of one width"
            )
    if len(student_hidden) != len(teacher_hidden):
        raise ValueError(
            f"student_hidden has {len(student_hidden)} positions and teacher_hidden "
            f"{len(teacher_hidden)}: give the same positions"
        )
    if token_weights is not None and token_weights.shape != student_hidden.shape[:1]:
        raise ValueError(
            f"token_weights has shape {tuple(token_weights.shape)}: give one weight for each of "
            f"the {len(student_hidden)} positions"
        )
