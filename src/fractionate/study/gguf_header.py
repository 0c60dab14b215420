"""The head of a GGUF file: its metadata and the names of its tensors, without its weights.

Layout: magic, version, number of tensors, number of entries; then the entries (key, type, value)
and the tensors (name, shape, type, offset), all little-endian.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_LONGEST = 2**24
"""No string of a header is longer, in bytes; a longer one means that the file is damaged."""

Value = float | int | bool | str


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says of itself.

    Attributes:
        values: Entries with one value, by key.
        lengths: Lengths of the entries that are arrays, by key.
        tensors: Names of the tensors.
    """

    values: dict[str, Value]
    lengths: dict[str, int]
    tensors: frozenset[str]

    def number(self, name: str) -> int | None:
        """An integer entry under the architecture's prefix; none if there is none."""
        value = self.values.get(f"{self.values.get('general.architecture')}.{name}")
        return value if isinstance(value, int) else None


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the head of a GGUF file.

    Raises:
        ValueError: The file is no GGUF file of version 2 or 3, or is damaged; names it.
    """
    try:
        with path.open("rb") as file:
            return _read(file)
    except RecursionError:
        raise ValueError(f"{path} cannot be read as a GGUF file (arrays of arrays)") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as a GGUF file ({error})") from None


def _read(file: BinaryIO) -> GgufHeader:
    if _exactly(file, 4) != b"GGUF":
        raise ValueError("it does not start with GGUF")
    version, tensors, entries = _one(file, "I"), _one(file, "Q"), _one(file, "Q")
    if version not in (2, 3):
        raise ValueError(f"version {version} is none of 2 and 3")
    values: dict[str, Value] = {}
    lengths: dict[str, int] = {}
    for _ in range(entries):
        key, kind = _string(file), _one(file, "I")
        if kind == _ARRAY:
            lengths[key] = _skip_array(file)
        else:
            values[key] = _string(file) if kind == _STRING else _one(file, _format(kind))
    return GgufHeader(values, lengths, frozenset(_tensor(file) for _ in range(tensors)))


def _format(kind: int) -> str:
    if kind not in _SCALARS:
        raise ValueError(f"unknown value type {kind}")
    return _SCALARS[kind]


def _exactly(file: BinaryIO, n: int) -> bytes:
    if n > os.fstat(file.fileno()).st_size - file.tell():  # before memory is asked for
        raise ValueError("it ends too early")
    return file.read(n)


def _one(file: BinaryIO, kind: str) -> int:
    return struct.unpack(f"<{kind}", _exactly(file, struct.calcsize(f"<{kind}")))[0]


def _string(file: BinaryIO) -> str:
    length = _one(file, "Q")
    if length > _LONGEST:
        raise ValueError(f"a string of {length} bytes")
    return _exactly(file, length).decode("utf-8", errors="replace")


def _skip_array(file: BinaryIO) -> int:
    kind, length = _one(file, "I"), _one(file, "Q")
    if kind == _STRING:
        for _ in range(length):
            _string(file)
    elif kind == _ARRAY:
        for _ in range(length):
            _skip_array(file)
    else:
        _exactly(file, length * struct.calcsize(f"<{_format(kind)}"))
    return length


def _tensor(file: BinaryIO) -> str:
    name, dimensions = _string(file), _one(file, "I")
    _exactly(file, 8 * dimensions + 4 + 8)  # shape, type and offset
    return name
