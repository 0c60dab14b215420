"""The model in training: which tensors compute, which are stored, which take the updates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from fractionate.config import Optimizer
from fractionate.models.load import LanguageModel

DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class NonFiniteUpdateError(RuntimeError):
    """Loss or gradient is NaN or infinite; the weights were not touched."""


@dataclass(frozen=True)
class Update:
    """What one update did.

    Attributes:
        grad_norm: Global L2 norm before clipping, accumulated in float32.
        clip_coefficient: Factor applied to the gradient; 1 if clipping did not bind.
    """

    grad_norm: float
    clip_coefficient: float


def learning_rate(step: int, optimizer: Optimizer) -> float:
    """Rate of update number `step`, counted from 0: linear warm-up from 0, then constant.

    As in the Hugging Face schedule the first update has rate 0 when there is a warm-up.
    """
    if step < optimizer.warmup:
        return optimizer.lr * step / optimizer.warmup
    return optimizer.lr


class Student:
    """A language model with its optimizer, in declared precisions.

    Three roles, which one tensor may share: `module` computes (in `compute_dtype`), the stored
    weights are the model (in `param_dtype`), and the updated weights take Adam's steps (a float32
    master copy, or the stored weights themselves). In the paper's likely setting all three are one
    bfloat16 tensor, so an update below half a spacing is lost.
    """

    def __init__(self, model: LanguageModel, optimizer: Optimizer) -> None:
        """Take over the model's module; its weights are rounded to `param_dtype` once."""
        self.model = model
        self.optimizer = optimizer
        stored_dtype, compute_dtype = (
            DTYPES[optimizer.param_dtype],
            DTYPES[optimizer.compute_dtype],
        )
        updated_dtype = torch.float32 if optimizer.master_weights == "float32" else stored_dtype
        # No dropout: the law that is scored is the law that sampled.
        cast(torch.nn.Module, model.module).to(compute_dtype).eval()
        self._compute = {n: p for n, p in model.module.named_parameters() if p.requires_grad}
        self._updated: dict[str, Tensor] = {}
        for name, parameter in self._compute.items():
            stored = parameter.detach().to(stored_dtype)
            parameter.data.copy_(stored)
            same = updated_dtype == compute_dtype == stored_dtype
            self._updated[name] = parameter.data if same else stored.to(updated_dtype)
        self._adam = torch.optim.AdamW(
            list(self._updated.values()),
            lr=0.0,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )

    @property
    def product_dtype(self) -> torch.dtype | None:
        """Of the loss's products of hidden states and heads; none forms them exactly."""
        return torch.bfloat16 if self.optimizer.logits_dtype == "bfloat16" else None

    def weights(self) -> dict[str, Tensor]:
        """The stored weights: what a checkpoint holds and what is evaluated."""
        dtype = DTYPES[self.optimizer.param_dtype]
        return {name: tensor.detach().to(dtype) for name, tensor in self._updated.items()}

    def update(self, lr: float) -> Update:
        """Apply the accumulated gradient once and clear it.

        Raises:
            NonFiniteUpdateError: The gradient norm is NaN or infinite, and nothing was changed; or
                the update left a weight that is.
        """
        gradients = {n: p.grad for n, p in self._compute.items() if p.grad is not None}
        norm = float(_global_norm(list(gradients.values())))
        clip = self.optimizer.clip
        if not norm < float("inf"):
            clipping = ", set optimizer.clip" if clip is None else ""
            raise NonFiniteUpdateError(
                f"the gradient norm is {norm} at learning rate {lr:g}. Lower optimizer.lr"
                f"{clipping}, or look at the last records of this cell"
            )
        coefficient = 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))
        for name in list(gradients):  # in place or one by one: no second copy of all is ever held
            gradient, tensor = gradients.pop(name), self._updated[name]
            tensor.grad = (gradient.mul_(coefficient) if coefficient < 1 else gradient).to(
                tensor.dtype
            )
            self._compute[name].grad = None
        for group in self._adam.param_groups:
            group["lr"] = lr
        self._adam.step()
        self._write_back()
        if not all(_all_finite(tensor) for tensor in self._updated.values()):
            raise NonFiniteUpdateError(
                f"the update at learning rate {lr:g} made a weight infinite or NaN. Lower "
                "optimizer.lr"
            )
        return Update(grad_norm=norm, clip_coefficient=coefficient)

    def _write_back(self) -> None:
        stored_dtype = DTYPES[self.optimizer.param_dtype]
        for name, parameter in self._compute.items():
            updated = self._updated[name]
            updated.grad = None
            if updated is not parameter.data and updated.data_ptr() != parameter.data_ptr():
                parameter.data.copy_(updated.to(stored_dtype))

    def state(self) -> dict[str, Tensor]:
        """Everything a bit-exact resume needs, as named tensors."""
        state = {f"updated.{name}": tensor for name, tensor in self._updated.items()}
        for name, tensor in self._updated.items():
            for key, value in self._adam.state.get(tensor, {}).items():
                state[f"adam.{key}.{name}"] = value
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state()` of an earlier process."""
        for name, tensor in self._updated.items():
            tensor.copy_(state[f"updated.{name}"])
            self._adam.state[tensor] = {
                key: state[f"adam.{key}.{name}"].clone()
                for key in ("step", "exp_avg", "exp_avg_sq")
                if f"adam.{key}.{name}" in state
            }
        self._write_back()


def _all_finite(tensor: Tensor) -> bool:
    """Whether no number is infinite or NaN, without a temporary of the tensor's size."""
    low, high = torch.aminmax(tensor)
    return bool(torch.isfinite(low) & torch.isfinite(high))


def _global_norm(gradients: list[Tensor]) -> Tensor:
    if not gradients:
        return torch.zeros(())
    norms = [torch.linalg.vector_norm(g, dtype=torch.float32) for g in gradients]
    return torch.linalg.vector_norm(torch.stack(norms))
