"""Reading rows of JSONL, CSV and Parquet files, with the place of each row for error messages."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class TableError(ValueError):
    """A table that cannot be used; the message names the field of the task and the mend."""


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        place: Where it stands, e.g. "line 7".
        values: Column to value.
    """

    place: str
    values: Mapping[str, Any]


def read_rows(path: Path) -> list[Row]:
    """Read all rows of a `.jsonl`, `.csv` or `.parquet` file.

    Raises:
        TableError: The file is missing, has another ending, cannot be read, or holds no row.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        endings = ", ".join(_READERS)
        raise TableError(f"task.path: {path} has no known ending. Give a file ending in {endings}")
    if not path.is_file():
        raise TableError(f"task.path: there is no file {path}. Correct the path")
    try:
        rows = list(reader(path))
    except OSError as error:
        raise TableError(f"task.path: {path} cannot be read ({error})") from error
    except UnicodeDecodeError as error:
        raise TableError(f"task.path: {path} is not UTF-8 text. Save it as UTF-8") from error
    if not rows:
        raise TableError(f"task.path: {path} holds no row. Give one problem a row")
    return rows


def _jsonl(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except (json.JSONDecodeError, RecursionError) as error:
                fault = f"task.path: {path}, line {number} is not valid JSON ({error})"
                raise TableError(f"{fault}. Write one object a line") from error
            if not isinstance(values, dict):
                fault = f"task.path: {path}, line {number} is no JSON object"
                raise TableError(f"{fault}. Write one object a line")
            yield Row(f"line {number}", values)


def _csv(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            names = list(reader.fieldnames or ())
            repeated = sorted({name for name in names if names.count(name) > 1})
            if repeated:
                fault = f"task.path: {path} has two columns named '{repeated[0]}'"
                raise TableError(f"{fault}. Rename one")
            for values in reader:
                place = f"line {reader.line_num}"
                if None in values or None in values.values():
                    fault = f"task.path: {path}, {place} does not have {len(names)} fields"
                    raise TableError(f"{fault}. Quote fields with commas or line breaks")
                yield Row(place, values)
        except csv.Error as error:
            fault = f"task.path: {path}, line {reader.line_num} is not valid CSV ({error})"
            raise TableError(f"{fault}. Quote fields with commas or line breaks") from error


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except pa.ArrowException as error:
        fault = f"task.path: {path} is not a valid Parquet file ({error})"
        raise TableError(f"{fault}. Write it again") from error
    for number, values in enumerate(table.to_pylist(), start=1):
        yield Row(f"row {number}", values)


_READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _jsonl,
    ".csv": _csv,
    ".parquet": _parquet,
}
