"""Two cells of a study against each other, as text."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fractionate.analysis.compare import Compared, Comparison
from fractionate.analysis.metrics_table import describe, in_points
from fractionate.cli.errors import BadInputError
from fractionate.cli.exporting import find_cell
from fractionate.cli.measures import shown
from fractionate.cli.printing import table

if TYPE_CHECKING:
    from fractionate.api import Results
    from fractionate.records import CellResult


def cell_result(results: "Results", name: str) -> "CellResult":
    """The records of a finished cell, by its name or the key of its training.

    Raises:
        BadInputError: The study has no such cell, or it is not finished.
    """
    stages = find_cell(name, [results.plan])
    if stages is None:
        cells = ", ".join(f"'{cell.name}'" for cell in results.plan.cells)
        raise BadInputError(f"there is no cell '{name}'. Cells: {cells}")
    for cell in results.outcomes.cells:
        if cell.cell == stages.cell.name:
            return cell
    raise BadInputError(f"the cell '{stages.cell.name}' is not finished. Run the study first")


def only(found: Comparison, metrics: Sequence[str] | None) -> Comparison:
    """The comparison with some metrics, all if none is named.

    Raises:
        BadInputError: A metric was not measured by both.
    """
    if not metrics:
        return found
    there = {one.metric: one for one in found.metrics}
    for name in metrics:
        if name not in there:
            raise BadInputError(f"--metric {name}: both cells measured {', '.join(there)}")
    return replace(found, metrics=tuple(there[name] for name in metrics))


def comparison_text(found: Comparison) -> str:
    """The comparison for people."""
    differing = [f"{name}: {a} against {b}" for name, (a, b) in found.differing.items()]
    heads = ("metric", "A", "B", "A - B", "95 %", "only A", "only B", "p", "items")
    lines = [
        f"A: {found.first}",
        f"B: {found.second}",
        f"they differ in {'; '.join(differing) or 'nothing'}",
        "",
        table(heads, [_row(one) for one in found.metrics]),
        "",
        *found.notes,
    ]
    return "\n".join(lines)


def _row(one: Compared) -> tuple[str, ...]:
    interval = ""
    if one.low is not None and one.high is not None:
        interval = f"[{_difference(one.metric, one.low)}, {_difference(one.metric, one.high)}]"
    return (
        one.metric,
        shown(one.metric, one.first),
        shown(one.metric, one.second),
        _difference(one.metric, one.difference),
        interval,
        "" if one.only_first is None else str(one.only_first),
        "" if one.only_second is None else str(one.only_second),
        "" if one.p is None else f"{one.p:.3g}",
        str(one.items or ""),
    )


def _difference(metric: str, number: float) -> str:
    """A difference with its sign; of shares in percentage points."""
    if in_points(metric):
        return f"{100 * number:+.1f} pp"
    return f"{number:+.4g}{' nats' if describe(metric).unit == 'nats' else ''}"
