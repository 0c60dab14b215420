"""Percentile and BCa bootstrap of one sample, and of blocks with items inside.

Every function takes a numpy Generator: the same stream gives the same interval.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from fractionate.statistics._checks import FloatArray, finite, open_unit, vector

Method = Literal["percentile", "bca"]
Statistic = Callable[[FloatArray], float]

FEW_BLOCKS = 5
"""Below this many blocks there are at most 35 distinct resamples, and the result says so."""

_CHUNK = 1_000_000
"""Random indices held at once, so that memory does not grow with draws times items."""


@dataclass(frozen=True)
class BootstrapInterval:
    """A statistic with its bootstrap interval, in the unit of the statistic."""

    estimate: float
    """The statistic of the data as they are."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""
    confidence: float
    """Nominal coverage, e.g. 0.95."""
    draws: int
    """Number of resamples."""
    method: Method
    """The method that produced the ends: "percentile" where BCa was asked for but undefined."""
    note: str | None
    """What weakens the interval (few blocks, no variation), or None."""


def distinct_resamples(n: int) -> int:
    """Distinct bootstrap resamples of n units: C(2n - 1, n) multisets, 10 for three seeds.

    Raises:
        ValueError: n < 1.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1 unit, got {n!r}")
    return math.comb(2 * n - 1, n)


def _check_draws(draws: int) -> None:
    if draws < 100:
        raise ValueError(f"draws must be at least 100 for an interval, got {draws!r}")


def _acceleration(jackknife: FloatArray) -> float:
    """BCa acceleration of leave-one-out estimates [n]; 0 where they do not vary."""
    deviation = jackknife.mean() - jackknife
    spread = float(np.sum(deviation**2)) ** 1.5
    return float(np.sum(deviation**3)) / (6 * spread) if spread > 0 else 0.0


def _bca_levels(
    replicates: FloatArray, estimate: float, jackknife: FloatArray, confidence: float
) -> tuple[float, float] | None:
    """Quantile levels of the BCa interval (Efron 1987), or None where it is undefined."""
    below = np.mean(replicates < estimate) + 0.5 * np.mean(replicates == estimate)
    if not 0.0 < below < 1.0:
        return None
    bias, acceleration = float(special.ndtri(below)), _acceleration(jackknife)
    tail = float(special.ndtri((1 - confidence) / 2))
    levels = []
    for z in (bias + tail, bias - tail):
        stretch = 1 - acceleration * z
        if stretch <= 0:
            return None
        levels.append(float(special.ndtr(bias + z / stretch)))
    return levels[0], levels[1]


def interval_from_replicates(
    replicates: ArrayLike,
    estimate: float,
    *,
    confidence: float = 0.95,
    jackknife: ArrayLike | None = None,
    note: str | None = None,
) -> BootstrapInterval:
    """The interval that bootstrap replicates give.

    Args:
        replicates: [draws] values of the statistic on resamples.
        estimate: its value on the data.
        confidence: coverage.
        jackknife: [n] leave-one-unit-out values; with them the interval is BCa, without them it is
            the percentile interval.
        note: passed on to the result.

    Raises:
        ValueError: a NaN among the values, or a confidence outside (0, 1).
    """
    open_unit(confidence, "confidence")
    values = vector(replicates, "replicates")
    tail = (1 - confidence) / 2
    levels: tuple[float, float] = (tail, 1 - tail)
    method: Method = "percentile"
    notes = [note] if note else []
    if np.ptp(values) == 0.0:
        notes.append("every resample gives the same value")
    elif jackknife is not None:
        bca = _bca_levels(values, estimate, vector(jackknife, "jackknife"), confidence)
        if bca is None:
            notes.append("BCa undefined here, percentile given")
        else:
            levels, method = bca, "bca"
    low, high = np.quantile(values, levels)
    return BootstrapInterval(
        float(estimate),
        float(low),
        float(high),
        confidence,
        values.size,
        method,
        "; ".join(notes) or None,
    )


def bootstrap_interval(
    values: ArrayLike,
    statistic: Statistic | None = None,
    *,
    rng: np.random.Generator,
    draws: int = 10_000,
    confidence: float = 0.95,
    method: Method = "bca",
) -> BootstrapInterval:
    """Bootstrap interval of a statistic of independent units (items, problems).

    Args:
        values: [n] or [n, ...]; units along the first axis, resampled whole, so that paired
            columns stay paired.
        statistic: maps an array like `values` to a number; None = the mean of [n] values.
        rng: source of the resamples.
        draws: resamples.
        confidence: coverage.
        method: "bca" (Efron 1987) or "percentile".

    Raises:
        ValueError: fewer than two units, NaN in the values or in a replicate.
    """
    array = finite(np.asarray(values, dtype=np.float64), "values")
    if array.ndim == 0 or array.shape[0] < 2:
        raise ValueError("values need at least two units along the first axis to be resampled")
    _check_draws(draws)
    n = array.shape[0]
    if statistic is None:
        one = vector(array, "values")
        estimate, replicates = float(one.mean()), _resampled_means(one, draws, rng)
        leave_out = (one.sum() - one) / (n - 1)
    else:
        estimate = float(statistic(array))
        replicates = np.array([statistic(array[rng.integers(0, n, n)]) for _ in range(draws)])
        leave_out = np.array([statistic(np.delete(array, i, axis=0)) for i in range(n)])
    return interval_from_replicates(
        replicates,
        estimate,
        confidence=confidence,
        jackknife=leave_out if method == "bca" else None,
    )


def _resampled_means(values: FloatArray, draws: int, rng: np.random.Generator) -> FloatArray:
    """[draws] means of resamples of `values` [n]."""
    n = values.size
    rows = max(1, _CHUNK // n)
    means = np.empty(draws)
    for start in range(0, draws, rows):
        stop = min(start + rows, draws)
        means[start:stop] = values[rng.integers(0, n, (stop - start, n))].mean(axis=1)
    return means


def _hierarchical_replicates(
    blocks: Sequence[FloatArray], draws: int, rng: np.random.Generator
) -> FloatArray:
    """[draws] means of block means: blocks resampled, then the items of each block drawn."""
    n = len(blocks)
    picks = rng.integers(0, n, (draws, n))
    means = np.empty((draws, n))
    for index, block in enumerate(blocks):
        chosen = picks == index
        means[chosen] = _resampled_means(block, int(chosen.sum()), rng)
    return means.mean(axis=1)


def hierarchical_bootstrap(
    blocks: Sequence[ArrayLike],
    *,
    rng: np.random.Generator,
    draws: int = 10_000,
    confidence: float = 0.95,
    method: Method = "bca",
) -> BootstrapInterval:
    """Interval of the mean of block means: resample blocks, then items inside each drawn block.

    A block is what the arms share, a (task, seed) pair say, and holds the paired item differences
    of all arms. Blocks weigh alike whatever their number of items. The BCa acceleration is the
    jackknife's over blocks. The step down to the items counts their noise a second time, so the
    interval is wide rather than narrow.

    Args:
        blocks: one sequence of item values per block (one value each: only blocks are resampled).
        rng: source of the resamples.
        draws: resamples.
        confidence: coverage.
        method: "bca" or "percentile".

    Raises:
        ValueError: no block, an empty block, NaN, or one block of one item.
    """
    if not blocks:
        raise ValueError("blocks is empty; give one sequence of item values per block")
    arrays = [vector(block, f"block {i}") for i, block in enumerate(blocks)]
    _check_draws(draws)
    means = np.array([array.mean() for array in arrays])
    n = means.size
    if n > 1:
        leave_out = (means.sum() - means) / (n - 1)
    elif arrays[0].size > 1:
        leave_out = (arrays[0].sum() - arrays[0]) / (arrays[0].size - 1)
    else:
        raise ValueError("one block of one item cannot be resampled; add seeds or items")
    return interval_from_replicates(
        _hierarchical_replicates(arrays, draws, rng),
        float(means.mean()),
        confidence=confidence,
        jackknife=leave_out if method == "bca" else None,
        note=few_blocks_note(n),
    )


def few_blocks_note(n: int) -> str | None:
    """A sentence for a bootstrap over fewer than `FEW_BLOCKS` blocks, or None."""
    if n == 1:
        return "one block: only items are resampled, so nothing is said about seeds"
    if n < FEW_BLOCKS:
        return f"{n} blocks have only {distinct_resamples(n)} distinct resamples"
    return None
