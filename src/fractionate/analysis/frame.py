"""The tidy table of a study: one row per cell, step and metric."""
# pyright: basic
# pandas ships no type information, so strict checking of this file would check its guesses.

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fractionate.analysis.metrics_table import describe
from fractionate.analysis.runs import Runs, final_step, gather
from fractionate.config import ALIASES, resolve
from fractionate.records import CellResult, EvalRecord

MEASURED = ("seed", "base", "step", "final", "metric", "unit", "value", "low", "high", "n")


def tidy(
    cells: Sequence[CellResult],
    *,
    base_evaluations: Mapping[int, Sequence[EvalRecord]] | None = None,
) -> pd.DataFrame:
    """One row per cell, step and metric; incomplete studies are shown as they are.

    Columns: `cell`; one per factor (its dotted path, an ordered categorical of level labels in
    declared order); `seed`, `base`, `step`; `final` (the cell's last step); `metric` and `unit` as
    in `metrics_table`; `value`; `low` and `high`, a 95 % interval over items (Wilson for one
    sample per item, bootstrap otherwise), missing where items are not what was sampled; `n`.
    `frame.attrs["factors"]` lists the factor columns; `select` takes their aliases.

    Args:
        cells: Finished cells.
        base_evaluations: Item records of the untrained student by base, for cells whose own step 0
            was not evaluated.

    Raises:
        ValueError: No cell, or cells that vary different factors.
    """
    return frame_of(gather(cells, base_evaluations=base_evaluations, allow_missing=True))


def frame_of(runs: Runs) -> pd.DataFrame:
    """The table of `tidy`, of runs that are measured already."""
    names = list(runs.levels)
    rows = []
    for run in runs.runs:
        cell, last = run.cell, final_step(run.cell)
        head = (cell.cell, *cell.factors.values(), cell.seed, cell.base)
        for step, values in run.by_step.items():
            for value in values.values():
                unit = describe(value.metric).unit
                tail = (value.metric, unit, value.value, value.low, value.high, value.n)
                rows.append((*head, step, step == last, *tail))
    frame = pd.DataFrame(rows, columns=["cell", *names, *MEASURED])
    for name, labels in runs.levels.items():
        frame[name] = pd.Categorical(frame[name], categories=list(labels), ordered=True)
    for end in ("low", "high"):
        frame[end] = frame[end].astype(float)
    frame.attrs["factors"] = names
    return frame


def select(frame: pd.DataFrame, metric: str, *, final: bool = True, **levels: str) -> pd.DataFrame:
    """Rows of one metric, at the final step unless told otherwise.

    Args:
        frame: From `tidy`.
        metric: Its name.
        final: Only the last step of every cell.
        levels: Level labels by factor alias, e.g. `rollout="student"`.

    Raises:
        ValueError: The study does not hold the metric or the factor.
    """
    held = frame["metric"] == metric
    if not bool(np.any(held)):
        describe(metric)
        there = ", ".join(dict.fromkeys(frame["metric"]))
        raise ValueError(f"this study did not measure '{metric}'. It has: {there}")
    rows = frame[held & frame["final"]] if final else frame[held]
    for name, label in levels.items():
        rows = rows[rows[factor_column(frame, name)] == label]
    return pd.DataFrame(rows)


def factor_column(frame: pd.DataFrame, factor: str) -> str:
    """The column of a factor named by path or alias.

    Raises:
        ValueError: The study does not vary it.
    """
    path = resolve(factor)
    factors = [str(name) for name in frame.attrs.get("factors", [])]
    if path in factors:
        return path
    short = {path: alias for alias, path in ALIASES.items()}
    known = ", ".join(short.get(name, name) for name in factors)
    raise ValueError(f"this study does not vary '{factor}'. It varies: {known or 'nothing'}")
