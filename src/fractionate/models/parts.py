"""What a layer computes besides its products with weights: norm, gate, positions, attention.

Two ways to compute it: here by torch, in any dtype; in `models.native.parts` by a kernel in C that
walks over each row once. They differ by rounding.
"""

from typing import NamedTuple, Protocol, final

import torch
from torch import Tensor
from torch.nn import functional

from fractionate.models.attention import Padding, attend, attend_backward


class Normed(NamedTuple):
    """A norm with what its backward pass needs.

    Attributes:
        values: The result.
        x: What was normalised.
        weight: Of the norm.
        epsilon: Of the norm.
        unit: The result without the weight, where it was formed.
        factor: Of each row, wide, where it was formed.
    """

    values: Tensor
    x: Tensor
    weight: Tensor
    epsilon: float
    unit: Tensor | None = None
    factor: Tensor | None = None


class Parts(Protocol):
    """Forward and backward of each part; rows are tokens. What is given for writing says so."""

    def norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Normed:
        """RMSNorm."""
        ...

    def norm_backward(
        self, gradient: Tensor, normed: Normed, beside: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Gradients to the input, plus `beside` where there is one, and to the weight, wide."""
        ...

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """SiLU of gate, times up."""
        ...

    def gated_backward(
        self, gradient: Tensor, gate: Tensor, up: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The result again, and gradients to gate and up; overwrites `gradient`."""
        ...

    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor, *, back: bool = False) -> Tensor:
        """Rotary positions of [tokens, heads, dim], or the way back; may overwrite x."""
        ...

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding: Padding) -> Tensor:
        """See `models.attention.attend`."""
        ...

    def attend_backward(
        self, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, padding: Padding
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `models.attention.attend_backward`."""
        ...


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """As transformers has it: in at least float32 inside, rounded before the weight."""
    return _normalised(x, epsilon)[0] * weight


def _normalised(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The norm without its weight, in the dtype of x, and the factor of each row, wide."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    factor = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return (wide * factor).to(x.dtype), factor


@final
class TorchParts:
    """The parts by torch: see `Parts`."""

    def norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Normed:  # noqa: D102
        unit, factor = _normalised(x, epsilon)
        return Normed(unit * weight, x, weight, epsilon, unit, factor)

    def norm_backward(  # noqa: D102
        self, gradient: Tensor, normed: Normed, beside: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        dtype, factor = gradient.dtype, normed.factor
        assert factor is not None
        assert normed.unit is not None
        unit, gradient = normed.unit.to(factor.dtype), gradient.to(factor.dtype)
        product = gradient * unit
        inner = torch.mv(product, normed.weight.to(factor.dtype)).div_(unit.shape[-1])
        for_input = (gradient * normed.weight).addcmul_(unit, inner[:, None], value=-1)
        for_input = for_input.mul_(factor).to(dtype)
        return for_input if beside is None else for_input.add_(beside), product.sum(0)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:  # noqa: D102
        return functional.silu(gate).mul_(up)

    def gated_backward(  # noqa: D102
        self, gradient: Tensor, gate: Tensor, up: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        activated = functional.silu(gate)
        product = activated * up
        for_up = activated.mul_(gradient)
        for_gate = torch.ops.aten.silu_backward(gradient.mul_(up), gate)
        return product, for_gate, for_up

    def rotated(  # noqa: D102
        self, x: Tensor, cos: Tensor, sin: Tensor, *, back: bool = False
    ) -> Tensor:
        left, right = x.chunk(2, -1)
        half = left.shape[-1]
        turned = torch.cat([right, left], -1)
        turned[..., :half].neg_()
        return turned.mul_(-sin if back else sin).addcmul_(x, cos)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding: Padding) -> Tensor:  # noqa: D102
        return attend(q, k, v, padding)

    def attend_backward(  # noqa: D102
        self, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, padding: Padding
    ) -> tuple[Tensor, Tensor, Tensor]:
        return attend_backward(gradient, q, k, v, padding)
