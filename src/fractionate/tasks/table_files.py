"""Reading rows of JSONL, CSV, Parquet and JSON files, with the place of each row for messages."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class TableError(ValueError):
    """Data that cannot be used; the message names the field of the task and the mend."""


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        place: Where it stands, e.g. "line 7".
        values: Column to value.
    """

    place: str
    values: Mapping[str, Any]

    def find(self, column: str) -> tuple[bool, Any]:
        """Whether a column is there, and its value; `a.b` is the field `b` of the column `a`."""
        if column in self.values:
            return True, self.values[column]
        value: Any = self.values
        for name in column.split("."):
            if not isinstance(value, Mapping) or name not in value:
                return False, None
            value = value[name]
        return True, value


def read_rows(path: Path, *, field: str = "task.path") -> Iterator[Row]:
    """Read the rows of a `.jsonl`, `.csv`, `.parquet` or `.json` file.

    Args:
        path: The file.
        field: What names it, for messages.

    Raises:
        TableError: The file is missing, has another ending, cannot be read, or holds no row.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        endings = ", ".join(_READERS)
        raise TableError(f"{field}: {path} has no known ending. Give a file ending in {endings}")
    if not path.is_file():
        raise TableError(f"{field}: there is no file {path}. Correct the path")
    empty = True
    try:
        for row in reader(path):
            empty = False
            yield row
    except _FileFault as fault:
        raise TableError(f"{field}: {path}{fault}") from fault
    except OSError as error:
        raise TableError(f"{field}: {path} cannot be read ({error})") from error
    except UnicodeDecodeError as error:
        raise TableError(f"{field}: {path} is not UTF-8 text. Save it as UTF-8") from error
    if empty:
        raise TableError(f"{field}: {path} holds no row. Give one problem a row")


class _FileFault(Exception):
    """What is wrong with a file, to be read after its name."""


def _jsonl(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except (json.JSONDecodeError, RecursionError) as error:
                fault = f", line {number} is not valid JSON ({error}). Write one object a line"
                raise _FileFault(fault) from error
            if not isinstance(values, dict):
                raise _FileFault(f", line {number} is no JSON object. Write one object a line")
            yield Row(f"line {number}", values)


def _csv(path: Path) -> Iterator[Row]:
    mend = "Quote fields with commas or line breaks"
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            names = list(reader.fieldnames or ())
            repeated = sorted({name for name in names if names.count(name) > 1})
            if repeated:
                raise _FileFault(f" has two columns named '{repeated[0]}'. Rename one")
            for values in reader:
                place = f"line {reader.line_num}"
                if None in values or None in values.values():
                    raise _FileFault(f", {place} does not have {len(names)} fields. {mend}")
                yield Row(place, values)
        except csv.Error as error:
            fault = f", line {reader.line_num} is not valid CSV ({error}). {mend}"
            raise _FileFault(fault) from error


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for values in batch.to_pylist():
                    number += 1
                    yield Row(f"row {number}", values)
    except pa.ArrowException as error:
        raise _FileFault(f" is not a valid Parquet file ({error}). Write it again") from error


def _json(path: Path) -> Iterator[Row]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (json.JSONDecodeError, RecursionError) as error:
        raise _FileFault(f" is not valid JSON ({error}). Write a list of objects") from error
    if not isinstance(rows, list) or not all(isinstance(values, dict) for values in rows):
        raise _FileFault(" is no list of JSON objects. Write one, or one object a line in .jsonl")
    for number, values in enumerate(rows, start=1):
        yield Row(f"row {number}", values)


_READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _jsonl,
    ".csv": _csv,
    ".parquet": _parquet,
    ".json": _json,
}
