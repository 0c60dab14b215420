"""Standard errors and intervals of rates and means, and tests of two paired rates.

A rate is a share in [0, 1]; multiply by 100 for points. Intervals are two-sided.
"""

from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from fractionate.statistics._checks import FloatArray, counts, open_unit, vector
from fractionate.statistics._distributions import t_critical, z_critical


@dataclass(frozen=True)
class MeanInterval:
    """A mean of independent runs with its t interval; unit of the values."""

    mean: float
    """Arithmetic mean."""
    sd: float
    """Sample standard deviation (n - 1 in the denominator)."""
    sem: float
    """Standard error sd / sqrt(n). One of it each side is no 95 % interval."""
    half_width: float
    """t_{n-1} times `sem`."""
    low: float
    """mean - half_width."""
    high: float
    """mean + half_width."""
    n: int
    """Number of values."""
    confidence: float
    """Coverage of [low, high], e.g. 0.95."""


def _rates(successes: ArrayLike, n: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Successes and trials [...] as floats, checked and broadcast."""
    hits, trials = np.broadcast_arrays(counts(successes, "successes"), counts(n, "n"))
    if np.any(trials < 1):
        raise ValueError(f"n must be at least 1 trial, got {n!r}")
    if np.any(hits > trials):
        raise ValueError(f"successes cannot exceed n, got {successes!r} of {n!r}")
    return hits.astype(np.float64), trials.astype(np.float64)


def _pair(low: FloatArray, high: FloatArray) -> tuple[float, float] | tuple[FloatArray, FloatArray]:
    """Two floats if the arrays have no axis, else the arrays."""
    return (float(low), float(high)) if np.ndim(low) == 0 else (low, high)


@overload
def wilson_interval(successes: int, n: int, *, confidence: float = ...) -> tuple[float, float]: ...
@overload
def wilson_interval(
    successes: ArrayLike, n: ArrayLike, *, confidence: float = ...
) -> tuple[float, float] | tuple[FloatArray, FloatArray]: ...
def wilson_interval(
    successes: ArrayLike, n: ArrayLike, *, confidence: float = 0.95
) -> tuple[float, float] | tuple[FloatArray, FloatArray]:
    """Wilson's score interval of a rate.

    Centre (a + z^2/2n) / (1 + z^2/n), half-width z/(1 + z^2/n) sqrt(a(1-a)/n + z^2/4n^2) with
    a = successes / n (Wilson 1927). It stays in [0, 1] and has width at 0 and at n.

    Args:
        successes: count of right items (a count, not a rate); an int or an array.
        n: items; broadcasts with `successes`.
        confidence: coverage, strictly between 0 and 1.

    Returns:
        (low, high), rates.

    Raises:
        ValueError: counts that are fractions, n < 1, or successes > n.
    """
    hits, trials = _rates(successes, n)
    z = z_critical(open_unit(confidence, "confidence"))
    rate, shrink = hits / trials, 1 + z * z / trials
    centre = (rate + z * z / (2 * trials)) / shrink
    half = z / shrink * np.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials**2))
    low = np.where(hits == 0, 0.0, centre - half)
    return _pair(low, np.where(hits == trials, 1.0, centre + half))


@overload
def clopper_pearson_interval(
    successes: int, n: int, *, confidence: float = ...
) -> tuple[float, float]: ...
@overload
def clopper_pearson_interval(
    successes: ArrayLike, n: ArrayLike, *, confidence: float = ...
) -> tuple[float, float] | tuple[FloatArray, FloatArray]: ...
def clopper_pearson_interval(
    successes: ArrayLike, n: ArrayLike, *, confidence: float = 0.95
) -> tuple[float, float] | tuple[FloatArray, FloatArray]:
    """The exact binomial interval: never under its coverage, hence wider than Wilson's.

    Args and errors are those of `wilson_interval`.

    Returns:
        (low, high), rates: quantiles of Beta(s, n - s + 1) and Beta(s + 1, n - s).
    """
    hits, trials = _rates(successes, n)
    tail = (1 - open_unit(confidence, "confidence")) / 2
    # A Beta law needs positive parameters; the ends 0 and n are set apart.
    low = special.betaincinv(np.maximum(hits, 1), trials - hits + 1, tail)
    high = special.betaincinv(hits + 1, np.maximum(trials - hits, 1), 1 - tail)
    return _pair(np.where(hits == 0, 0.0, low), np.where(hits == trials, 1.0, high))


def binomial_se(rate: float, n: int) -> float:
    """Standard error sqrt(a (1 - a) / n) of a rate a over n independent items (a rate).

    Raises:
        ValueError: a rate outside [0, 1] (points, perhaps) or n < 1.
    """
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"rate must lie in [0, 1], got {rate!r}; divide points by 100")
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n!r}")
    return float(np.sqrt(rate * (1 - rate) / n))


def t_interval(values: ArrayLike, *, confidence: float = 0.95) -> MeanInterval:
    """Mean of a few runs with its t interval: mean ± t_{n-1} s / sqrt(n).

    Args:
        values: [n] one value per run (per seed, or per block), any unit.
        confidence: coverage, strictly between 0 and 1.

    Returns:
        The mean and its interval in the unit of `values`; of width 0 if all values are equal.

    Raises:
        ValueError: fewer than two values (one run has no spread) or a NaN.
    """
    array = vector(values, "values", least=2)
    open_unit(confidence, "confidence")
    mean, sd = float(array.mean()), float(array.std(ddof=1))
    sem = sd / float(np.sqrt(array.size))
    half = t_critical(array.size - 1, confidence) * sem
    return MeanInterval(mean, sd, sem, half, mean - half, mean + half, array.size, confidence)


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Exact two-sided McNemar p-value of two arms scored on the same items.

    Given the discordant pairs, the smaller count is Binomial(b + c, 1/2); p doubles its tail and
    is capped at 1. Without discordant pairs p is 1.

    Args:
        only_first: items that only the first arm gets right.
        only_second: items that only the second arm gets right.

    Raises:
        ValueError: negative or fractional counts.
    """
    first, second = int(counts(only_first, "only_first")), int(counts(only_second, "only_second"))
    return min(1.0, float(2 * special.bdtr(min(first, second), first + second, 0.5)))


def paired_difference_se(only_first: int, only_second: int, n: int) -> float:
    """Standard error of the difference of two rates on the same n items (a rate).

    sqrt(b + c - (b - c)^2 / n) / n with b and c the discordant pairs.

    Raises:
        ValueError: negative or fractional counts, or b + c > n.
    """
    first, second = int(counts(only_first, "only_first")), int(counts(only_second, "only_second"))
    if n < 1 or first + second > n:
        raise ValueError(f"{first} + {second} discordant pairs do not fit into n = {n!r} items")
    return float(np.sqrt(first + second - (first - second) ** 2 / n) / n)


def unpaired_difference_se(
    first_rate: float, second_rate: float, first_n: int, second_n: int
) -> float:
    """Standard error of the difference of two rates on independent items (a rate).

    Raises:
        ValueError: as `binomial_se`.
    """
    return float(np.hypot(binomial_se(first_rate, first_n), binomial_se(second_rate, second_n)))
