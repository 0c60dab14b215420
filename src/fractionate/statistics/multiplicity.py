"""Adjusted p-values for families of tests: Holm for the primary, Benjamini-Hochberg elsewhere."""

import numpy as np
from numpy.typing import ArrayLike

from fractionate.statistics._checks import FloatArray, vector


def _p_values(p_values: ArrayLike) -> FloatArray:
    """[m] p-values, checked."""
    array = vector(p_values, "p_values")
    if np.any((array < 0) | (array > 1)):
        raise ValueError(f"p_values must lie in [0, 1], got {array.tolist()}")
    return array


def holm(p_values: ArrayLike) -> FloatArray:
    """Holm's step-down adjustment, which holds the family-wise error (Holm 1979).

    The i-th smallest p of m becomes max_{j <= i} min(1, (m - j + 1) p_(j)).

    Args:
        p_values: [m], every test of the family, in any order.

    Returns:
        [m] adjusted p-values, in the order given.

    Raises:
        ValueError: none given, or one outside [0, 1] or NaN (an untested claim is not p = NaN).
    """
    p = _p_values(p_values)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def benjamini_hochberg(p_values: ArrayLike) -> FloatArray:
    """Benjamini and Hochberg's step-up adjustment, which holds the false discovery rate (1995).

    The i-th smallest p of m becomes min_{j >= i} min(1, m p_(j) / j). Args, result and errors are
    those of `holm`.
    """
    p = _p_values(p_values)
    order = np.argsort(p, kind="stable")
    scaled = p[order] * p.size / np.arange(1, p.size + 1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return adjusted
