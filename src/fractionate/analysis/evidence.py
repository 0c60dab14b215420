"""What a claim rests on: arms by role, draws of their means, and the rule for a verdict."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fractionate.analysis.outcome_names import DROPS
from fractionate.analysis.runs import ROLLOUT, Arm, Runs
from fractionate.rng import stream
from fractionate.statistics import t_critical, t_interval

Floats = NDArray[np.float64]
Verdict = Literal["holds", "does not hold", "cannot be told"]

DRAWS = 4_000
POWER = 0.8
NORMAL = NormalDist()
EXACT = 1e-12
"""Shares closer than this are equal; what is left is rounding."""
NO_SPREAD = "no spread is seen between seeds"


class Untestable(ValueError):
    """This study cannot test the claim; the message says what it lacks."""


@dataclass(frozen=True)
class Finding:
    """Our side of a claim.

    Attributes:
        verdict: "holds" where the whole interval of the statistic lies on the claim's side of the
            threshold, "does not hold" where it lies on the other side, else "cannot be told".
        text: The statistic with its interval and the threshold.
        detectable: How far from the threshold the truth must lie for a verdict in four of five
            studies of this size, in the unit of the text; None for a census, or without noise.
        unit: "pp", or "" for plain numbers.
        source: Whose runs they are, where several designs were looked at.
    """

    verdict: Verdict
    text: str
    detectable: float | None = None
    unit: str = ""
    source: str = ""


@dataclass(frozen=True)
class Draws:
    """Cell means with their uncertainty.

    Attributes:
        means: [arms] means over seeds.
        draws: [draws, arms] what they might have been with other seeds; empty with one seed.
    """

    means: Floats
    draws: Floats

    def statistic(self, function: Callable[[Floats], Floats]) -> tuple[float, Floats]:
        """A statistic of [n, arms] means: of the data, and of every draw."""
        return float(function(self.means[None, :])[0]), function(self.draws)

    @property
    def unknown(self) -> str | None:
        """Why nothing is known of the noise of differences between arms, or None if it is.

        Seeds that agree exactly, on a few items or at a floor, do not show that there is no noise.
        """
        if self.draws.size == 0:
            return "one seed"
        apart = self.draws - self.draws.mean(axis=1, keepdims=True)
        return NO_SPREAD if still(apart) else None


def cell_means(runs: Runs, metric: str, *names: str) -> Draws:
    """Means of every arm and draws of them: noise of runs, pooled within a KL, and of seeds.

    The noise of a run is what arm and seed leave unexplained, pooled over the arms of one KL
    direction (reverse-KL arms may collapse). What all arms of a seed share moves all means
    together: it blurs levels, not differences. Both follow their t laws.

    Args:
        runs: The runs.
        metric: At the last step.
        names: Tell the draws of several designs apart, where they are used together.

    Raises:
        Untestable: The metric was not measured everywhere, or no seed is complete.
    """
    if not runs.measured(metric):
        raise Untestable(f"{metric} was not measured in every cell")
    if not runs.complete.seeds:
        raise Untestable("no seed is complete in every arm")
    return grid_means(runs, runs.grid(metric), metric, *names)


def grid_means(runs: Runs, grid: Floats, *names: str) -> Draws:
    """The same of any values [arms, complete seeds]; `names` name the draws."""
    arms, seeds = grid.shape
    means = grid.mean(axis=1)
    if seeds < 2:
        return Draws(means, np.empty((0, arms)))
    rng = stream(0, "cell means", *names)
    shared = grid.mean(axis=0) - grid.mean() if arms > 1 else np.zeros(seeds)
    residual = grid - means[:, None] - shared[None, :]
    freedom = (arms - 1) / arms if arms > 1 else 1.0
    draws = np.repeat(means[None, :], DRAWS, axis=0)
    noise = 0.0
    for kl in dict.fromkeys(arm.kl for arm in runs.arms):
        own = [i for i, arm in enumerate(runs.arms) if arm.kl == kl]
        df = max(1.0, len(own) * (seeds - 1) * freedom)
        variance = float((residual[own] ** 2).sum()) / df
        noise += variance * len(own) / arms
        wide = np.sqrt(df / rng.chisquare(df, DRAWS))[:, None]
        draws[:, own] += rng.normal(0, math.sqrt(variance / seeds), (DRAWS, len(own))) * wide
    between = max(0.0, float(shared.var(ddof=1)) - noise / arms)
    wide = np.sqrt((seeds - 1) / rng.chisquare(seeds - 1, DRAWS))
    draws += (rng.normal(0, math.sqrt(between / seeds), DRAWS) * wide)[:, None]
    return Draws(means, draws)


def still(draws: Floats) -> bool:
    """Whether [draws, ...] do not vary beyond rounding."""
    return bool(np.ptp(draws, axis=0).max() <= EXACT)


def verdict_of(
    low: float, high: float, *, above: float | None = None, below: float | None = None
) -> Verdict:
    """Where an interval lies: the claim is "above" or "below" a threshold, or between the two."""
    floor = -math.inf if above is None else above
    roof = math.inf if below is None else below
    if low > floor and high < roof:
        return "holds"
    return "does not hold" if high <= floor or low >= roof else "cannot be told"


def interval(draws: Floats, confidence: float = 0.95) -> tuple[float, float]:
    """Percentile interval of the draws of a statistic."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, (tail, 1 - tail))
    return float(low), float(high)


