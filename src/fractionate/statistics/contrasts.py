"""Paired contrasts by block and item, and their permutation tests."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fractionate.statistics._checks import FloatArray, finite, rounding_floor, vector
from fractionate.statistics._distributions import t_two_sided
from fractionate.statistics.bootstrap import (
    BootstrapInterval,
    Method,
    hierarchical_bootstrap,
)
from fractionate.statistics.intervals import MeanInterval, t_interval

MAX_EXACT = 20
"""Up to this many differences all 2^n sign flips are enumerated."""


@dataclass(frozen=True)
class PermutationTest:
    """A permutation test; the statistic is in the unit of the data."""

    statistic: float
    """Observed mean difference, or range of level means."""
    p: float
    """Share of permutations at least as extreme; Monte Carlo counts the data as one of them."""
    exact: bool
    """Whether every permutation was enumerated."""
    permutations: int
    """Permutations counted, the data included."""
    smallest_p: float
    """The least p-value that this test can give."""


@dataclass(frozen=True)
class PairedContrast:
    """First arm minus second, by block; values in the unit of the outcome."""

    difference: float
    """Mean over blocks of the mean item difference."""
    block_differences: dict[Hashable, float]
    """Mean item difference of each block."""
    blocks: int
    """Number of blocks."""
    items: int
    """Number of paired items over all blocks."""
    t: MeanInterval | None
    """t interval over blocks; None with one block."""
    p_t: float | None
    """Two-sided paired t test over blocks; None with one block or equal differences."""
    bootstrap: BootstrapInterval
    """Hierarchical bootstrap interval: blocks, then items."""
    sign_flip: PermutationTest
    """Sign-flip test over blocks."""
    note: str | None
    """Why a value is None, or None."""


def paired_differences(
    first: Mapping[Hashable, ArrayLike], second: Mapping[Hashable, ArrayLike]
) -> dict[Hashable, FloatArray]:
    """First minus second per block and item.

    Args:
        first: per block, the item scores [items] of one arm, or one score of the run.
        second: the same for the other arm: same blocks, same items in the same order.

    Returns:
        Item differences [items] per block, in the order of `first`.

    Raises:
        ValueError: no block, blocks or item counts that differ (named), or NaN.
    """
    if not first:
        raise ValueError("first is empty; give the item scores of at least one block")
    if unmatched := set(first) ^ set(second):
        raise ValueError(f"blocks without a partner: {sorted(unmatched, key=repr)}")
    differences = {}
    for block in first:
        a = vector(np.atleast_1d(np.asarray(first[block], float)), f"first[{block!r}]")
        b = vector(np.atleast_1d(np.asarray(second[block], float)), f"second[{block!r}]")
        if a.size != b.size:
            raise ValueError(f"block {block!r} has {a.size} items in first, {b.size} in second")
        differences[block] = a - b
    return differences


def contrast_of_differences(
    differences: Mapping[Hashable, ArrayLike],
    *,
    rng: np.random.Generator,
    draws: int = 10_000,
    confidence: float = 0.95,
    method: Method = "bca",
) -> PairedContrast:
    """Mean of per-item differences (or differences of differences), with every interval.

    To pool cells that share a block (one task and seed under two rates), average their item
    differences first: blocks must be independent.

    Args:
        differences: item differences [items] per block.
        rng: source of resamples and of Monte-Carlo sign flips.
        draws: bootstrap resamples.
        confidence: coverage of the intervals.
        method: "bca" or "percentile".

    Raises:
        ValueError: no block, NaN, or one block of one item.
    """
    arrays = {
        block: vector(np.atleast_1d(np.asarray(d, float)), f"differences[{block!r}]")
        for block, d in differences.items()
    }
    interval = hierarchical_bootstrap(
        list(arrays.values()), rng=rng, draws=draws, confidence=confidence, method=method
    )
    means = np.array([d.mean() for d in arrays.values()])
    t = t_interval(means, confidence=confidence) if means.size > 1 else None
    centred = means - means.mean()
    flat = float(centred @ centred) <= rounding_floor(centred, float(np.abs(means).max()))
    note = None
    if t is None:
        note = "one block: no t interval over blocks"
    elif flat:
        note = "all block differences are equal: no t test"
    p_t = None if t is None or flat else t_two_sided(t.mean / t.sem, means.size - 1)
    return PairedContrast(
        difference=float(means.mean()),
        block_differences=dict(zip(arrays, means.tolist(), strict=True)),
        blocks=means.size,
        items=sum(d.size for d in arrays.values()),
        t=t,
        p_t=p_t,
        bootstrap=interval,
        sign_flip=sign_flip_test(means, rng=rng),
        note=note,
    )


def paired_contrast(
    first: Mapping[Hashable, ArrayLike],
    second: Mapping[Hashable, ArrayLike],
    *,
    rng: np.random.Generator,
    draws: int = 10_000,
    confidence: float = 0.95,
    method: Method = "bca",
) -> PairedContrast:
    """First arm minus second on shared blocks and items.

    Args and errors are those of `paired_differences` and `contrast_of_differences`.
    """
    return contrast_of_differences(
        paired_differences(first, second),
        rng=rng,
        draws=draws,
        confidence=confidence,
        method=method,
    )


def smallest_sign_flip_p(n: int) -> float:
    """Least two-sided p of a sign-flip test of n pairs, 2 / 2^n: 0.25 for three.

    Raises:
        ValueError: n < 1.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1 pair, got {n!r}")
    return 2.0 / 2.0**n


