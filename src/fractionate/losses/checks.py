"""Argument checks shared by the losses: each raises one `ValueError` that names the argument."""

import math
from collections.abc import Iterable
from typing import TypeAlias

import torch
from jaxtyping import Bool, Num
from torch import Tensor

Real = float | int
"""A real number; whole numbers are welcome wherever a float is."""
Mask: TypeAlias = Bool[Tensor, "rows columns"] | Num[Tensor, "rows columns"]
"""True or 1 where a token counts, False or 0 elsewhere; `as_mask` makes it boolean."""


def one_of(name: str, value: str, allowed: Iterable[str]) -> str:
    """`value`, if it is one of `allowed`.

    Raises:
        ValueError: it is not.
    """
    choices = tuple(allowed)
    if value not in choices:
        raise ValueError(f"{name}={value!r} is unknown: choose one of {', '.join(choices)}")
    return value


def share(name: str, value: Real) -> float:
    """`value` as a float, if it lies in [0, 1].

    Raises:
        ValueError: it does not.
    """
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value} must lie in [0, 1]")
    return float(value)


def positive(name: str, value: Real) -> float:
    """`value` as a float, if it is above 0 and finite.

    Raises:
        ValueError: it is not.
    """
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}={value} must be a finite number above 0")
    return float(value)


def not_nan(name: str, value: Real) -> float:
    """`value` as a float, if it is a number.

    Raises:
        ValueError: it is NaN.
    """
    if math.isnan(value):
        raise ValueError(f"{name} is NaN: give a number")
    return float(value)


def as_mask(mask: Tensor, **beside: Tensor) -> Tensor:
    """`mask` as booleans, if it holds nothing but 0 and 1 and fits the tensors it stands beside.

    Raises:
        ValueError: another value (with its position), or a tensor of another shape: nothing is
            broadcast.
    """
    equal_shapes(mask=mask, **beside)
    if mask.dtype == torch.bool:
        return mask
    odd = torch.nonzero((mask != 0) & (mask != 1))
    if len(odd):
        position = tuple(int(index) for index in odd[0])
        raise ValueError(
            f"mask holds {mask[position].item()} at position {position}: give booleans, or 0 and 1"
        )
    return mask.bool()


def equal_shapes(**tensors: Tensor) -> None:
    """Nothing, if all tensors have one shape.

    Raises:
        ValueError: names the first pair that differs; nothing is broadcast.
    """
    (first, reference), *others = tensors.items()
    for name, tensor in others:
        if tensor.shape != reference.shape:
            raise ValueError(
                f"{first} {tuple(reference.shape)} and {name} {tuple(tensor.shape)} must have one "
                "shape: nothing is broadcast"
            )


def vocabulary_axis(name: str, tensor: Tensor) -> None:
    """Nothing, if the tensor has a last dimension to hold the vocabulary.

    Raises:
        ValueError: it is a single number.
    """
    if tensor.ndim == 0:
        raise ValueError(f"{name} is a single number: a vocabulary axis is needed, [..., V]")


def same_shape(teacher: Tensor, student: Tensor) -> None:
    """Nothing, if both laws have one shape.

    Raises:
        ValueError: a vocabulary axis is missing, or the widths or the leading dimensions differ;
            nothing is broadcast or cut.
    """
    vocabulary_axis("teacher", teacher)
    vocabulary_axis("student", student)
    if teacher.shape[-1] != student.shape[-1]:
        raise ValueError(
            f"teacher has {teacher.shape[-1]} vocabulary entries and student "
            f"{student.shape[-1]}: slice both logits with log_probs(..., vocab_size=...)"
        )
    if teacher.shape != student.shape:
        raise ValueError(
            f"teacher {tuple(teacher.shape)} and student {tuple(student.shape)} must agree "
            "in every dimension: nothing is broadcast"
        )
