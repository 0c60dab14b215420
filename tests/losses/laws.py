"""Laws and gradients that several tests of the losses share."""

from collections.abc import Callable

import torch
from torch import Tensor

from cases import EXAMPLES, PAIRS
from fractionate.losses import entropy_aware, forward_kl, jsd, log_probs, mixed_kl, reverse_kl

Divergence = Callable[..., Tensor]

DIVERGENCES: dict[str, Divergence] = {
    "forward": forward_kl,
    "reverse": reverse_kl,
    "jsd_0.1": lambda **laws: jsd(**laws, beta=0.1),
    "jsd_0.5": lambda **laws: jsd(**laws, beta=0.5),
    "mixed_0.25": lambda **laws: mixed_kl(**laws, reverse_weight=0.25),
    "entropy_aware_0.5": lambda **laws: entropy_aware(**laws, threshold=0.5),
}
"""Every divergence, at parameters inside its range: the rows of the contract suite."""

FUSED: dict[str, tuple[str, float | None]] = {
    "forward": ("forward", None),
    "reverse": ("reverse", None),
    "jsd_0.1": ("jsd", 0.1),
    "jsd_0.5": ("jsd", 0.5),
    "mixed_0.25": ("mixed", 0.25),
    "entropy_aware_0.5": ("entropy_aware", 0.5),
}
"""The same rows as (kind, parameter) of `linear_divergence`."""


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def law(*probabilities: float) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def example_a() -> dict[str, Tensor]:
    return {"teacher_log_probs": law(*EXAMPLES["p"]), "student_log_probs": law(*EXAMPLES["q"])}


def pair(name: str, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """(student logits, teacher logits) of a pair of the bug reports."""
    numbers = PAIRS[name]
    return (
        torch.tensor(numbers["student_logits"], dtype=dtype),
        torch.tensor(numbers["teacher_logits"], dtype=dtype),
    )


def of_logits(divergence: Divergence, student: Tensor, teacher: Tensor) -> Tensor:
    """A divergence of two logit tensors at temperature 1."""
    laws = {"teacher_log_probs": log_probs(teacher), "student_log_probs": log_probs(student)}
    return divergence(**laws)


def logit_gradient(divergence: Divergence, student: Tensor, teacher: Tensor) -> Tensor:
    leaf = student.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(of_logits(divergence, leaf, teacher).sum(), leaf)
    return gradient


def expected_gradient(
    loss: Callable[[Tensor, Tensor], Tensor], student: Tensor, teacher: Tensor, drawn: Tensor
) -> Tensor:
    """Logit gradient of sum_v drawn_v loss(log q_v, log p_v): an expectation by enumeration."""
    leaf = student.detach().clone().requires_grad_()
    per_token = loss(log_probs(leaf), log_probs(teacher))
    (gradient,) = torch.autograd.grad((drawn.detach() * per_token).sum(), leaf)
    return gradient


def numbers(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
