"""Finished runs with their measurements, grouped into the arms that a study compares."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fractionate.analysis.measure import (
    Value,
    cost_values,
    evaluation_values,
    training_values,
    weight_values,
)
from fractionate.analysis.metrics_table import describe
from fractionate.config import Study, format_value
from fractionate.records import CellResult, EvalRecord

Floats = NDArray[np.float64]

ROLLOUT, KL, RATE = "method.rollout", "method.divergence", "optimizer.lr"


class IncompleteStudyError(ValueError):
    """Cells of the study are missing, so its contrasts would compare unlike with unlike.

    Attributes:
        missing: Names of the missing cells.
    """

    def __init__(self, missing: Sequence[str], expected: int) -> None:
        """Name the missing cells among the number of `expected` ones."""
        self.missing = tuple(missing)
        super().__init__(
            f"{len(self.missing)} of {expected} cells are missing: {', '.join(self.missing)}. "
            "Run the study again to finish them, or pass allow_missing=True to use the seeds "
            "that are complete"
        )


@dataclass(frozen=True)
class Completeness:
    """What an analysis of these cells rests on.

    Attributes:
        missing: Cells that the study has but that are not there.
        seeds: Seeds that are complete in every arm, the only ones in the contrasts.
        dropped_seeds: Seeds left out of the contrasts because an arm lacks them.
    """

    missing: tuple[str, ...]
    seeds: tuple[int, ...]
    dropped_seeds: tuple[int, ...]

    @property
    def note(self) -> str | None:
        """One sentence about what is left out, or None."""
        if not self.missing and not self.dropped_seeds:
            return None
        lost = f"missing cells: {', '.join(self.missing)}" if self.missing else "cells are missing"
        used = ", ".join(str(seed) for seed in self.seeds) or "none"
        return f"{lost}; contrasts use the seeds that are complete in every arm: {used}"


@dataclass(frozen=True)
class Run:
    """One cell with everything measured of it.

    Attributes:
        cell: Its records.
        by_step: Values by step and metric.
        final: Values at the last step, costs included.
    """

    cell: CellResult
    by_step: Mapping[int, Mapping[str, Value]]
    final: Mapping[str, Value]


@dataclass(frozen=True)
class Arm:
    """A combination of factor levels.

    Attributes:
        levels: Level label by factor path.
        rollout: Its rollout label, varied or fixed; None if unknown.
        kl: Its divergence label.
        rate: Its learning rate.
        lam: Its place on the rollout spectrum; None elsewhere.
    """

    levels: Mapping[str, str]
    rollout: str | None
    kl: str | None
    rate: float | None
    lam: float | None

    @property
    def key(self) -> tuple[str, ...]:
        """Level labels in the order of the factors."""
        return tuple(self.levels.values())

    @property
    def series(self) -> str:
        """What shares a line in figures: everything but the rate."""
        labels = [label for factor, label in self.levels.items() if factor != RATE]
        return " · ".join(labels) or "all runs"

    @property
    def label(self) -> str:
        """All levels, for tables."""
        return " · ".join(self.levels.values()) or "all runs"


@dataclass(frozen=True)
class Runs:
    """The runs of a study, ready to be compared.

    Attributes:
        runs: Every finished cell.
        levels: Level labels by factor, in declared order.
        arms: Arms in declared order.
        complete: What is missing.
        study: Its configuration, if known.
    """

    runs: tuple[Run, ...]
    levels: Mapping[str, tuple[str, ...]]
    arms: tuple[Arm, ...]
    complete: Completeness
    study: Study | None

    def of(self, arm: Arm) -> list[Run]:
        """The runs of one arm, by seed."""
        return [run for run in self.runs if arm_key(run.cell) == arm.key]

    def seeds(self) -> tuple[int, ...]:
        """All seeds, complete or not."""
        return tuple(dict.fromkeys(run.cell.seed for run in self.runs))

    def measured(self, metric: str) -> bool:
        """Whether every run holds the metric at its last step."""
        return all(metric in run.final for run in self.runs)

    def grid(self, metric: str) -> Floats:
        """Final values [arms, seeds] over the complete seeds.

        Raises:
            ValueError: The study did not measure the metric, or has no complete seed.
        """
        if not self.measured(metric):
            describe(metric)
            there = ", ".join(dict.fromkeys(name for run in self.runs for name in run.final))
            raise ValueError(f"not every cell measured '{metric}'. Measured: {there}")
        if not self.complete.seeds:
            raise ValueError("no seed is complete in every arm: there is nothing to contrast")
        place = {(arm_key(run.cell), run.cell.seed): run for run in self.runs}
        return np.array(
            [
                [place[arm.key, seed].final[metric].value for seed in self.complete.seeds]
                for arm in self.arms
            ]
        )

    def varied(self) -> dict[str, tuple[str, ...]]:
        """Factors with at least two levels."""
        return {name: labels for name, labels in self.levels.items() if len(labels) > 1}


def arm_key(cell: CellResult) -> tuple[str, ...]:
    """The levels of a cell without its seed."""
    return tuple(cell.factors.values())


def factor_names(cells: Sequence[CellResult]) -> tuple[str, ...]:
    """Dotted paths of the factors, in declared order.

    Raises:
        ValueError: No cell, a cell name twice, or cells that vary different factors.
    """
    if not cells:
        raise ValueError("there are no cells: run the study first")
    names = tuple(cells[0].factors)
    odd = [cell.cell for cell in cells if tuple(cell.factors) != names]
    if odd:
        raise ValueError(f"cells {', '.join(odd)} vary other factors than {', '.join(names)}")
    seen: set[str] = set()
    for cell in cells:
        if cell.cell in seen:
            raise ValueError(f"the cell name '{cell.cell}' stands twice: names must be unique")
        seen.add(cell.cell)
    return names


def level_order(cells: Sequence[CellResult]) -> dict[str, tuple[str, ...]]:
    """Level labels per factor in order of first appearance; cells come in the declared order."""
    return {
        name: tuple(dict.fromkeys(cell.factors[name] for cell in cells))
        for name in factor_names(cells)
    }


def completeness(cells: Sequence[CellResult], expected: Sequence[str] = ()) -> Completeness:
    """Which cells and seeds there are.

    Args:
        cells: Finished cells.
        expected: Names of all cells of the study; empty if unknown, in which case holes in the
            factorial are still noticed.
    """
    factor_names(cells)
    present = {cell.cell for cell in cells}
    arms: dict[tuple[str, ...], set[int]] = {}
    for cell in cells:
        arms.setdefault(arm_key(cell), set()).add(cell.seed)
    seeds = tuple(dict.fromkeys(cell.seed for cell in cells))
    grid = int(np.prod([len(labels) for labels in level_order(cells).values()]))
    full = [seed for seed in seeds if all(seed in held for held in arms.values())]
    complete = tuple(full) if len(arms) == grid else ()
    return Completeness(
        missing=tuple(name for name in expected if name not in present),
        seeds=complete,
        dropped_seeds=tuple(seed for seed in seeds if seed not in complete),
    )


def complete_or_raise(
    cells: Sequence[CellResult], expected: Sequence[str] = (), *, allow_missing: bool = False
) -> Completeness:
    """Refuse an incomplete study, or say what is used of it.

    Raises:
        IncompleteStudyError: Cells are missing and `allow_missing` is False.
        ValueError: As `factor_names`.
    """
    found = completeness(cells, expected)
    missing = list(found.missing)
    if not missing and found.dropped_seeds:
        missing = _holes(cells)
    if missing and not allow_missing:
        raise IncompleteStudyError(missing, max(len(expected), len(cells) + len(missing)))
    return found


def _holes(cells: Sequence[CellResult]) -> list[str]:
    """Arms without a seed that others have, when nobody says which cells were planned."""
    there = {(arm_key(cell), cell.seed) for cell in cells}
    arms = dict.fromkeys(arm_key(cell) for cell in cells)
    holes = [
        f"{' '.join(arm)} seed {seed}"
        for arm in arms
        for seed in dict.fromkeys(cell.seed for cell in cells)
        if (arm, seed) not in there
    ]
    return holes or ["some combinations of factor levels have no cell at all"]


def gather(
    cells: Sequence[CellResult],
    *,
    study: Study | None = None,
    base_evaluations: Mapping[int, Sequence[EvalRecord]] | None = None,
    expected: Sequence[str] = (),
    allow_missing: bool = False,
) -> Runs:
    """Measure every cell and group the cells into arms.

    Args:
        cells: Finished cells, in the order of the plan.
        study: Its configuration; says what is fixed where it does not vary.
        base_evaluations: Item records of the untrained student by base, for cells whose own step 0
            was not evaluated.
        expected: Names of all planned cells.
        allow_missing: Use what is there, contrasts on the complete seeds only.

    Raises:
        IncompleteStudyError: Cells are missing and `allow_missing` is False.
        ValueError: As `factor_names`.
    """
    found = complete_or_raise(cells, expected, allow_missing=allow_missing)
    levels = level_order(cells)
    first = {arm_key(cell): cell for cell in reversed(cells)}
    rank = {name: {label: i for i, label in enumerate(labels)} for name, labels in levels.items()}

    def place(cell: CellResult) -> tuple[int, ...]:
        return tuple(rank[name][label] for name, label in cell.factors.items())

    arms = tuple(_arm(cell, study) for cell in sorted(first.values(), key=place))
    runs = tuple(measured_run(cell, base_evaluations) for cell in cells)
    return Runs(runs, levels, arms, found, study)


def _arm(cell: CellResult, study: Study | None) -> Arm:
    """The arm of a cell; what is not varied is read from the study."""
    rollout = study.method.rollout.label if study else None
    kl = study.method.divergence.label if study else None
    rate = format_value(study.optimizer.lr) if study else None
    rollout, kl = cell.factors.get(ROLLOUT, rollout), cell.factors.get(KL, kl)
    rate = cell.factors.get(RATE, rate)
    lam = re.fullmatch(r"spectrum\(lam=([-+0-9.e]+).*\)", rollout or "")
    return Arm(
        levels=dict(cell.factors),
        rollout=rollout,
        kl=kl,
        rate=float(rate) if rate is not None else None,
        lam=float(lam.group(1)) if lam else None,
    )


def final_step(cell: CellResult) -> int:
    """The last step of a cell that left any record."""
    trained = cell.steps[-1].step if cell.steps else 0
    return max([trained, *cell.evaluations, *cell.weights])


def measured_run(
    cell: CellResult, base_evaluations: Mapping[int, Sequence[EvalRecord]] | None = None
) -> Run:
    """One cell with everything measured of it.

    Args:
        cell: Its records.
        base_evaluations: Item records of the untrained student by base, for a cell whose own step
            0 was not evaluated.
    """
    bases = base_evaluations or {}
    last = final_step(cell)
    by_step: dict[int, dict[str, Value]] = {last: {}}
    base = cell.evaluations[0] if 0 in cell.evaluations else bases.get(cell.base)
    for step, value in _values(cell, last, base):
        by_step.setdefault(step, {})[value.metric] = value
    return Run(cell, dict(sorted(by_step.items())), by_step[last])


def _values(
    cell: CellResult, last: int, base: Sequence[EvalRecord] | None
) -> Iterator[tuple[int, Value]]:
    for step, records in cell.evaluations.items():
        for value in evaluation_values(records, base):
            yield step, value
    for step, record in cell.weights.items():
        for value in weight_values(record):
            yield step, value
    if cell.steps:
        for value in training_values(cell.steps):
            yield last, value
    for value in cost_values(cell):
        yield last, value
