"""The records of a study as a small folder: everything that reports need, no weights.

`study.json` holds the configuration, what each cell is and what a report says beside the records;
the records themselves are three Parquet tables. Items of the untrained student are written once per
base, however many cells start from it. Reading gives the same numbers, bit for bit.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from fractionate.analysis.background import Background, Example
from fractionate.analysis.runs import Runs, gather
from fractionate.config import Study
from fractionate.config.files import parse_study
from fractionate.records import CellResult, EvalRecord, RlvrRecord, StepRecord, WeightRecord

SCHEMA = 1
STUDY, STEPS, ITEMS, UPDATES = "study.json", "steps.parquet", "items.parquet", "rlvr.parquet"
TEACHER = "teacher"
_AS_TEXT = ("reasons", "profile")
"""Fields that are mappings: their keys differ from row to row, so they are stored as JSON."""
_CELL = ("cell", "factors", "seed", "base", "seconds", "flops", "shared_flops")

Owners = Mapping[tuple[str, int], str]
Record = TypeVar("Record", StepRecord, EvalRecord, RlvrRecord)


class ArchiveError(ValueError):
    """A folder of records that cannot be read; the message names the file and the mend."""


@dataclass(frozen=True)
class Archive:
    """A study with its records, wherever they lie.

    Attributes:
        study: Its configuration.
        cells: Finished cells, in the plan's order.
        expected: Names of all cells of the study.
        background: What a report says beside the records.
    """

    study: Study
    cells: tuple[CellResult, ...]
    expected: tuple[str, ...]
    background: Background

    def runs(self, *, allow_missing: bool = False) -> Runs:
        """The cells measured and grouped into arms.

        Raises:
            IncompleteStudyError: Cells are missing and `allow_missing` is False.
        """
        return gather(
            self.cells, study=self.study, expected=self.expected, allow_missing=allow_missing
        )


def is_archive(folder: Path) -> bool:
    """Whether a folder holds exported records."""
    return (folder / STUDY).is_file() and (folder / ITEMS).is_file()


# ---------------------------------------------------------------- writing


def write_archive(archive: Archive, folder: Path) -> list[Path]:
    """Write the records of a study.

    Args:
        archive: The study.
        folder: Made if needed; files of an earlier export are replaced.

    Returns:
        The files written.

    Raises:
        OSError: The folder cannot be written.
    """
    from fractionate.analysis.parquet import write_rows

    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        ITEMS: list(_items(archive)),
        STEPS: [
            {"owner": cell.cell, **_row(step)} for cell in archive.cells for step in cell.steps
        ],
        UPDATES: [
            {"owner": cell.cell, **_row(step)} for cell in archive.cells for step in cell.rlvr
        ],
    }
    written: list[Path] = []
    for name, rows in tables.items():
        (folder / name).unlink(missing_ok=True)
        if rows or name == ITEMS:
            write_rows(folder / name, rows)
            written.append(folder / name)
    text = json.dumps(_head(archive), indent=1, ensure_ascii=False)
    (folder / STUDY).write_text(text + "\n", encoding="utf-8")
    return [folder / STUDY, *written]


def _head(archive: Archive) -> dict[str, Any]:
    background = {
        field.name: getattr(archive.background, field.name)
        for field in dataclasses.fields(Background)
        if field.name not in ("teacher", "examples")
    }
    examples = [dataclasses.asdict(example) for example in archive.background.examples]
    owners = _owners(archive.cells)
    return {
        "schema": SCHEMA,
        "study": archive.study.model_dump(mode="json"),
        "expected": archive.expected,
        "background": {**background, "examples": examples},
        "cells": [_cell_head(cell, owners) for cell in archive.cells],
    }


def _cell_head(cell: CellResult, owners: Owners) -> dict[str, Any]:
    head = {name: getattr(cell, name) for name in _CELL}
    weights = {str(step): dataclasses.asdict(record) for step, record in cell.weights.items()}
    return {
        **head,
        "evaluated": {str(step): owners[cell.cell, step] for step in cell.evaluations},
        "rlvr_evaluated": [*cell.rlvr_evaluations],
        "weights": weights,
    }


def _owners(cells: Sequence[CellResult]) -> dict[tuple[str, int], str]:
    """Under which name the items of a cell at a step are stored.

    Those of an untrained student are stored once for all cells that start from it.
    """
    owners: dict[tuple[str, int], str] = {}
    first: dict[int, tuple[EvalRecord, ...]] = {}
    for cell in cells:
        for step, records in cell.evaluations.items():
            shared = step == 0 and first.setdefault(cell.base, records) == records
            owners[cell.cell, step] = f"base {cell.base}" if shared else cell.cell
    return owners


def _items(archive: Archive) -> Iterator[dict[str, Any]]:
    """Every item record with whose it is."""
    owners, written = _owners(archive.cells), set[str]()
    yield from _owned(TEACHER, 0, "evaluation", archive.background.teacher)
    for cell in archive.cells:
        for step, records in cell.evaluations.items():
            owner = owners[cell.cell, step]
            if owner == cell.cell or owner not in written:
                yield from _owned(owner, step, "evaluation", records)
            written.add(owner)
        for step, records in cell.rlvr_evaluations.items():
            yield from _owned(cell.cell, step, "rlvr", records)


def _owned(
    owner: str, step: int, kind: str, records: Iterable[EvalRecord]
) -> Iterator[dict[str, Any]]:
    for record in records:
        yield {"owner": owner, "at": step, "kind": kind, **_row(record)}


def _row(record: StepRecord | EvalRecord | RlvrRecord) -> dict[str, Any]:
    row = dataclasses.asdict(record)
    for name in _AS_TEXT:
        if row.get(name) is not None:
            row[name] = json.dumps(row[name], sort_keys=True) if row[name] else ""
    return row


# ---------------------------------------------------------------- reading


def read_archive(folder: Path) -> Archive:
    """Read what `write_archive` wrote.

    Raises:
        ArchiveError: A file is missing or broken, or of a newer version; names it.
        StudyFileError: The configuration is no study of this version.
    """
    head = _read_head(folder / STUDY)
    steps = _grouped(folder / STEPS, StepRecord, "owner")
    items = _grouped(folder / ITEMS, EvalRecord, "owner", "at", "kind")
    updates = _grouped(folder / UPDATES, RlvrRecord, "owner")
    known: dict[str, Any] = {
        name: tuple(cast("list[Any]", value)) if isinstance(value, list) else value
        for name, value in head["background"].items()
    }
    known["examples"] = tuple(Example(**each) for each in known["examples"])
    background = Background(**known, teacher=items.get((TEACHER, 0, "evaluation"), ()))
    cells: list[CellResult] = []
    for entry in head["cells"]:
        bare = CellResult(
            **{name: entry[name] for name in _CELL},
            steps=steps.get((entry["cell"],), ()),
            evaluations={},
            weights={int(s): WeightRecord(**w) for s, w in entry["weights"].items()},
            rlvr=updates.get((entry["cell"],), ()),
            rlvr_evaluations={
                at: items.get((entry["cell"], at, "rlvr"), ()) for at in entry["rlvr_evaluated"]
            },
        )
        evaluations = {
            int(at): items.get((owner, int(at), "evaluation"), ())
            for at, owner in entry["evaluated"].items()
        }
        cells.append(dataclasses.replace(bare, evaluations=evaluations))
    study = parse_study(head["study"], source=str(folder / STUDY))
    return Archive(study, tuple(cells), tuple(head["expected"]), background)


def _read_head(path: Path) -> dict[str, Any]:
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
        schema = int(head["schema"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{path} cannot be read ({error}). Export the records again") from None
    if schema > SCHEMA:
        raise ArchiveError(f"{path} has schema {schema}, newer than {SCHEMA}. Update fractionate")
    return cast("dict[str, Any]", head)


def _grouped(path: Path, kind: type[Record], *by: str) -> dict[tuple[Any, ...], tuple[Record, ...]]:
    """Records of a table by some of its columns; none where the table is not there."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    own = {field.name for field in dataclasses.fields(kind)}
    for row in _read_table(path):
        key = tuple(row[name] for name in by)
        fields = {name: value for name, value in row.items() if name in own}
        for name in _AS_TEXT:
            if fields.get(name) is not None:
                fields[name] = json.loads(fields[name] or "{}")
        groups.setdefault(key, []).append(kind(**fields))
    return {key: tuple(records) for key, records in groups.items()}


def _read_table(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    from fractionate.analysis.parquet import read_rows

    try:
        return read_rows(path)
    except ValueError as error:
        raise ArchiveError(f"{path} cannot be read ({error}). Export the records again") from None
