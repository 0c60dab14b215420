"""Two cells side by side, paired by item."""

from dataclasses import dataclass

import numpy as np

from fractionate.analysis.contrasts import item_scores
from fractionate.analysis.metrics_table import describe
from fractionate.analysis.runs import Run, measured_run
from fractionate.records import CellResult
from fractionate.rng import stream
from fractionate.statistics import bootstrap_interval, mcnemar_exact, paired_difference_se

NORMAL = 1.959963984540054


@dataclass(frozen=True)
class Compared:
    """One metric of two cells; differences are first minus second, in the metric's unit.

    Attributes:
        metric: Name.
        first: Value of the first cell.
        second: Value of the second.
        difference: first - second.
        low: Lower end of the 95 % interval over shared items (paired standard error for right or
            wrong answers, bootstrap otherwise); None where items are not the sample.
        high: Upper end.
        only_first: Items that only the first gets right; None unless answers are right or wrong.
        only_second: Items that only the second gets right.
        p: Exact McNemar test of the two; None unless answers are right or wrong.
        items: Shared items; 0 where items are not the sample.
    """

    metric: str
    first: float
    second: float
    difference: float
    low: float | None = None
    high: float | None = None
    only_first: int | None = None
    only_second: int | None = None
    p: float | None = None
    items: int = 0


@dataclass(frozen=True)
class Comparison:
    """Two cells.

    Attributes:
        first: Name.
        second: Name.
        differing: Factors (and "seed", "base") in which they differ, with both levels.
        metrics: Everything that both measured.
        notes: What a reader must know: several differences at once, items that are not shared.
    """

    first: str
    second: str
    differing: dict[str, tuple[str, str]]
    metrics: tuple[Compared, ...]
    notes: tuple[str, ...]


def compare_cells(first: CellResult, second: CellResult) -> Comparison:
    """Compare the final values of two cells.

    Intervals and tests speak of items: of these two trained models, not of the recipes behind
    them, which would need several seeds.

    Raises:
        ValueError: The cells share no metric.
    """
    a, b = measured_run(first), measured_run(second)
    shared = [name for name in a.final if name in b.final]
    if not shared:
        raise ValueError(f"'{first.cell}' and '{second.cell}' measured nothing in common")
    differing = _differing(first, second)
    metrics = tuple(_compare(name, a, b) for name in shared)
    notes = ["Intervals are over items: they speak of these two models, not of their recipes."]
    if len(differing) > 1:
        notes.append(
            f"The cells differ in {', '.join(differing)} at once: no single one of them is "
            "responsible for what differs."
        )
    for name in ("accuracy", "harder"):
        own, other = item_scores(a, name), item_scores(b, name)
        if own and other and set(own) != set(other):
            lost = len(set(own) ^ set(other))
            notes.append(f"{describe(name).label}: {lost} items are not shared and are left out.")
    return Comparison(first.cell, second.cell, differing, metrics, tuple(notes))


def _differing(first: CellResult, second: CellResult) -> dict[str, tuple[str, str]]:
    names = dict.fromkeys([*first.factors, *second.factors])
    sides = {
        name: (first.factors.get(name, "none"), second.factors.get(name, "none")) for name in names
    }
    sides["seed"] = (str(first.seed), str(second.seed))
    sides["base"] = (str(first.base), str(second.base))
    return {name: pair for name, pair in sides.items() if pair[0] != pair[1]}


def _compare(metric: str, first: Run, second: Run) -> Compared:
    x, y = first.final[metric].value, second.final[metric].value
    own, other = item_scores(first, metric), item_scores(second, metric)
    items = [item for item in own if item in other] if own and other else []
    if not own or not other or len(items) < 2:
        return Compared(metric, x, y, x - y)
    a = np.array([own[item] for item in items])
    b = np.array([other[item] for item in items])
    difference = float((a - b).mean())
    if not bool(np.isin(np.concatenate([a, b]), (0.0, 1.0)).all()):
        rng = stream(0, "compare", metric)
        interval = bootstrap_interval(a - b, rng=rng, draws=2_000, method="percentile")
        low, high = interval.low, interval.high
        return Compared(metric, x, y, difference, low, high, items=len(items))
    only_first, only_second = int((a > b).sum()), int((b > a).sum())
    half = NORMAL * paired_difference_se(only_first, only_second, len(items))
    p = mcnemar_exact(only_first, only_second)
    return Compared(
        metric, x, y, difference, difference - half, difference + half,
        only_first, only_second, p, len(items),
    )  # fmt: skip
