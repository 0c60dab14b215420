"""One Llama or Qwen2 layer over packed rows, with its backward pass written out.

Written out, it keeps only what cannot be had cheaply again, adds weight gradients in place over
blocks of rows, and meets each tensor while it is in the processor's cache.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple, cast, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fractionate.models.attention import Padding
from fractionate.models.parts import Parts


@final
@dataclass(frozen=True)
class Row:
    """One text of a block.

    Attributes:
        start: Its first token in the block.
        stop: One behind its last token.
        wanted: Hidden states asked for, the last ones of the row.
    """

    start: int
    stop: int
    wanted: int


@final
@dataclass(frozen=True)
class Block:
    """Rows that go through a layer together.

    Attributes:
        rows: One behind the other, from token 0 of the block.
    """

    rows: tuple[Row, ...]

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return self.rows[-1].stop

    @cached_property
    def wanted(self) -> Tensor:
        """Tokens of the block whose hidden states are asked for."""
        return torch.cat([torch.arange(row.stop - row.wanted, row.stop) for row in self.rows])

    def padding(self, *, trimmed: bool) -> Padding:
        """How its rows are padded for attention of all tokens, or of the wanted ones."""
        return self._trimmed if trimmed else self._whole

    @cached_property
    def _whole(self) -> Padding:
        lengths = [row.stop - row.start for row in self.rows]
        return Padding.of(lengths, lengths)

    @cached_property
    def _trimmed(self) -> Padding:
        lengths = [row.stop - row.start for row in self.rows]
        return Padding.of(lengths, [row.wanted for row in self.rows])


Linear = tuple[Tensor, Tensor | None]
"""Weight and bias."""


@final
@dataclass(frozen=True)
class Parameters:
    """The parameters of a layer, as the transformers module names them."""

    attention_norm: Tensor
    mlp_norm: Tensor
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    gate: Linear
    up: Linear
    down: Linear

    def flat(self) -> tuple[Tensor | None, ...]:
        """All of them one after the other."""
        values = (getattr(self, field.name) for field in fields(self))
        return tuple(t for v in values for t in (v if isinstance(v, tuple) else (v,)))

    @classmethod
    def of(cls, flat: tuple[Tensor, ...]) -> "Parameters":
        """The reverse of `flat`."""
        pairs = zip(flat[2::2], flat[3::2], strict=True)
        return cls(flat[0], flat[1], *pairs)


@final
@dataclass(frozen=True)
class Frame:
    """What a layer knows besides its input and its parameters.

    Attributes:
        blocks: The rows, in the order of the tokens.
        cos: Cosine of every token's position, [tokens, 1, head_dim].
        sin: Sine of every token's position, [tokens, 1, head_dim].
        head_dim: Width of a head.
        epsilon: Of the norms.
        trimmed: Whether only the wanted tokens come out.
        checkpoint: Whether the backward pass computes the layer again.
        parts: What computes all that is no product with weights.
    """

    blocks: list[Block]
    cos: Tensor
    sin: Tensor
    head_dim: int
    epsilon: float
    trimmed: bool
    checkpoint: bool
    parts: Parts


def run_layer(x: Tensor, frame: Frame, parameters: Parameters) -> Tensor:
    """The layer's output at all tokens [tokens, hidden], or at the wanted ones if trimmed."""
    return cast(Tensor, _apply(x, frame, *parameters.flat()))


class _Kept(NamedTuple):
    """What a block keeps for its backward pass."""

    q: Tensor
    k: Tensor
    v: Tensor
    attended: Tensor
    middle: Tensor
    gate: Tensor
    up: Tensor


class _Part(NamedTuple):
    """A block's input and positions, and which of its tokens go on to the output."""

    x: Tensor
    cos: Tensor
    sin: Tensor
    padding: Padding
    chosen: Tensor | None

    def choose(self, x: Tensor) -> Tensor:
        return x if self.chosen is None else x[self.chosen]


def _parts(frame: Frame, x: Tensor) -> list[_Part]:
    sizes = [block.tokens for block in frame.blocks]
    split = zip(x.split(sizes), frame.cos.split(sizes), frame.sin.split(sizes), strict=True)
    return [
        _Part(
            *tensors,
            block.padding(trimmed=frame.trimmed),
            block.wanted if frame.trimmed else None,
        )
        for tensors, block in zip(split, frame.blocks, strict=True)
    ]


def _linear(x: Tensor, linear: Linear) -> Tensor:
    return functional.linear(x, *linear)


def _added(x: Tensor, y: Tensor, linear: Linear) -> Tensor:
    """X plus a linear map of y."""
    weight, bias = linear
    total = torch.addmm(x, y, weight.t())
    return total if bias is None else total.add_(bias)


def _forward(part: _Part, w: Parameters, frame: Frame) -> tuple[Tensor, _Kept]:
    """A block through the layer."""
    shape, epsilon, parts = (-1, frame.head_dim), frame.epsilon, frame.parts
    h = parts.norm(part.x, w.attention_norm, epsilon).values
    q = _linear(part.choose(h), w.q).unflatten(1, shape)
    k, v = (_linear(h, linear).unflatten(1, shape) for linear in (w.k, w.v))
    q = parts.rotated(q, part.choose(part.cos), part.choose(part.sin))
    k = parts.rotated(k, part.cos, part.sin)
    attended = parts.attend(q, k, v, part.padding)
    middle = _added(part.choose(part.x), attended, w.o)
    h = parts.norm(middle, w.mlp_norm, epsilon).values
    gate, up = _linear(h, w.gate), _linear(h, w.up)
    out = _added(middle, parts.gated(gate, up), w.down)
    return out, _Kept(q, k, v, attended, middle, gate, up)


