"""The matrix products of the fused loss: logits in, gradients out, a block of the vocabulary each.

Blocks of a head are copied into a buffer that stays in the processor's cache: one fast stream from
memory, and the place where a narrower dtype is widened, so no copy of a whole head is ever held.
"""

from dataclasses import dataclass, fields
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True)
class Operands:
    """The four operands as given, and the dtype in which logits are formed."""

    student_hidden: Tensor
    student_head: Tensor
    teacher_hidden: Tensor
    teacher_head: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """The widest of all, at least float32."""
        dtype = torch.float32
        for field in fields(self):
            dtype = torch.promote_types(dtype, getattr(self, field.name).dtype)
        return dtype


@final
@dataclass(frozen=True)
class Span:
    """Positions `start..stop` at the tokens `low..high`."""

    start: int
    stop: int
    low: int
    high: int


@final
class Factor:
    """One law as hidden states and head, in the dtype of the products."""

    def __init__(self, hidden: Tensor, head: Tensor, scale: float, dtype: torch.dtype) -> None:
        """Bind hidden states `[N, H]`, a head `[V, H]` cut to the vocabulary, and 1 / T."""
        self.hidden = hidden.to(dtype)
        self.scale = scale
        self._head = head
        self._dtype = dtype
        self._cached = hidden.new_empty(0, dtype=dtype)

    def block(self, low: int, high: int) -> Tensor:
        """Rows `low..high` of the head; valid until the next call."""
        block = self._head[low:high]
        if block.dtype == self._dtype and (
            len(block) == len(self._head) or block.device.type != "cpu"
        ):
            return block
        if len(self._cached) < len(block):
            self._cached = self.hidden.new_empty(block.shape)
        return self._cached[: len(block)].copy_(block)

    def logits(self, span: Span, out: Tensor) -> Tensor:
        """Logits over temperature of a span into `out`, whose dtype they are formed in."""
        hidden, head = self.hidden[span.start : span.stop], self.block(span.low, span.high)
        if out.dtype == self._dtype:
            return torch.addmm(out, hidden, head.t(), beta=0, alpha=self.scale, out=out)
        return out.copy_(torch.mm(hidden, head.t())).mul_(self.scale)


@final
class Gradients:
    """Gradients of the weighted sum, gathered block by block; None where nobody asks."""

    def __init__(
        self, student: Factor, given: Operands, scaled: Tensor, wanted: tuple[bool, bool]
    ) -> None:
        """Bind the student's factor and the weights `[N]`, temperature included."""
        self._student, self._given = student, given
        self.like = scaled
        self._scale = scaled.unsqueeze(-1)
        unused = self._scale == 0  # NaN times 0 would stay NaN
        self._unused = unused if bool(unused.any()) else None
        shapes = given.student_hidden.shape, given.student_head.shape
        self.hidden = scaled.new_empty(shapes[0]) if wanted[0] else None
        self.head = scaled.new_zeros(shapes[1]) if wanted[1] else None

    @property
    def wanted(self) -> bool:
        """Whether anybody asks for a gradient."""
        return self.hidden is not None or self.head is not None

    def add(self, span: Span, logit_gradient: Tensor) -> None:
        """Take in the unweighted logit gradient of a span, which is consumed; `low` = 0 first."""
        rows = slice(span.start, span.stop)
        gradient, hidden = logit_gradient.mul_(self._scale[rows]), self._student.hidden[rows]
        if self._unused is not None:
            gradient.masked_fill_(self._unused[rows], 0)
            hidden = hidden.masked_fill(self._unused[rows], 0)
        gradient = gradient.to(hidden.dtype)
        if self.hidden is not None:
            head = self._student.block(span.low, span.high)
            _add_product(self.hidden[rows], gradient, head, fresh=span.low == 0)
        if self.head is not None:
            _add_product(self.head[span.low : span.high], gradient.t(), hidden, fresh=False)

    def finished(self) -> tuple[Tensor | None, Tensor | None]:
        """Both gradients in the dtypes of what they belong to."""
        hidden, head = self.hidden, self.head
        return (
            None if hidden is None else hidden.to(self._given.student_hidden.dtype),
            None if head is None else head.to(self._given.student_head.dtype),
        )


def _add_product(total: Tensor, left: Tensor, right: Tensor, *, fresh: bool) -> None:
    """Total += left @ right, or = if fresh: products in the factors' dtype, sums in the total's."""
    if left.dtype == total.dtype:
        torch.addmm(total, left, right, beta=0 if fresh else 1, out=total)
    elif fresh:
        total.copy_(torch.mm(left, right))
    else:
        total.add_(torch.mm(left, right))
