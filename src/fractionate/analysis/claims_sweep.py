"""Claims that need several rates or a rollout spectrum: C9 to C11 and C13 to C15."""

import numpy as np

from fractionate.analysis.claims_grid import SPARSE, SPREAD
from fractionate.analysis.evidence import (
    EXACT,
    Finding,
    Floats,
    Untestable,
    agree,
    cell_means,
    detectable,
    drop_of,
    finding,
    interval,
    matched,
    rates,
    verdict_of,
)
from fractionate.analysis.runs import Runs
from fractionate.statistics import polynomial_fit

LINEAR = 0.9
NEARLY_ALL = 0.75


def _lines(runs: Runs) -> list[tuple[list[int], Floats]]:
    """Per series, the places of its arms by rising rate, and the rates."""
    series: dict[str, list[int]] = {}
    for i, arm in enumerate(runs.arms):
        if arm.rate is not None:
            series.setdefault(arm.series, []).append(i)
    lines: list[tuple[list[int], Floats]] = []
    for places in series.values():
        ordered = sorted(places, key=lambda i: runs.arms[i].rate or 0.0)
        if len(ordered) >= 3:
            lines.append((ordered, np.array([runs.arms[i].rate or 0.0 for i in ordered])))
    if not lines:
        raise Untestable("needs at least three learning rates")
    return lines


def sparsity_is_linear(runs: Runs) -> Finding:
    """C9: R² of sparsity on the rate, the lowest over series."""
    lines = _lines(runs)
    means = cell_means(runs, SPARSE).means
    r2 = [polynomial_fit(rate, means[places], degree=1).r2 for places, rate in lines]
    known = [value for value in r2 if value is not None]
    if not known:
        raise Untestable("sparsity is the same at every rate")
    low, rising = min(known), all(means[p][-1] < means[p][0] for p, _ in lines)
    points = min(len(places) for places, _ in lines)
    text = f"lowest R² {low:.2f} over {len(known)} series of {points} rates; claim: above {LINEAR}"
    if points < 4:
        return Finding("cannot be told", f"{text}; three points prove little")
    return Finding("holds" if low > LINEAR and rising else "does not hold", text)


def forgetting_grows(runs: Runs) -> Finding:
    """C10: mean rank correlation of drop in skills and rate over series, above .5."""
    lines = _lines(runs)
    means = cell_means(runs, drop_of(runs))

    def correlation(m: Floats) -> Floats:
        each: list[Floats] = []
        for places, _ in lines:
            ranks = m[:, places].argsort(axis=1).argsort(axis=1).astype(float)
            centred = ranks - ranks.mean(axis=1, keepdims=True)
            line = np.arange(len(places)) - (len(places) - 1) / 2
            each.append(centred @ line / (line @ line))
        return np.mean(each, axis=0)

    value, draws = means.statistic(correlation)
    text = f"mean rank correlation {value:.2f}"
    if means.unknown:
        return Finding("cannot be told", f"{text}, {means.unknown}; claim: above 0.5")
    low, high = interval(draws)
    high = max(high, value)  # draws around a correlation of 1 are all below it
    text = f"{text} [{low:.2f} to {high:.2f}]; claim: above 0.5"
    text = text.replace("-", "\N{MINUS SIGN}")
    return Finding(verdict_of(low, high, above=0.5), text, detectable(low, high))


def teacher_forgets_less(runs: Runs) -> Finding:
    """C11: share of matched pairs in which teacher rollouts forget less, at least three quarters.

    A pair without a difference speaks for neither side: the verdict must be the same whether ties
    count as won or as lost, and one pair is no share.

    Raises:
        Untestable: Without matched pairs.
    """
    pairs = matched(runs)
    off, on = [a for a, _ in pairs], [b for _, b in pairs]
    means = cell_means(runs, drop_of(runs))
    gaps = means.means[off] - means.means[on]
    tied = np.abs(gaps) <= EXACT
    ties = int(tied.sum())
    won = int((gaps < -EXACT).sum())
    text = f"{won} of {len(pairs)} pairs" + (f", {ties} tied" if ties else "")
    claim = f"claim: at least {NEARLY_ALL}"
    why = "one pair proves little" if len(pairs) < 2 else means.unknown
    if why is None and ties == len(pairs):
        why = "no pair differs"
    if why:
        return Finding("cannot be told", f"{text}, {why}; {claim}")
    less = means.draws[:, off] < means.draws[:, on]
    low, _ = interval((less & ~tied).mean(axis=1))
    _, high = interval((less | tied).mean(axis=1))
    text = f"{text}, share [{low:.2f} to {high:.2f}]; {claim}"
    wins = NEARLY_ALL - 1e-9
    return Finding(verdict_of(low, high, above=wins), text, detectable(low, high))


def _spectrum(runs: Runs, kl: str | None, rate: float | None) -> list[int]:
    places = [
        i
        for i, arm in enumerate(runs.arms)
        if arm.lam is not None and kl in (None, arm.kl) and rate in (None, arm.rate)
    ]
    if len({runs.arms[i].lam for i in places}) < 3:
        raise Untestable("needs at least three points of the rollout spectrum")
    return places


def _low_rate(runs: Runs) -> float | None:
    try:
        return rates(runs)[0]
    except Untestable:
        return None


def forward_is_flat(runs: Runs) -> Finding:
    """C13: range over the spectrum under forward KL at the low rate, below 6 pp."""
    places = _spectrum(runs, "forward", _low_rate(runs))
    spread = cell_means(runs, "accuracy").statistic(lambda m: np.ptp(m[:, places], axis=1))
    return finding(f"range over {len(places)} points", spread, below=SPREAD)


def reverse_prefers_student(runs: Runs) -> Finding:
    """C14: mean over λ > 0 minus mean over λ < 0 under reverse KL at the low rate, above 0."""
    places = _spectrum(runs, "reverse", _low_rate(runs))
    plus = [i for i in places if (runs.arms[i].lam or 0.0) > 0]
    minus = [i for i in places if (runs.arms[i].lam or 0.0) < 0]
    if not plus or not minus:
        raise Untestable("needs points on both sides of the spectrum")
    means = cell_means(runs, "accuracy")
    gap = means.statistic(lambda m: m[:, plus].mean(axis=1) - m[:, minus].mean(axis=1))
    return finding("student side − teacher side", gap, above=0.0)


def spectrum_barely_moves(runs: Runs) -> Finding:
    """C15: range over λ minus half the range over rates, forgetting and sparsity, below 0."""
    places = _spectrum(runs, None, None)
    low, high = rates(runs)
    lams = sorted({runs.arms[i].lam or 0.0 for i in places})
    groups = [[i for i in places if runs.arms[i].lam == lam] for lam in lams]
    sides = [[i for i in places if runs.arms[i].rate == rate] for rate in (low, high)]
    found: list[Finding] = []
    for metric, name in ((drop_of(runs), "forgetting"), (SPARSE, "sparsity")):

        def excess(m: Floats) -> Floats:
            along = np.ptp([m[:, group].mean(axis=1) for group in groups], axis=0)
            across = np.abs(m[:, sides[1]].mean(axis=1) - m[:, sides[0]].mean(axis=1))
            return along - across / 2

        statistic = cell_means(runs, metric).statistic(excess)
        found.append(finding(f"{name}: range over λ − half the rate gap", statistic, below=0.0))
    return agree(found)
