"""What figures draw, before any drawing library: points with intervals, lines, colours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fractionate.analysis.attribution import cell_intervals
from fractionate.analysis.metrics_table import describe, in_points
from fractionate.analysis.runs import RATE, Arm, Run, Runs

SERIES_COLOURS: Mapping[tuple[str, str], str] = {
    ("student", "forward"): "#2f6fb7",
    ("teacher", "forward"): "#2b9a9a",
    ("student", "reverse"): "#cf5a36",
    ("teacher", "reverse"): "#b98318",
}
"""One colour per rollout x KL in every figure: cool is forward, warm is reverse."""

OTHER_COLOURS = ("#7a5ea8", "#4d8b3c", "#b04a7d", "#6b7785", "#8a5a3b", "#3f8fbf", "#a8a13a")
GREY = "#808790"

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
"""Line styles by rising learning rate."""


@dataclass(frozen=True)
class Point:
    """A mean over seeds.

    Attributes:
        arm: Whose.
        mean: In percent for shares, else in the metric's unit.
        low: Lower end of its 95 % interval.
        high: Upper end.
        seeds: Single runs.
    """

    arm: Arm
    mean: float
    low: float
    high: float
    seeds: tuple[float, ...]


@dataclass(frozen=True)
class Curve:
    """A line over steps.

    Attributes:
        arm: Whose.
        seed: None for the mean over seeds.
        x: Steps.
        y: Values, in percent for shares.
    """

    arm: Arm
    seed: int | None
    x: tuple[int, ...]
    y: tuple[float, ...]


def scale_of(metric: str) -> float:
    """What a stored value is multiplied by when it is drawn."""
    return 100.0 if in_points(metric) else 1.0


def axis_label(metric: str) -> str:
    """Axis title with unit."""
    found = describe(metric)
    unit = "%" if found.unit == "share" else "" if found.unit == "norm" else found.unit
    return f"{found.label}, {unit}" if unit else found.label


def colours(runs: Runs) -> dict[str, str]:
    """Colour by series: fixed for rollout x KL, then from a short list."""
    chosen: dict[str, str] = {}
    spare = iter(OTHER_COLOURS * len(runs.arms))
    for arm in runs.arms:
        own = (arm.rollout or "", arm.kl or "")
        if arm.series in chosen:
            continue
        free = own in SERIES_COLOURS and SERIES_COLOURS[own] not in chosen.values()
        chosen[arm.series] = SERIES_COLOURS[own] if free else next(spare)
    return chosen


def rate_levels(runs: Runs) -> tuple[float, ...]:
    """Learning rates of the study, rising; empty where it is unknown or not varied."""
    if RATE not in runs.varied():
        return ()
    return tuple(sorted({arm.rate for arm in runs.arms if arm.rate is not None}))


def rate_place(runs: Runs, arm: Arm) -> int:
    """Place of an arm's rate among the study's, 0 where rates do not vary."""
    levels = rate_levels(runs)
    return levels.index(arm.rate) if arm.rate in levels else 0


def points(runs: Runs, metric: str) -> list[Point]:
    """Final means of every arm that has the metric."""
    scale = scale_of(metric)
    intervals = cell_intervals(runs, metric)
    found: list[Point] = []
    for arm in runs.arms:
        if arm.key in intervals:
            mean, low, high = (scale * value for value in intervals[arm.key])
            seeds = tuple(
                scale * run.final[metric].value for run in runs.of(arm) if metric in run.final
            )
            found.append(Point(arm, mean, low, high, seeds))
    return found


def untrained(runs: Runs, metric: str) -> float | None:
    """Mean of the untrained student over seeds, drawn as the hollow circle; None if unknown."""
    values = [
        run.by_step[0][metric].value
        for run in runs.of(runs.arms[0])
        if 0 in run.by_step and metric in run.by_step[0]
    ]
    return scale_of(metric) * float(np.mean(values)) if values else None


def evaluation_curves(runs: Runs, metric: str) -> list[Curve]:
    """Mean over seeds at every evaluated step, for arms evaluated at two or more."""
    scale = scale_of(metric)
    curves: list[Curve] = []
    for arm in runs.arms:
        at: dict[int, list[float]] = {}
        for run in runs.of(arm):
            for step, values in run.by_step.items():
                if metric in values:
                    at.setdefault(step, []).append(scale * values[metric].value)
        if len(at) > 1:
            steps = tuple(sorted(at))
            curves.append(Curve(arm, None, steps, tuple(float(np.mean(at[s])) for s in steps)))
    return curves


def step_curves(runs: Runs, field: str, *, single: bool) -> list[Curve]:
    """A field of the step records: the mean over seeds, and every seed if `single`."""
    curves: list[Curve] = []
    for arm in runs.arms:
        known = [(run, values) for run in runs.of(arm) if (values := _field(run, field))]
        if not known:
            continue
        if single:
            curves += [
                Curve(arm, run.cell.seed, tuple(values), tuple(values.values()))
                for run, values in known
            ]
        shared = [s for s in known[0][1] if all(s in values for _, values in known)]
        means = tuple(float(np.mean([values[s] for _, values in known])) for s in shared)
        curves.append(Curve(arm, None, tuple(shared), means))
    return curves


def _field(run: Run, field: str) -> dict[int, float]:
    """Values of a field by step, where it was recorded."""
    values: dict[int, float] = {}
    for step in run.cell.steps:
        value: object = getattr(step, field)
        if isinstance(value, int | float):
            values[step.step] = float(value)
    return values


def by_series(found: Sequence[Point]) -> dict[str, list[Point]]:
    """Points grouped into series, by rising rate."""
    groups: dict[str, list[Point]] = {}
    for point in sorted(found, key=lambda point: point.arm.rate or 0.0):
        groups.setdefault(point.arm.series, []).append(point)
    return groups