def sign_flip_test(
    differences: ArrayLike,
    *,
    rng: np.random.Generator,
    draws: int = 100_000,
    max_exact: int = MAX_EXACT,
) -> PermutationTest:
    """Two-sided permutation test that flips the sign of paired differences.

    Exact up to `max_exact` pairs; beyond that Monte Carlo, p = (1 + hits) / (1 + draws).

    Args:
        differences: [n] one per independent block.
        rng: source of the flips; untouched by the exact test.
        draws: Monte-Carlo flips.
        max_exact: most pairs to enumerate, at most 24 (2^24 sums of 8 bytes).

    Raises:
        ValueError: no difference, NaN, draws < 1, or max_exact > 24.
    """
    d = vector(differences, "differences")
    if draws < 1 or max_exact > 24:
        raise ValueError(f"need draws >= 1 and max_exact <= 24, got {draws!r} and {max_exact!r}")
    observed = float(d.sum())
    # Flips that tie with the data must count although their sums round differently.
    bar = abs(observed) - 1e-12 * float(np.abs(d).sum())
    if d.size <= max_exact:
        sums = np.zeros(1)
        for value in d:
            sums = np.concatenate([sums + value, sums - value])
        total, p = sums.size, float(np.mean(np.abs(sums) >= bar))
        return PermutationTest(observed / d.size, p, True, total, smallest_sign_flip_p(d.size))
    hits = 0
    rows = max(1, 1_000_000 // d.size)
    for start in range(0, draws, rows):
        size = (min(rows, draws - start), d.size)
        signs = rng.integers(0, 2, size, dtype=np.int8) * 2.0 - 1.0
        hits += int(np.sum(np.abs(signs @ d) >= bar))
    total = draws + 1
    smallest = max(1 / total, smallest_sign_flip_p(d.size))
    return PermutationTest(observed / d.size, (1 + hits) / total, False, total, smallest)


def range_permutation_test(
    values: Sequence[ArrayLike] | ArrayLike, *, rng: np.random.Generator, draws: int = 10_000
) -> PermutationTest:
    """Whether level means spread more than labels permuted within blocks would let them.

    The null of "no level differs" for a spectrum of levels (lambda, say) with the same seeds at
    each: a range of k means is positive under pure noise (`expected_range`).

    Args:
        values: [blocks, levels] outcome of each seed at each level, complete.
        rng: source of the permutations.
        draws: permutations.

    Returns:
        The observed range of the level means and its upper-tail p = (1 + hits) / (1 + draws).

    Raises:
        ValueError: not a complete matrix of two or more levels, NaN, or draws < 1.
    """
    matrix = np.asarray(values, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] < 1 or matrix.shape[1] < 2:
        raise ValueError(f"values must be [blocks, levels >= 2], got shape {matrix.shape}")
    finite(matrix, "values")
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws!r}")
    observed = float(np.ptp(matrix.mean(axis=0)))
    bar = observed - 1e-12 * float(np.abs(matrix).max())
    shuffled = (rng.permuted(matrix, axis=1).mean(axis=0) for _ in range(draws))
    hits = sum(int(np.ptp(means) >= bar) for means in shuffled)
    total = draws + 1
    return PermutationTest(observed, (1 + hits) / total, False, total, 1 / total)
