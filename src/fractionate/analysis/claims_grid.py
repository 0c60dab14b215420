"""Claims about final values in a rollout x KL x rate grid: C1 to C8 and C35."""

from dataclasses import replace

import numpy as np

from fractionate.analysis.evidence import (
    Finding,
    Floats,
    Untestable,
    cell_means,
    drop_of,
    finding,
    matched,
    points,
    rank_correlation,
    rates,
    where,
)
from fractionate.analysis.runs import Runs

ACCURACY_MARGIN = 0.03
OOD_MARGIN = 0.02
SPREAD = 2 * ACCURACY_MARGIN
"""Cells whose means lie within this range are all within the margin of their middle."""
SPARSITY_TOLERANCE = 0.01
"""How much less sparse still counts as "at least as sparse"."""
SPARSE = "sparsity@1e-06"
SAME_RANKS = 0.9


def _range(places: list[int], means: Floats) -> Floats:
    return np.ptp(means[:, places], axis=1)


def best_accuracy_is_equal(runs: Runs) -> Finding:
    """C1: best cell with teacher rollouts minus best with student rollouts, TOST ±3 pp."""
    off, on = where(runs, rollout="teacher"), where(runs, rollout="student")
    means = cell_means(runs, "accuracy")
    difference = means.statistic(lambda m: m[:, off].max(axis=1) - m[:, on].max(axis=1))
    limits = (-ACCURACY_MARGIN, ACCURACY_MARGIN)
    return finding(
        "teacher − student, best cells", difference,
        above=limits[0], below=limits[1], confidence=0.90,
    )  # fmt: skip


def forward_is_insensitive(runs: Runs) -> Finding:
    """C2: range of the forward cell means, below twice the equivalence margin."""
    places = where(runs, kl="forward", least=2)
    spread = cell_means(runs, "accuracy").statistic(lambda m: _range(places, m))
    return finding(f"range of {len(places)} forward cells", spread, below=SPREAD)


def reverse_is_sensitive(runs: Runs) -> Finding:
    """C3: range of the reverse cell means, above twice the equivalence margin."""
    places = where(runs, kl="reverse", least=2)
    spread = cell_means(runs, "accuracy").statistic(lambda m: _range(places, m))
    return finding(f"range of {len(places)} reverse cells", spread, above=SPREAD)


def low_rate_preserves(runs: Runs) -> Finding:
    """C4: largest |drop in skills| at the low rate, below 2 pp."""
    places = where(runs, rate=rates(runs)[0])
    largest = cell_means(runs, drop_of(runs)).statistic(lambda m: np.abs(m[:, places]).max(axis=1))
    return finding("largest change at the low rate", largest, below=OOD_MARGIN)


def high_rate_forgets(runs: Runs) -> Finding:
    """C5: smallest drop in skills at the high rate, above 2 pp."""
    places = where(runs, rate=rates(runs)[1])
    means = cell_means(runs, drop_of(runs))
    found = finding(
        "smallest drop at the high rate",
        means.statistic(lambda m: m[:, places].min(axis=1)),
        above=OOD_MARGIN,
    )
    largest = points(float(means.means[places].max()))
    return replace(found, text=f"{found.text} (largest drop {largest} pp)")


def _gap(runs: Runs, metric: str) -> tuple[tuple[float, Floats], tuple[float, Floats]]:
    """Absolute mean effects of the rate (high − low) and of the rollout (teacher − student)."""
    low, high = (where(runs, rate=rate) for rate in rates(runs))
    pairs = matched(runs)
    off, on = [a for a, _ in pairs], [b for _, b in pairs]
    means = cell_means(runs, metric)

    def rate_effect(m: Floats) -> Floats:
        return np.abs(m[:, high].mean(axis=1) - m[:, low].mean(axis=1))

    def rollout_effect(m: Floats) -> Floats:
        return np.abs(m[:, off].mean(axis=1) - m[:, on].mean(axis=1))

    return means.statistic(rate_effect), means.statistic(rollout_effect)


def rate_outweighs_rollout(runs: Runs) -> Finding:
    """C6: |effect of the rate| − |effect of the rollout| on the drop in skills, above 0."""
    rate, rollout = _gap(runs, drop_of(runs))
    found = finding(
        "|rate effect| − |rollout effect|", (rate[0] - rollout[0], rate[1] - rollout[1]), above=0.0
    )
    return replace(
        found, text=f"{found.text} (rate {points(rate[0])}, rollout {points(rollout[0])})"
    )


def rate_sets_sparsity(runs: Runs) -> Finding:
    """C7: lowest sparsity at the low rate minus highest at the high rate, above 0."""
    low, high = (where(runs, rate=rate) for rate in rates(runs))
    means = cell_means(runs, SPARSE)
    gap = means.statistic(lambda m: m[:, low].min(axis=1) - m[:, high].max(axis=1))
    found = finding("gap between the rates' ranges", gap, above=0.0)
    m = means.means
    ranges = "; ".join(
        f"{name} rate {points(float(m[places].min()), float(m[places].max()))} %"
        for name, places in (("low", low), ("high", high))
    )
    null = "rounding_null@1e-06"
    if runs.measured(null):
        own = cell_means(runs, null).means
        ranges += f"; rounding alone {points(float(own[low].mean()))} and "
        ranges += f"{points(float(own[high].mean()))} %"
    return replace(found, text=f"{found.text} ({ranges})")


def teacher_is_as_sparse(runs: Runs) -> Finding:
    """C8: smallest teacher − student difference in sparsity over matched pairs, above −1 pp.

    It takes two pairs to hold; one counterexample is enough to refute it.
    """
    pairs = matched(runs)
    off, on = [a for a, _ in pairs], [b for _, b in pairs]
    means = cell_means(runs, SPARSE)
    worst = means.statistic(lambda m: (m[:, off] - m[:, on]).min(axis=1))
    wins = int((means.means[off] >= means.means[on]).sum())
    found = finding("smallest teacher − student", worst, above=-SPARSITY_TOLERANCE)
    text = f"{wins} of {len(pairs)} pairs; {found.text}"
    if len(pairs) < 2 and found.verdict == "holds":
        return Finding("cannot be told", f"{text}; one pair proves little")
    return replace(found, text=text)


def threshold_does_not_matter(runs: Runs) -> Finding:
    """C35: rank correlation over cells of sparsity at 1e-6 and at 1e-8, at least .9."""
    strict, loose = cell_means(runs, "sparsity@1e-08"), cell_means(runs, SPARSE)
    if len(runs.arms) < 3:
        raise Untestable("needs at least three arms to rank")
    value = rank_correlation(strict.means, loose.means)
    if value is None:
        raise Untestable("sparsity is the same in every cell")
    apart = points(float(np.abs(strict.means - loose.means).max()))
    text = f"rank correlation {value:.2f}, largest gap {apart} pp; claim: at least {SAME_RANKS}"
    # Both thresholds are read off the same runs: their common noise is no evidence either way.
    return Finding("holds" if value >= SAME_RANKS else "does not hold", text)
