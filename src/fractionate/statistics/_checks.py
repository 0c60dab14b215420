"""Validation and labels that every statistic shares; errors name the argument and the mend."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Label = Hashable


def vector(values: ArrayLike, name: str, *, least: int = 1) -> FloatArray:
    """`values` as a finite float64 array [n] with n >= `least`.

    Raises:
        ValueError: not one-dimensional, too short, or with a NaN or an infinity.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} has {array.ndim} axes; give a flat sequence of numbers")
    if array.size < least:
        raise ValueError(f"{name} has {array.size} values; at least {least} are needed")
    return finite(array, name)


def finite(array: FloatArray, name: str) -> FloatArray:
    """`array` itself, if every element is finite.

    Raises:
        ValueError: with the number and the first flat index of the offending elements.
    """
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        raise ValueError(
            f"{name} has {bad.size} values that are NaN or infinite (first at index {bad[0]}); "
            "leave them out on purpose or score them: a collapsed run is data, not missing"
        )
    return array


def counts(values: ArrayLike, name: str) -> IntArray:
    """`values` as non-negative integers of any shape; integral floats are accepted.

    Raises:
        ValueError: a fraction (often a rate where a count is meant), a NaN or a negative number.
    """
    array = np.asarray(values)
    floats = array.astype(np.float64)
    if not np.all(np.isfinite(floats)) or np.any(floats != np.floor(floats)):
        raise ValueError(f"{name} must be whole counts, not rates: got {values!r}")
    if np.any(floats < 0):
        raise ValueError(f"{name} must not be negative: got {values!r}")
    return array.astype(np.int64)


def open_unit(value: float, name: str) -> float:
    """`value`, if it lies strictly between 0 and 1 (a confidence, an alpha, a power).

    Raises:
        ValueError: otherwise.
    """
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value!r}")
    return value


def positive(value: float, name: str) -> float:
    """`value`, if it is finite and greater than 0.

    Raises:
        ValueError: otherwise.
    """
    if not (np.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a positive finite number, got {value!r}")
    return value


def rounding_floor(centred: FloatArray, scale: float) -> float:
    """A sum of squares below this is rounding: [n] values of magnitude `scale`, squared unit."""
    return centred.size * float((64 * np.finfo(np.float64).eps * scale) ** 2)


def labels(values: Iterable[Any], name: str, n: int) -> tuple[Label, ...]:
    """The labels of one column as plain Python objects, one per observation.

    Raises:
        ValueError: another length than `n`, or a missing label (None or NaN).
    """
    column = tuple(v.item() if isinstance(v, np.generic) else v for v in values)
    if len(column) != n:
        raise ValueError(f"column {name!r} has {len(column)} labels for {n} observations")
    if any(v is None or v != v for v in column):
        raise ValueError(f"column {name!r} has missing labels; name every level")
    return column


def level_order(
    column: Sequence[Label], name: str, given: Mapping[str, Sequence[Label]] | None
) -> tuple[Label, ...]:
    """The levels of a factor in order: as `given`, else sorted.

    Raises:
        ValueError: fewer than two levels, levels that cannot be sorted, or `given` levels that
            are not exactly the observed ones.
    """
    observed = set(column)
    if len(observed) < 2:
        only = next(iter(observed), None)
        raise ValueError(f"factor {name!r} has a single level ({only!r}); leave it out")
    if given is not None and name in given:
        ordered = tuple(given[name])
        if set(ordered) != observed or len(ordered) != len(observed):
            raise ValueError(
                f"levels of factor {name!r} are given as {list(ordered)!r}, "
                f"but the data hold {sorted(observed, key=repr)!r}"
            )
        return ordered
    try:
        return tuple(sorted(observed))  # pyright: ignore[reportArgumentType] - caught below
    except TypeError as error:
        raise ValueError(
            f"levels of factor {name!r} cannot be sorted ({sorted(observed, key=repr)!r}); "
            "give their order in `levels`"
        ) from error


def factor_columns(
    factors: Mapping[str, Iterable[Any]], n: int, what: str = "factors"
) -> dict[str, tuple[Label, ...]]:
    """Every column of `factors`, checked, in the order of the mapping.

    Raises:
        ValueError: no column, a name with ":" (it joins the names of an interaction), or a column
            of the wrong length.
    """
    if not factors:
        raise ValueError(f"{what} is empty; name at least one column")
    for name in factors:
        if ":" in name:
            raise ValueError(f"the name {name!r} must not contain ':', which joins interactions")
    return {name: labels(column, name, n) for name, column in factors.items()}