def cautious_interval(value: float, draws: Floats, confidence: float = 0.95) -> tuple[float, float]:
    """The percentile and the basic (pivotal) interval together.

    Largest, smallest and range of noisy means are biased outwards, and draws around them once
    more: the percentile interval errs to one side there, the basic one to the other.
    """
    low, high = interval(draws, confidence)
    return min(low, 2 * value - high), max(high, 2 * value - low)


def agree(findings: Sequence[Finding]) -> Finding:
    """Several findings of one claim: their verdict where they agree, else it cannot be told."""
    first = findings[0].verdict
    same = all(each.verdict == first for each in findings)
    verdict = first if same else "cannot be told"
    known = [each.detectable for each in findings if each.detectable is not None]
    text = "; ".join(each.text for each in findings)
    source = "; ".join(dict.fromkeys(each.source for each in findings if each.source))
    return Finding(verdict, text, max(known, default=None), findings[0].unit, source)


def all_of(findings: Sequence[Finding]) -> Finding:
    """A claim that says several things: one that does not hold refutes it, all must hold."""
    verdicts = [each.verdict for each in findings]
    verdict: Verdict = "cannot be told"
    if "does not hold" in verdicts:
        verdict = "does not hold"
    elif set(verdicts) == {"holds"}:
        verdict = "holds"
    return replace(agree(findings), verdict=verdict)


def points(low: float, high: float | None = None) -> str:
    """Shares in percent or points: `3.2` or `1.0 to 5.4`."""
    one = f"{100 * low:.1f}"
    text = one if high is None else f"{one} to {100 * high:.1f}"
    return text.replace("-", "\N{MINUS SIGN}")


def finding(
    what: str,
    statistic: tuple[float, Floats],
    *,
    above: float | None = None,
    below: float | None = None,
    confidence: float = 0.95,
) -> Finding:
    """The verdict on a statistic of cell means, in points; none without spread between seeds.

    Args:
        what: Its name.
        statistic: From `Draws.statistic`, a share.
        above: The claim is that it lies above this share.
        below: The claim is that it lies below this share.
        confidence: Of its interval.
    """
    value, draws = statistic
    wanted = _wanted(above, below)
    if draws.size == 0 or still(draws):
        why = NO_SPREAD if draws.size else "one seed"
        return Finding("cannot be told", f"{what} {points(value)} pp, {why}; claim: {wanted} pp")
    low, high = cautious_interval(value, draws, confidence)
    text = f"{what} {points(value)} pp [{points(low, high)}]; claim: {wanted} pp"
    verdict = verdict_of(low, high, above=above, below=below)
    return Finding(verdict, text, 100 * detectable(low, high, confidence), "pp")


def _wanted(above: float | None, below: float | None) -> str:
    """Which side of which thresholds the claim is on, in points."""
    limits = (("above", above), ("below", below))
    return " and ".join(f"{word} {points(x)}" for word, x in limits if x is not None)


def detectable(low: float, high: float, confidence: float = 0.95) -> float:
    """Distance from a threshold that is told with 80 % power, from the width of an interval.

    The interval lies beyond the threshold with probability .8 if the truth is away from it by
    (z + z_.8) standard errors; its half-width is z of them, z the quantile of its confidence.
    """
    z = NORMAL.inv_cdf((1 + confidence) / 2)
    return (high - low) / 2 * (1 + NORMAL.inv_cdf(POWER) / z)


