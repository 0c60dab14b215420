"""The parts of a layer by the native kernel: `layer.c`, in float32."""

from typing import Final, final

import torch
from torch import Tensor

from fractionate.models.attention import Padding
from fractionate.models.native.compiler import library
from fractionate.models.parts import Normed

_BACK: Final = -1.0


@final
class NativeParts:
    """The parts by the kernel: see `models.parts.Parts`. Every tensor is float32, on the CPU."""

    def __init__(self) -> None:
        """Compile the kernel, unless this process has done so.

        Raises:
            KernelError: There is no compiler, or it fails.
        """
        self._library = library()

    def norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Normed:  # noqa: D102
        x, weight, out = x.contiguous(), weight.contiguous(), torch.empty_like(x)
        self._library.norm_rows(*x.shape, x.data_ptr(), weight.data_ptr(), epsilon, out.data_ptr())
        return Normed(out, x, weight, epsilon)

    def norm_backward(  # noqa: D102
        self, gradient: Tensor, normed: Normed, beside: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        gradient = gradient.contiguous()
        beside = None if beside is None else beside.contiguous()
        out, for_weight = torch.empty_like(gradient), torch.zeros_like(normed.weight)
        self._library.norm_rows_backward(
            *gradient.shape,
            gradient.data_ptr(),
            normed.x.data_ptr(),
            normed.weight.data_ptr(),
            normed.epsilon,
            None if beside is None else beside.data_ptr(),
            out.data_ptr(),
            for_weight.data_ptr(),
        )
        return out, for_weight

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:  # noqa: D102
        out = torch.empty_like(gate)
        self._library.gate_values(gate.numel(), gate.data_ptr(), up.data_ptr(), out.data_ptr())
        return out

    def gated_backward(  # noqa: D102
        self, gradient: Tensor, gate: Tensor, up: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        product, for_gate = torch.empty_like(gate), torch.empty_like(gate)
        self._library.gate_values_backward(
            gate.numel(),
            gradient.data_ptr(),
            gate.data_ptr(),
            up.data_ptr(),
            product.data_ptr(),
            for_gate.data_ptr(),
            gradient.data_ptr(),
        )
        return product, for_gate, gradient

    def rotated(  # noqa: D102
        self, x: Tensor, cos: Tensor, sin: Tensor, *, back: bool = False
    ) -> Tensor:
        cos, sin, sign = cos.contiguous(), sin.contiguous(), _BACK if back else 1.0
        self._library.rotate_rows(*x.shape, x.data_ptr(), cos.data_ptr(), sin.data_ptr(), sign)
        return x

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding: Padding) -> Tensor:  # noqa: D102
        out, heads, size = torch.empty_like(q), q.shape[1], q.shape[2]
        tensors = (q, k, v, out, self._space(padding, size))  # held while the kernel works
        self._library.attend_rows(
            len(padding.texts),
            padding.texts.data_ptr(),
            heads,
            k.shape[1],
            size,
            *(tensor.data_ptr() for tensor in tensors),
        )
        return out.flatten(1)

    def attend_backward(  # noqa: D102
        self, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, padding: Padding
    ) -> tuple[Tensor, Tensor, Tensor]:
        gradient, heads, size = gradient.contiguous(), q.shape[1], q.shape[2]
        found = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        tensors = (gradient, q, k, v, *found, self._space(padding, size))
        self._library.attend_rows_backward(
            len(padding.texts),
            padding.texts.data_ptr(),
            heads,
            k.shape[1],
            size,
            *(tensor.data_ptr() for tensor in tensors),
        )
        return found

    def _space(self, padding: Padding, size: int) -> Tensor:
        return torch.empty(self._library.attention_space(padding.keys.shape[1], size))
