"""Paired contrasts: two levels of one factor, the same seed, the same everything else.

The unit is a pair of runs. The noise is the spread of the pair differences around their mean at
each setting of the other factors, pooled over the settings contrasted together, so that an effect
which differs between settings is not mistaken for noise.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special  # pyright: ignore[reportMissingTypeStubs] - scipy ships none

from fractionate.analysis.measure import by_suite, pass_values
from fractionate.analysis.runs import KL, Arm, Run, Runs
from fractionate.config import resolve
from fractionate.rng import stream
from fractionate.statistics import equivalence_test, hierarchical_bootstrap, t_critical

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
EXACT = 1e-9
"""Differences that vary by less than this share of their size vary by rounding only."""


@dataclass(frozen=True)
class PairedEffect:
    """Treatment minus control, in the unit of the outcome.

    Attributes:
        outcome: Metric.
        factor: Dotted path of the factor contrasted.
        treatment: Its level in the first run of a pair.
        control: Its level in the second.
        within: Levels of other factors that were held.
        difference: Mean over pairs.
        se: Its standard error; None with one seed, 0 where no spread is seen between seeds.
        df: Degrees of freedom, settings x (seeds - 1).
        low: Lower end of the 95 % t interval; None with one seed or without spread: noise that was
            not seen is not shown to be absent.
        high: Upper end.
        p: Two-sided p-value; None with one seed or without spread.
        pairs: Differences by pair (levels of the other factors, seed).
        item_low: Lower end of the 95 % bootstrap over seeds and items, paired by item; None where
            the outcome has no items, or no two items differ.
        item_high: Upper end.
    """

    outcome: str
    factor: str
    treatment: str
    control: str
    within: Mapping[str, str]
    difference: float
    se: float | None
    df: int
    low: float | None
    high: float | None
    p: float | None
    pairs: Mapping[tuple[str, ...], float]
    item_low: float | None = None
    item_high: float | None = None

    @property
    def told(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low is not None and self.high is not None and self.low * self.high > 0

    def equivalent(self, margin: float) -> bool:
        """Whether two one-sided tests show the difference to lie inside (-margin, margin).

        Without spread there is no test: seeds that agree exactly on a few items may hide noise.
        """
        if not self.se:
            return False
        test = equivalence_test(self.difference, se=self.se, df=self.df, margin=margin)
        return test.equivalent


def paired_effect(
    runs: Runs,
    outcome: str,
    factor: str,
    *,
    levels: tuple[str, str],
    within: Mapping[str, str] | None = None,
    items: bool = False,
) -> PairedEffect:
    """Treatment minus control over all pairs of runs that differ in nothing else.

    Args:
        runs: The study; only complete seeds are used.
        outcome: Metric at the last step.
        factor: Path or alias.
        levels: (treatment, control) labels.
        within: Labels of other factors, by path or alias, to which the contrast is confined.
        items: Also resample seeds and items, where the outcome has items.

    Raises:
        ValueError: An unknown factor or level, an outcome not measured, or no pair.
    """
    path = resolve(factor)
    held = {resolve(name): label for name, label in (within or {}).items()}
    for name, label in [*((path, label) for label in levels), *held.items()]:
        if label not in runs.levels.get(name, ()):
            there = ", ".join(runs.levels.get(name, ())) or "none: it is not varied"
            raise ValueError(f"'{name}' has no level '{label}'. Levels: {there}")
    values = dict(zip([arm.key for arm in runs.arms], runs.grid(outcome), strict=True))
    matched = _matches(runs, path, levels, held)
    differences = np.array([values[a.key] - values[b.key] for a, b in matched])
    se, df = _pooled(differences)
    mean = float(differences.mean())
    low = high = p = None
    if se:
        half = t_critical(df, CONFIDENCE) * se
        low, high, p = mean - half, mean + half, _two_sided(mean / se, df)
    ends = _item_ends(runs, outcome, matched) if items else None
    return PairedEffect(
        outcome=outcome,
        factor=path,
        treatment=levels[0],
        control=levels[1],
        within=held,
        difference=mean,
        se=se,
        df=df,
        low=low,
        high=high,
        p=p,
        pairs=_named(runs, path, matched, differences),
        item_low=ends[0] if ends else None,
        item_high=ends[1] if ends else None,
    )


def _two_sided(t: float, df: float) -> float:
    """Two-sided p-value of a t statistic."""
    return 2 * float(special.stdtr(df, -abs(t)))


def _matches(
    runs: Runs, factor: str, levels: tuple[str, str], held: Mapping[str, str]
) -> list[tuple[Arm, Arm]]:
    """Arms of treatment and control that share all other levels."""
    arms = {arm.key: arm for arm in runs.arms}
    matched: list[tuple[Arm, Arm]] = []
    for arm in runs.arms:
        if arm.levels[factor] != levels[0]:
            continue
        if any(arm.levels[name] != label for name, label in held.items()):
            continue
        other = arms.get(tuple({**arm.levels, factor: levels[1]}.values()))
        if other is not None:
            matched.append((arm, other))
    if not matched:
        raise ValueError(f"no two arms differ in '{factor}' ({levels[0]}, {levels[1]}) only")
    return matched


def _pooled(differences: Floats) -> tuple[float | None, int]:
    """Standard error of the mean of [settings, seeds], spread taken within settings."""
    settings, seeds = differences.shape
    df = settings * (seeds - 1)
    if df == 0:
        return None, 0
    within = differences - differences.mean(axis=1, keepdims=True)
    if np.abs(within).max() <= EXACT * np.abs(differences).max():
        return 0.0, df
    return math.sqrt(float((within**2).sum()) / df / differences.size), df


def _named(
    runs: Runs, factor: str, matched: list[tuple[Arm, Arm]], differences: Floats
) -> dict[tuple[str, ...], float]:
    named: dict[tuple[str, ...], float] = {}
    for (arm, _), row in zip(matched, differences, strict=True):
        others = tuple(label for name, label in arm.levels.items() if name != factor)
        for seed, value in zip(runs.complete.seeds, row, strict=True):
            named[(*others, f"seed {seed}")] = float(value)
    return named


def item_scores(run: Run, outcome: str) -> dict[str, float] | None:
    """Scores by item at the last step, or None where the outcome does not score single items."""
    step = max(run.cell.evaluations, default=None)
    if step is None:
        return None
    suites = by_suite(run.cell.evaluations[step])
    name, *parameters = outcome.split("@")
    if name in ("accuracy", "harder") and name in suites and not parameters:
        records = next(iter(suites[name].values()))
        return {record.item: record.correct / record.samples for record in records}
    if name == "pass" and len(parameters) == 2:
        records = suites.get("coverage", {}).get(float(parameters[1]))
        if records:
            scores = pass_values(records, int(parameters[0]))
            return {r.item: float(s) for r, s in zip(records, scores, strict=True)}
    return None


def _item_ends(
    runs: Runs, outcome: str, matched: list[tuple[Arm, Arm]]
) -> tuple[float, float] | None:
    """Bootstrap over seeds, then over the items both runs of a pair answered."""
    blocks: list[Floats] = []
    for seed in runs.complete.seeds:
        rows: list[Floats] = []
        for first, second in matched:
            a = item_scores(_with_seed(runs, first, seed), outcome)
            b = item_scores(_with_seed(runs, second, seed), outcome)
            if a is None or b is None or set(a) != set(b):
                return None
            rows.append(np.array([a[item] - b[item] for item in a]))
        blocks.append(np.mean(rows, axis=0))
    rng = stream(0, "seeds and items", outcome)
    interval = hierarchical_bootstrap(blocks, rng=rng, draws=2_000, method="percentile")
    return (interval.low, interval.high) if interval.low < interval.high else None


def _with_seed(runs: Runs, arm: Arm, seed: int) -> Run:
    return next(run for run in runs.of(arm) if run.cell.seed == seed)


def simple_effects(
    runs: Runs, outcome: str, factor: str, *, levels: tuple[str, str]
) -> tuple[PairedEffect, ...]:
    """The contrast at every setting of the other factors, with the spread pooled within a KL.

    An average over settings hides an effect that lives in one of them: read these beside it. The
    spread of pair differences is pooled over the settings that share a KL direction.

    Args:
        runs: The study.
        outcome: Metric at the last step.
        factor: Path or alias.
        levels: (treatment, control) labels.

    Raises:
        ValueError: As `paired_effect`.
    """
    path = resolve(factor)
    treated = [arm for arm in runs.arms if arm.levels.get(path) == levels[0]]
    effects: list[PairedEffect] = []
    for arm in treated:
        held = {name: label for name, label in arm.levels.items() if name != path}
        alone = paired_effect(runs, outcome, path, levels=levels, within=held)
        stratum = {KL: held[KL]} if KL in held else {}
        pooled = paired_effect(runs, outcome, path, levels=levels, within=stratum)
        effects.append(_with_spread_of(alone, pooled))
    return tuple(effects)


def _with_spread_of(effect: PairedEffect, pooled: PairedEffect) -> PairedEffect:
    """The effect with the standard error that the pooled spread gives its number of pairs."""
    if pooled.se is None:
        return effect
    se = pooled.se * math.sqrt(len(pooled.pairs) / len(effect.pairs))
    if se == 0:
        return replace(effect, se=se, df=pooled.df, low=None, high=None, p=None)
    half = t_critical(pooled.df, CONFIDENCE) * se
    return replace(
        effect,
        se=se,
        df=pooled.df,
        low=effect.difference - half,
        high=effect.difference + half,
        p=_two_sided(effect.difference / se, pooled.df),
    )


@dataclass(frozen=True)
class Interaction:
    """A difference of differences: how much one factor's effect depends on another.

    Attributes:
        first: Effect under the first level of the second factor.
        second: Effect under its second level.
        difference: first - second, unit of the outcome.
        low: Lower end of the Satterthwaite interval; None with one seed or without spread.
        high: Upper end.
    """

    first: PairedEffect
    second: PairedEffect
    difference: float
    low: float | None
    high: float | None


def difference_of_differences(
    runs: Runs,
    outcome: str,
    *,
    first: tuple[str, tuple[str, str]],
    second: tuple[str, tuple[str, str]],
    confidence: float = CONFIDENCE,
) -> Interaction:
    """The effect of one factor at two levels of another, and their difference.

    Args:
        runs: The study.
        outcome: Metric at the last step.
        first: A factor and its (treatment, control).
        second: Another factor and its two levels.
        confidence: Coverage of the interval.

    Raises:
        ValueError: As `paired_effect`.
    """
    a, b = (
        paired_effect(runs, outcome, first[0], levels=first[1], within={second[0]: level})
        for level in second[1]
    )
    difference = a.difference - b.difference
    if a.se is None or b.se is None or a.se + b.se == 0:
        return Interaction(a, b, difference, None, None)
    variance = a.se**2 + b.se**2
    df = variance**2 / (a.se**4 / a.df + b.se**4 / b.df)
    half = t_critical(df, confidence) * math.sqrt(variance)
    return Interaction(a, b, difference, difference - half, difference + half)