def over_runs(
    what: str,
    values: Sequence[float],
    *,
    above: float | None = None,
    below: float | None = None,
    span: tuple[float, float] = (-math.inf, math.inf),
) -> Finding:
    """The verdict on the mean of one number per run (or pair of runs), by its t interval.

    ``span`` are the least and the greatest value that the number can take; the interval ends there.
    """
    wanted = " and ".join(
        f"{word} {limit:g}"
        for word, limit in (("above", above), ("below", below))
        if limit is not None
    )
    if len(values) < 2:
        shown = f"{values[0]:.2f}" if values else "nothing"
        return Finding("cannot be told", f"{what} {shown}, one run; claim: {wanted}")
    if np.ptp(values) <= EXACT * np.abs(values).max():
        text = f"{what} {values[0]:.2f} in all {len(values)}, no spread is seen"
        return Finding("cannot be told", f"{text}; claim: {wanted}")
    mean = t_interval(values)
    low, high = max(mean.low, span[0]), min(mean.high, span[1])
    text = f"{what} {mean.mean:.2f} [{low:.2f} to {high:.2f}], {mean.n} values"
    text = f"{text}; claim: {wanted}".replace("-", "\N{MINUS SIGN}")
    verdict = verdict_of(low, high, above=above, below=below)
    return Finding(verdict, text, detectable(mean.low, mean.high))


def over_pairs(
    what: str,
    differences: Floats,
    *,
    above: float | None = None,
    below: float | None = None,
    confidence: float = 0.95,
) -> Finding:
    """The verdict on the mean of differences of shares [settings, seeds], in points.

    The spread of a difference is taken within its setting and pooled: a t interval with
    settings x (seeds - 1) degrees of freedom.
    """
    settings, seeds = differences.shape
    mean, df = float(differences.mean()), settings * (seeds - 1)
    within = differences - differences.mean(axis=1, keepdims=True)
    if df == 0 or still(within.T):
        return finding(what, (mean, np.full(df and 1, mean)), above=above, below=below)
    se = math.sqrt(float((within**2).sum()) / df / differences.size)
    half = t_critical(df, confidence) * se
    low, high = mean - half, mean + half
    wanted = _wanted(above, below)
    text = f"{what} {points(mean)} pp [{points(low, high)}]; claim: {wanted} pp"
    verdict = verdict_of(low, high, above=above, below=below)
    return Finding(verdict, text, 100 * detectable(low, high, confidence), "pp")


# ---------------------------------------------------------------- arms by role


def rates(runs: Runs) -> tuple[float, float]:
    """The low and the high rate that the claims mean.

    Raises:
        Untestable: The study has one rate only.
    """
    held = sorted({arm.rate for arm in runs.arms if arm.rate is not None})
    if len(held) < 2:
        raise Untestable("one learning rate only")
    declared = runs.study.rates if runs.study else None
    if declared and {declared.low, declared.high} <= set(held):
        return declared.low, declared.high
    return held[0], held[-1]


def drop_of(runs: Runs) -> str:
    """The metric of forgetting that the runs have."""
    return next((name for name in DROPS if runs.measured(name)), DROPS[0])


def where(
    runs: Runs,
    *,
    kl: str | None = None,
    rollout: str | None = None,
    rate: float | None = None,
    least: int = 1,
) -> list[int]:
    """Places of the arms in these roles.

    Raises:
        Untestable: There are fewer than `least`.
    """
    found = [
        i
        for i, arm in enumerate(runs.arms)
        if (kl is None or arm.kl == kl)
        and (rollout is None or arm.rollout == rollout)
        and (rate is None or arm.rate == rate)
    ]
    if len(found) < least:
        wanted = [kl and f"{kl} KL", rollout and f"{rollout} rollouts", rate and f"rate {rate:g}"]
        roles = ", ".join(str(part) for part in wanted if part)
        raise Untestable(f"needs {least} arms with {roles}; this study has {len(found)}")
    return found


def matched(runs: Runs) -> list[tuple[int, int]]:
    """(teacher, student) places of the arms that differ in the rollout policy only.

    Raises:
        Untestable: There is no such pair.
    """
    place = {arm.key: i for i, arm in enumerate(runs.arms)}
    pairs: list[tuple[int, int]] = []
    for i, arm in enumerate(runs.arms):
        if arm.levels.get(ROLLOUT) == "teacher":
            other = place.get(_with(arm, ROLLOUT, "student"))
            if other is not None:
                pairs.append((i, other))
    if not pairs:
        raise Untestable("needs student and teacher rollouts as levels")
    return pairs


def _with(arm: Arm, factor: str, label: str) -> tuple[str, ...]:
    return tuple({**arm.levels, factor: label}.values())


def rank_correlation(a: Floats, b: Floats) -> float | None:
    """Spearman's rank correlation with mean ranks for ties; None where one side is constant."""
    x, y = _ranks(a), _ranks(b)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def _ranks(values: Floats) -> Floats:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + 1 + ends) / 2)[place]
