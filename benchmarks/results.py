"""Results of benchmarks: rows of the summary, small tables, one JSON file for each script."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.common import Settings, Spread, Timings, environment, parser, settings_of


@dataclass(frozen=True)
class Row:
    """One line of the summary.

    Attributes:
        work: What was done.
        ours: Our figure, with its unit.
        peer: Theirs, with its unit; names the peer.
        measured: The ratio (peer over ours), or our own figure where `at_most`.
        must: What must hold, if anything.
        aim: What is aimed at, if anything.
        at_most: Whether smaller is better.
        unit: Of measured, must and aim.
        note: What a reader has to know.
    """

    work: str
    ours: str
    peer: str
    measured: Spread
    must: float | None = None
    aim: float | None = None
    at_most: bool = False
    unit: str = "x"
    note: str = ""

    @property
    def met(self) -> str:
        """Which of the two marks the median reaches."""
        if self.must is None and self.aim is None:
            return "-"
        for mark, name in ((self.aim, "aim"), (self.must, "must")):
            if mark is not None and self._reaches(mark):
                return name
        return "no"

    def _reaches(self, mark: float) -> bool:
        value = self.measured.median
        return value <= mark if self.at_most else value >= mark


@dataclass(frozen=True)
class Table:
    """A small table beside the summary, such as a scaling curve.

    Attributes:
        title: What it shows.
        columns: Names, units included.
        rows: Cells as text.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """What one benchmark found.

    Attributes:
        name: Of the script.
        title: What it compares.
        command: That repeats it.
        rows: For the summary.
        tables: Beside it.
        environment: Where it ran.
        seconds: How long it took.
    """

    name: str
    title: str
    command: str
    rows: Sequence[Row] = ()
    tables: Sequence[Table] = ()
    environment: str = ""
    seconds: float = 0.0

    def save(self, folder: Path) -> Path:
        """Write `<folder>/<name>.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        return path


def load_section(path: Path) -> Section:
    """Read what `Section.save` wrote."""
    return section_of(json.loads(path.read_text(encoding="utf-8")))


def section_of(values: Mapping[str, Any]) -> Section:
    """A section from its plain values."""
    rows = [Row(**{**row, "measured": Spread(**row["measured"])}) for row in values["rows"]]
    tables = [Table(**table) for table in values["tables"]]
    return Section(**{**values, "rows": rows, "tables": tables})


def ratio_row(  # noqa: PLR0913 - a line of the summary is these
    work: str,
    timings: Timings,
    *,
    peer: str,
    ours: str = "ours",
    must: float | None = None,
    aim: float | None = None,
    note: str = "",
) -> Row:
    """A summary line of two timed ways."""
    return Row(
        work,
        ours=duration(timings.of(ours).median),
        peer=f"{peer} {duration(timings.of(peer).median)}",
        measured=timings.ratio(peer, ours),
        must=must,
        aim=aim,
        note=note,
    )


_HEADER = ("work", "ours", "peer", "measured", "must", "aim", "met")


def summary(rows: Sequence[Row]) -> Table:
    """The summary table: work, ours, peer, measured [quartiles], must, aim, met."""
    return Table("Summary", _HEADER, [_cells(row) for row in rows])


def _cells(row: Row) -> list[str]:
    sign = "<= " if row.at_most else ""
    marks = [
        "-" if mark is None else f"{sign}{figure(mark)}{_unit(row.unit)}"
        for mark in (row.must, row.aim)
    ]
    middle = row.measured
    spread_text = f" [{figure(middle.low)}, {figure(middle.high)}]" if middle.repeats > 1 else ""
    measured = f"{figure(middle.median)}{_unit(row.unit)}{spread_text}"
    return [row.work, row.ours, row.peer, measured, *marks, row.met]


def _unit(unit: str) -> str:
    return unit if unit in ("x", "%") else f" {unit}"


def text_table(table: Table) -> str:
    """A table for the terminal."""
    lines = [list(table.columns), *(list(row) for row in table.rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.columns))]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([table.title, shown[0], rule, *shown[1:]])


def markdown_table(table: Table) -> str:
    """A table in Markdown, without its title."""
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def figure(value: float) -> str:
    """Three digits that matter, without an exponent."""
    if value == 0:
        return "0"
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 else 4
    return f"{value:,.{digits}f}"


def duration(value: float) -> str:
    """Seconds as text; below ten in milliseconds."""
    return f"{figure(value)} s" if value >= 10 else f"{figure(value * 1e3)} ms"


def rate(tokens: float, seconds: float, unit: str = "tokens/s") -> str:
    """A rate as text."""
    return f"{figure(tokens / seconds)} {unit}"


def main(run: Callable[[Settings], Section], description: str | None) -> None:
    """Read the shared flags, run, print the tables and save them if `--output` is given."""
    settings = settings_of(parser((description or "").split("\n")[0]).parse_args())
    started = time.perf_counter()
    section = run(settings)
    finish(section, settings, started)


def finish(section: Section, settings: Settings, started: float) -> Section:
    """Note where and how long, print, and save if asked to.

    Args:
        section: What was found.
        settings: Of the run.
        started: `time.perf_counter()` when it began.
    """
    seconds = round(time.perf_counter() - started, 1)
    whole = replace(section, environment=environment(settings), seconds=seconds)
    if settings.only:
        whole = replace(
            whole,
            name="-".join([whole.name, *settings.only]),
            title=f"{whole.title} ({', '.join(settings.only)})",
            command=f"{whole.command} --only {' '.join(settings.only)}",
        )
    print(f"{whole.title}\n{whole.environment}\n")
    for table in (summary(whole.rows), *whole.tables) if whole.rows else whole.tables:
        print(text_table(table) + "\n")
    if settings.output is not None:
        whole.save(settings.output)
    return whole
