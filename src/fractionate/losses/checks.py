"""Argument checks shared by the losses: each raises one `ValueError` that names the argument."""

from collections.abc import Iterable

from torch import Tensor

Real = float | int
"""A real number; whole numbers are welcome wherever a float is."""


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


def same_shape(teacher: Tensor, student: Tensor) -> None:
    """Nothing, if both laws have one shape.

    Raises:
        ValueError: the widths or the leading dimensions differ; nothing is broadcast or cut.
    """
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
