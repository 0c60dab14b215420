"""Rows in and out of Parquet, with the types of every value kept."""
# pyright: basic
# pyarrow ships no type information, so strict checking of this file would check its guesses.

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

COMPRESSION, LEVEL = "zstd", 19


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as one compressed table; a field that a row lacks is null there.

    Raises:
        OSError: The file cannot be written.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    # measurements hardly repeat: their bytes compress better by place than through a dictionary
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    options: dict[str, Any] = {
        "use_dictionary": [name for name in names if name not in floats],
        "use_byte_stream_split": floats,
    }
    parquet.write_table(table, path, compression=COMPRESSION, compression_level=LEVEL, **options)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a table.

    Raises:
        ValueError: It is no Parquet file, or broken.
    """
    try:
        return parquet.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise ValueError(str(error)) from None