@final
class _Sums:
    """Gradients of the parameters that ask for one, added up over blocks."""

    def __init__(self, parameters: Parameters, wanted: tuple[bool, ...]) -> None:
        self._given = parameters.flat()
        self._sums: list[Tensor | None] = [
            torch.zeros_like(t, dtype=torch.promote_types(t.dtype, torch.float32))
            if t is not None and ask
            else None
            for t, ask in zip(self._given, wanted, strict=True)
        ]
        names = [field.name for field in fields(parameters)]
        self._at = {name: max(index, 2 * index - 2) for index, name in enumerate(names)}

    def norm(self, name: str, gradient: Tensor) -> None:
        """Add to the gradient of a norm's weight."""
        total = self._sums[self._at[name]]
        if total is not None:
            total.add_(gradient)

    def linear(self, name: str, above: Tensor, x: Tensor) -> None:
        """Add to the gradients of a linear map with input x."""
        index = self._at[name]
        weight, bias = self._sums[index], self._sums[index + 1]
        if weight is not None and weight.dtype == x.dtype:
            torch.addmm(weight, above.t(), x, out=weight)
        elif weight is not None:  # a 16-bit product, summed without further rounding
            weight.add_(above.t() @ x)
        if bias is not None:
            bias.add_(above.sum(0, dtype=bias.dtype))

    def finished(self) -> list[Tensor | None]:
        """In the dtypes of the parameters."""
        return [
            total if total is None or given is None else total.to(given.dtype)
            for total, given in zip(self._sums, self._given, strict=True)
        ]


def _mlp_backward(above: Tensor, kept: _Kept, w: Parameters, frame: Frame, sums: _Sums) -> Tensor:
    """Gradient to the middle of the layer, the residual included."""
    parts = frame.parts
    normed = parts.norm(kept.middle, w.mlp_norm, frame.epsilon)
    inner = above @ w.down[0]
    activated, for_gate, for_up = parts.gated_backward(inner, kept.gate, kept.up)
    sums.linear("down", above, activated)
    sums.linear("gate", for_gate, normed.values)
    sums.linear("up", for_up, normed.values)
    for_h = torch.addmm(for_gate @ w.gate[0], for_up, w.up[0])
    gradient, for_weight = parts.norm_backward(for_h, normed, above)
    sums.norm("mlp_norm", for_weight)
    return gradient


def _attention_backward(
    above: Tensor, part: _Part, kept: _Kept, w: Parameters, parts: Parts, sums: _Sums
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients to queries, keys and values as the linear maps gave them, heads side by side."""
    sums.linear("o", above, kept.attended)
    upstream = above @ w.o[0]
    for_q, for_k, for_v = parts.attend_backward(upstream, kept.q, kept.k, kept.v, part.padding)
    for_q = parts.rotated(for_q, part.choose(part.cos), part.choose(part.sin), back=True)
    for_k = parts.rotated(for_k, part.cos, part.sin, back=True)
    return for_q.flatten(1), for_k.flatten(1), for_v.flatten(1)


def _backward(
    above: Tensor, part: _Part, kept: _Kept, w: Parameters, frame: Frame, sums: _Sums
) -> Tensor:
    """Gradient to the block's input; those of the parameters are added to `sums`."""
    parts = frame.parts
    middle = _mlp_backward(above, kept, w, frame, sums)
    for_q, for_k, for_v = _attention_backward(middle, part, kept, w, parts, sums)
    normed = parts.norm(part.x, w.attention_norm, frame.epsilon)
    sums.linear("q", for_q, part.choose(normed.values))
    sums.linear("k", for_k, normed.values)
    sums.linear("v", for_v, normed.values)
    for_h = torch.addmm(for_k @ w.k[0], for_v, w.v[0])
    if part.chosen is None:
        for_h = torch.addmm(for_h, for_q, w.q[0], out=for_h)
    else:
        for_h.index_add_(0, part.chosen, for_q @ w.q[0])
    beside = middle if part.chosen is None else None
    gradient, for_weight = parts.norm_backward(for_h, normed, beside)
    sums.norm("attention_norm", for_weight)
    return gradient if part.chosen is None else gradient.index_add_(0, part.chosen, middle)


class _PackedLayer(torch.autograd.Function):
    """Autograd around `_forward` and `_backward`, block by block."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, frame: Frame, *flat: Tensor) -> Tensor:
        w = Parameters.of(flat)
        outs: list[Tensor] = []
        ctx.frame, ctx.kept = frame, []
        keep = any(ctx.needs_input_grad) and not frame.checkpoint
        for part in _parts(frame, x):
            out, kept = _forward(part, w, frame)
            outs.append(out)
            ctx.kept.append(kept if keep else None)
        ctx.save_for_backward(x, *flat)
        return torch.cat(outs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] - the decorator hides the names
        x, *flat = ctx.saved_tensors
        frame: Frame = ctx.frame
        w = Parameters.of(tuple(flat))
        sums = _Sums(w, ctx.needs_input_grad[2:])
        parts = _parts(frame, x)
        heights = [len(part.padding.query_places) for part in parts]
        gradients: list[Tensor] = []
        for index, (part, own) in enumerate(zip(parts, above.split(heights), strict=True)):
            kept = ctx.kept[index] or _forward(part, w, frame)[1]
            ctx.kept[index] = None
            gradients.append(_backward(own, part, kept, w, frame, sums))
        return (torch.cat(gradients), None, *sums.finished())


_apply = cast(
    Callable[..., Tensor],
    _PackedLayer.apply,  # pyright: ignore[reportUnknownMemberType] - torch leaves it untyped
)
