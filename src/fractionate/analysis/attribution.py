"""Which knob explains how much of an outcome, and the frozen rule for saying so.

Unit: one run. Model: all factors with all their interactions, seeds as additive blocks (a seed
fixes the student base, the prompts and the random streams of all its arms). Intervals of omega^2:
a wild bootstrap of the residuals of that model (signs drawn at random, scaled by sqrt(N / df)),
because two or three seeds have too few distinct resamples to be drawn with replacement, and
because the noise of arms that collapse must not be lent to arms that do not. They speak of new
seeds on these items.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fractionate.analysis.knobs import FIRST, Knob, Share, Swing, decide
from fractionate.analysis.metrics_table import describe
from fractionate.analysis.runs import Arm, Runs
from fractionate.config import resolve
from fractionate.rng import stream
from fractionate.statistics import Anova, factorial_anova, t_critical

Floats = NDArray[np.float64]

DRAWS = 4_000
CONFIDENCE = 0.95
EXACT = 1e-12
"""Values that differ by less than this share of their size differ by rounding only."""
ONE_SEED = "one seed: a difference between two runs cannot be told from the noise of a run"
NO_SPREAD = "no spread is seen between seeds, so the noise of a run is unknown"


@dataclass(frozen=True)
class Attribution:
    """What moved one outcome.

    Attributes:
        outcome: Metric.
        knobs: By falling omega^2.
        interactions: By falling omega^2.
        named: The factor that explains most by the rule of `attribute`; None: cannot be told, or
            `joint`.
        joint: The interaction that explains more than any single knob, by the same rule.
        reason: Why a factor is named, or why none is.
        anova: The analysis of variance; None where there is none (see `reason`).
        residual_sd: Standard deviation of a run within its cell and seed, unit of the outcome; 0
            where no spread was seen.
        runs: Runs used.
        seeds: Seeds used.
    """

    outcome: str
    knobs: tuple[Knob, ...]
    interactions: tuple[Share, ...]
    named: str | None
    joint: Share | None
    reason: str
    anova: Anova | None
    residual_sd: float | None
    runs: int
    seeds: int


def attribute(runs: Runs, outcome: str, factors: Sequence[str] = ()) -> Attribution:
    """Attribute the spread of an outcome to the knobs that were varied.

    A knob is named, "explains most", only if its omega^2 interval lies above 0, it ranks first in
    at least 95 % of the bootstrap replicates, and the interval of its worst-case swing excludes 0.
    Where an interaction leads all terms by the same standard, no single knob is named but the
    interaction. Otherwise it cannot be told; so it is where the seeds agree exactly in every arm,
    because noise that was not seen is not shown to be absent.

    Args:
        runs: The study; only seeds that are complete in every arm are used.
        outcome: Metric at the last step.
        factors: Paths or aliases; all that vary by default. Others are averaged over.

    Raises:
        ValueError: The metric was not measured, a factor does not vary, or no seed is complete.
    """
    names = _factors(runs, factors)
    values = _cube(runs, outcome, names)
    seeds = values.shape[-1]
    if not names:
        return _nothing(outcome, values.size, seeds, "nothing is varied in this study")
    if bool(np.ptp(values) <= EXACT * np.abs(values).max()):
        return _nothing(outcome, values.size, seeds, _constant(outcome, float(values.flat[0])))
    labels = [runs.levels[name] for name in names]
    anova = _anova(values, names, labels)
    if seeds < 2 or not anova.residual.ms:
        knobs = _knobs(values, names, labels, None, None)
        why = ONE_SEED if seeds < 2 else NO_SPREAD
        sd = None if seeds < 2 else 0.0
        return Attribution(outcome, knobs, (), None, None, why, anova, sd, values.size, seeds)
    replicates = _wild_replicates(values, outcome)
    knobs = _knobs(values, names, labels, anova, replicates)
    interactions = _interactions(anova, replicates, len(names))
    joint = _joint(interactions, anova, replicates)
    named, reason = (None, "no single knob") if joint else decide(knobs)
    sd = math.sqrt(anova.residual.ms)
    size = values.size
    return Attribution(outcome, knobs, interactions, named, joint, reason, anova, sd, size, seeds)


def _nothing(outcome: str, size: int, seeds: int, reason: str) -> Attribution:
    return Attribution(outcome, (), (), None, None, reason, None, None, size, seeds)


def _constant(outcome: str, value: float) -> str:
    """Why an outcome that is the same in every run attributes nothing."""
    found = describe(outcome)
    if found.unit == "share" and found.higher_is_better and value == 0:
        return "at the floor: no student solves any"
    return "it is the same in every run"


def _factors(runs: Runs, asked: Sequence[str]) -> list[str]:
    varied = runs.varied()
    names = list(dict.fromkeys(resolve(name) for name in asked)) or list(varied)
    for name in names:
        if name not in varied:
            raise ValueError(
                f"this study does not vary '{name}'. It varies: {', '.join(varied) or 'nothing'}"
            )
    return names


def _cube(runs: Runs, outcome: str, names: Sequence[str]) -> Floats:
    """Outcome [levels of each factor, seeds], averaged over the factors not named."""
    every = list(runs.levels)
    shape = [len(labels) for labels in runs.levels.values()]
    cube = runs.grid(outcome).reshape(*shape, -1)
    others = tuple(axis for axis, name in enumerate(every) if name not in names)
    cube = cube.mean(axis=others)
    kept = [name for name in every if name in names]
    return np.moveaxis(cube, [kept.index(name) for name in names], range(len(names)))


def _anova(values: Floats, names: Sequence[str], labels: Sequence[tuple[str, ...]]) -> Anova:
    """The table, with seeds as blocks where there are several."""
    index = list(itertools.product(*(range(size) for size in values.shape)))
    columns = {
        name: [labels[axis][place[axis]] for place in index] for axis, name in enumerate(names)
    }
    several = values.shape[-1] > 1
    return factorial_anova(
        values.ravel(),
        columns,
        blocks={"seed": [place[-1] for place in index]} if several else None,
        levels=dict(zip(names, labels, strict=True)),
    )


# ---------------------------------------------------------------- replicates


def _terms(factors: int) -> list[tuple[int, ...]]:
    """Axes of every main effect and interaction, by rising order."""
    axes = range(factors)
    return [term for k in range(1, factors + 1) for term in itertools.combinations(axes, k)]


def omega_squared(cubes: Floats) -> Floats:
    """omega^2 [draws, terms] of complete factorials with additive seed blocks.

    Args:
        cubes: [draws, levels of each factor, seeds >= 2].

    Returns:
        (SS - df MSE) / (SST + MSE) per term, main effects first; 0 where nothing varies.
    """
    draws, factors = cubes.shape[0], cubes.ndim - 2
    shape = cubes.shape[1:]
    size, seeds = math.prod(shape), shape[-1]
    axes = tuple(range(1, cubes.ndim))

    def sum_of_squares(part: Floats) -> Floats:
        return (part**2).sum(axis=axes) * (size / math.prod(part.shape[1:]))

    centred = cubes - cubes.mean(axis=axes, keepdims=True)
    total = sum_of_squares(centred)
    ss: list[Floats] = []
    df: list[int] = []
    for term in _terms(factors):
        part = centred
        for axis in range(cubes.ndim - 1):
            mean = part.mean(axis=axis + 1, keepdims=True)
            part = part - mean if axis in term else mean
        ss.append(sum_of_squares(part))
        df.append(math.prod(shape[axis] - 1 for axis in term))
    blocks = sum_of_squares(centred.mean(axis=axes[:-1], keepdims=True))
    explained = np.stack(ss, axis=1)
    residual = np.maximum(total - blocks - explained.sum(axis=1), 0.0)
    mse = residual / (size - size // seeds - (seeds - 1))
    scale = (total + mse)[:, None]
    share = np.zeros((draws, len(df)))
    return np.divide(explained - np.array(df) * mse[:, None], scale, out=share, where=scale > 0)


def _wild_replicates(values: Floats, outcome: str) -> Floats:
    """omega^2 [draws, terms] with the signs of the residuals drawn at random."""
    seeds = values.shape[-1]
    cell = values.mean(axis=-1, keepdims=True)
    block = values.mean(axis=tuple(range(values.ndim - 1)), keepdims=True) - values.mean()
    fitted = cell + block
    df = values.size - values.size // seeds - (seeds - 1)
    residual = (values - fitted) * math.sqrt(values.size / df)
    signs = stream(0, "wild bootstrap", outcome).integers(0, 2, (DRAWS, *values.shape)) * 2.0 - 1.0
    return omega_squared(fitted[None] + signs * residual[None])


# ---------------------------------------------------------------- the triple per knob


def _ends(replicates: Floats) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(replicates, (tail, 1 - tail))
    return float(low), float(high)


def _knobs(
    values: Floats,
    names: Sequence[str],
    labels: Sequence[tuple[str, ...]],
    anova: Anova | None,
    replicates: Floats | None,
) -> tuple[Knob, ...]:
    knobs: list[Knob] = []
    for axis, name in enumerate(names):
        share, first, half, effect = Share((name,), None, None, None), None, None, None
        if anova is not None and replicates is not None:
            term = anova.term(name)
            share = Share((name,), term.omega2, *_ends(replicates[:, axis]))
            leads = replicates[:, axis] >= replicates[:, : len(names)].max(axis=1)
            first, effect = float(leads.mean()), term.effect
            if effect is not None and anova.residual.ms is not None:
                critical = t_critical(anova.residual.df, CONFIDENCE)
                half = critical * 2 * math.sqrt(anova.residual.ms / anova.n)
        swing = _swing(values, axis, labels, anova if replicates is not None else None)
        knobs.append(Knob(name, share, first, swing, effect, half))
    return tuple(sorted(knobs, key=lambda knob: -(knob.share.omega2 or -math.inf)))


def _swing(
    values: Floats, axis: int, labels: Sequence[tuple[str, ...]], anova: Anova | None
) -> Swing:
    """Worst setting, with a Bonferroni t interval over all settings and pairs of levels.

    The variance is the larger of the pooled one and that of the two cells: an arm that collapses
    gets its own, and a lucky pair of equal runs does not pass for certainty.
    """
    seeds = values.shape[-1]
    moved = np.moveaxis(values, axis, 0)
    levels = moved.shape[0]
    cells = moved.reshape(levels, -1, seeds)
    means = cells.mean(axis=-1)
    setting = int(np.argmax(np.ptp(means, axis=0)))
    best, worst = int(means[:, setting].argmax()), int(means[:, setting].argmin())
    value = float(means[best, setting] - means[worst, setting])
    others = [labels[i] for i in range(len(labels)) if i != axis]
    place = np.unravel_index(setting, tuple(len(each) for each in others)) if others else ()
    at = tuple(each[int(i)] for each, i in zip(others, place, strict=True))
    low = high = None
    if anova is not None and anova.residual.ms is not None:
        own = float(cells[[best, worst], setting].var(axis=-1, ddof=1).mean())
        comparisons = means.shape[1] * levels * (levels - 1) // 2
        critical = t_critical(anova.residual.df, 1 - (1 - CONFIDENCE) / comparisons)
        half = critical * math.sqrt(2 * max(anova.residual.ms, own) / seeds)
        low, high = value - half, value + half
    return Swing(value, low, high, labels[axis][best], labels[axis][worst], at)


def _interactions(anova: Anova, replicates: Floats, factors: int) -> tuple[Share, ...]:
    shares = [
        Share(term.factors, term.omega2, *_ends(replicates[:, i]))
        for i, term in enumerate(anova.terms)
        if i >= factors
    ]
    return tuple(sorted(shares, key=lambda share: -(share.omega2 or -math.inf)))


def _joint(interactions: Sequence[Share], anova: Anova, replicates: Floats) -> Share | None:
    """The interaction that leads every other term, or None."""
    if not interactions or interactions[0].low is None or interactions[0].low <= 0:
        return None
    place = [term.factors for term in anova.terms].index(interactions[0].factors)
    leads = replicates[:, place] >= replicates.max(axis=1)
    return interactions[0] if float(leads.mean()) >= FIRST else None


def cell_intervals(runs: Runs, metric: str) -> dict[tuple[str, ...], tuple[float, float, float]]:
    """Mean over seeds of every arm with a 95 % t interval, from the spread pooled within a KL.

    With two or three seeds a cell's own spread says little, so it is pooled over the arms that
    share a KL direction: reverse-KL arms may collapse, and must not widen or narrow the others.
    One seed: the interval over its items, if there is one.

    Returns:
        (mean, low, high) by arm key; low and high are the mean where nothing is known.
    """
    groups: dict[str | None, list[Arm]] = {}
    for arm in runs.arms:
        groups.setdefault(arm.kl, []).append(arm)
    found: dict[tuple[str, ...], tuple[float, float, float]] = {}
    for arms in groups.values():
        values = {
            arm.key: [run.final[metric].value for run in runs.of(arm) if metric in run.final]
            for arm in arms
        }
        squares = sum(float(np.var(v)) * len(v) for v in values.values() if v)
        df = sum(len(v) - 1 for v in values.values() if v)
        for arm in arms:
            if not values[arm.key]:
                continue
            mean = float(np.mean(values[arm.key]))
            if df > 0:
                se = math.sqrt(squares / df / len(values[arm.key]))
                half = t_critical(df, CONFIDENCE) * se
                found[arm.key] = (mean, mean - half, mean + half)
            else:
                value = runs.of(arm)[0].final[metric]
                low, high = value.low, value.high
                found[arm.key] = (
                    mean,
                    mean if low is None else low,
                    mean if high is None else high,
                )
    return found
