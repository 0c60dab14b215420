"""Exact divergences from hidden states and output heads, never holding the whole logits.

`linear_divergence` walks over chunks of positions, and in a chunk over blocks of the vocabulary. A
block's logits are formed and turned into row sums while they are in the processor's cache; when all
blocks have been seen, the chunk's logit gradients are formed block by block and used up at once by
the two gradient products. Peak extra memory is the gradient of the student's head plus two numbers
per logit of one chunk, independent of the number of positions.

Left out against common fused losses: no compiled kernel, and no second product for the logits, so a
chunk's rows are kept whole. Logits are formed in at least float32 from upcast operands, on every
device, unless `gemm_dtype` says otherwise: the result is the exact divergence of the inputs, be
they bf16 or fp16.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from fractionate.losses import tiles
from fractionate.losses.checks import Real, not_nan, one_of, positive, share
from fractionate.losses.divergences import UNCHECKED
from fractionate.losses.log_probs import kept_vocabulary
from fractionate.losses.passes import CHUNK_BYTES, Sizes, Work, fast_pass, masked_pass
from fractionate.losses.products import Factor, Gradients, Operands
from fractionate.losses.stats import DivergenceStats


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
    chunk_bytes: int = CHUNK_BYTES,
    gemm_dtype: torch.dtype | None = None,
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
            gradients are formed in the forward pass: the fast form. A position of weight 0 stays
            out of sum and gradients, even where its value is NaN.
        return_stats: also return `DivergenceStats`, at the loss temperatures.
        chunk_size: positions per chunk; None takes what `chunk_bytes` holds.
        chunk_bytes: budget for what is kept of one chunk (two numbers per logit), 64 MiB unless
            given. It never takes fewer than 32 positions, nor on a CPU more than it has use for.
        gemm_dtype: None forms the products in the dtype of the logits, so bf16 operands are upcast
            and their divergence is exact. `torch.bfloat16` rounds the operands of all four products
            to bf16; each product accumulates in float32 and is itself rounded to bf16, softmax,
            sums and gradients stay in float32.

    Returns:
        Nats per position `[N]`, or the weighted sum (a scalar) with `token_weights`; in at least
        float32. With `return_stats` the pair of that and the statistics. N = 0 gives an empty
        tensor or a zero, attached to the graph.

    Raises:
        ValueError: shapes that do not fit, unequal vocabularies without `vocab_size`, a parameter
            missing, out of range or not wanted, or an infinite KL (with position and token id).

    Source: arXiv 2609.35259, equation 1; the form is this project's.
    """
    heads = (student_head, teacher_head)
    _check_shapes(student_hidden, teacher_hidden, heads, token_weights)
    _check_options(chunk_size, chunk_bytes, gemm_dtype)
    plan = _Plan(
        kind=kind,
        parameter=_parameter(kind, parameter),
        student_scale=1 / positive("student_temperature", student_temperature),
        teacher_scale=1 / positive("teacher_temperature", teacher_temperature),
        vocab=_vocabulary(student_head.shape[0], teacher_head.shape[0], vocab_size),
        with_stats=return_stats,
        sizes=Sizes(chunk_size, chunk_bytes),
        gemm_dtype=gemm_dtype,
    )
    operands = (student_hidden, student_head, teacher_hidden, teacher_head)
    weights = None if token_weights is None else token_weights.to(Operands(*operands).dtype)
    value, stats = _apply(*operands, weights, plan)
    return (value, DivergenceStats(*stats.unbind(0))) if return_stats else value


def _check_options(
    chunk_size: int | None, chunk_bytes: int, gemm_dtype: torch.dtype | None
) -> None:
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size} must be at least 1 position, or None")
    if chunk_bytes < 1:
        raise ValueError(f"chunk_bytes={chunk_bytes} must be at least 1 byte")
    if gemm_dtype not in {None, torch.bfloat16}:
        raise ValueError(f"gemm_dtype={gemm_dtype} must be torch.bfloat16 or None")


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
    sizes: Sizes
    gemm_dtype: torch.dtype | None


@final
@dataclass(frozen=True)
class _Outcome:
    """Values `[N]`, statistics `[8, N]` (or `[8, 0]`), and the gradients of the weighted sum."""

    values: Tensor
    stats: Tensor
    gradients: tuple[Tensor | None, Tensor | None]


def _evaluate(
    given: Operands, plan: _Plan, weights: Tensor | None, wanted: tuple[bool, bool]
) -> _Outcome:
    """One pass by fast tiles; with masks if there are none, or a row is infinite or NaN."""
    with torch.no_grad(), torch.autocast(given.student_hidden.device.type, enabled=False):
        dtype = plan.gemm_dtype or given.dtype
        heads = given.student_head[: plan.vocab], given.teacher_head[: plan.vocab]
        laws = (
            Factor(given.student_hidden, heads[0], plan.student_scale, dtype),
            Factor(given.teacher_hidden, heads[1], plan.teacher_scale, dtype),
        )
        scale = given.student_hidden.new_full((), plan.student_scale, dtype=given.dtype)
        scale = scale.expand(len(given.student_hidden)) if weights is None else scale * weights
        work = Work(laws, plan.vocab, plan.kind, plan.parameter, plan.sizes)
        if plan.kind in tiles.TILE_KINDS:
            gradients = Gradients(laws[0], given, scale, wanted)
            values, stats = fast_pass(work, gradients, with_stats=plan.with_stats)
            if bool(torch.isfinite(values).all() & torch.isfinite(stats).all()):
                return _Outcome(values, stats, gradients.finished())
        gradients = Gradients(laws[0], given, scale, wanted)
        values, stats = masked_pass(work, gradients)
        return _Outcome(values, stats, gradients.finished())


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
        outcome = _evaluate(Operands(*operands), plan, weights, wanted)
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
            ready = _evaluate(Operands(*operands), plan, scale, wanted).gradients
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
