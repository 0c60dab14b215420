"""pass@k, the chance that at least one of k samples is right."""

from typing import overload

import numpy as np
from numpy.typing import ArrayLike

from fractionate.statistics._checks import FloatArray, counts


@overload
def pass_at_k(n: int, c: int, k: int) -> float: ...
@overload
def pass_at_k(n: ArrayLike, c: ArrayLike, k: ArrayLike) -> FloatArray | float: ...
def pass_at_k(n: ArrayLike, c: ArrayLike, k: ArrayLike) -> FloatArray | float:
    """Unbiased pass@k per problem: 1 - C(n - c, k) / C(n, k).

    Computed as 1 - prod_{i < k} (n - c - i) / (n - i), which neither overflows nor leaves [0, 1]
    (arXiv 2107.03374, equation 1). At k = 1 it is c / n; at k = n it is the coverage indicator
    "any sample is right". It is not averaged: the score of a benchmark is the mean over problems
    of this value, never the value of the pooled counts.

    Args:
        n: samples per problem; an int or an array that broadcasts with the others.
        c: correct samples among the n.
        k: samples allowed.

    Returns:
        A probability: a float for three scalars, else an array of the broadcast shape.

    Raises:
        ValueError: n < k, c > n, k < 1, or numbers that are not whole counts.
    """
    samples, correct, allowed = np.broadcast_arrays(counts(n, "n"), counts(c, "c"), counts(k, "k"))
    if np.any(allowed < 1):
        raise ValueError(f"k must be at least 1, got {k!r}")
    if np.any(samples < allowed):
        raise ValueError(f"pass@k needs n >= k samples per problem, got n = {n!r}, k = {k!r}")
    if np.any(correct > samples):
        raise ValueError(f"c correct samples cannot exceed n, got c = {c!r}, n = {n!r}")
    none_right = np.ones(samples.shape)
    for i in range(int(allowed.max(initial=0))):
        left = np.maximum(samples - correct - i, 0) / np.maximum(samples - i, 1)
        none_right = np.where(i < allowed, none_right * left, none_right)
    value = 1.0 - none_right
    return float(value) if value.ndim == 0 else value
