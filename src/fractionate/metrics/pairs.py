"""Tables of published checkpoint pairs, and where on this machine their weights are."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fractionate.metrics.rounding import largest_movable

_FIELDS = ("stage", "base", "tuned", "lr", "note")


class PairTableError(ValueError):
    """A table that cannot be read; the message names the row and the mend."""


@dataclass(frozen=True)
class Pair:
    """A model and what was trained from it.

    Attributes:
        stage: How: "SFT", "DPO", "GRPO", ...
        base: Hub id or folder before.
        tuned: Hub id or folder after.
        lr: Published learning rate, the peak of a schedule; none where it is undisclosed.
        note: What a reader should know.
    """

    stage: str
    base: str
    tuned: str
    lr: float | None
    note: str

    @property
    def largest_movable(self) -> float | None:
        """The largest weight that one unit step of Adam at this rate moves in bfloat16."""
        return None if self.lr is None else largest_movable(self.lr, param_dtype="bfloat16")


def read_pairs(path: Path) -> tuple[Pair, ...]:
    """A CSV table with a head line, or a YAML list of mappings: stage, base, tuned, lr, note.

    Folders are taken from the table's own; an empty rate means that none was published.

    Raises:
        PairTableError: The file cannot be read, or a row lacks a field or has an unknown one.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PairTableError(f"{path} cannot be read ({error.strerror})") from None
    if path.suffix == ".csv":
        rows: Any = list(csv.DictReader(text.splitlines()))
    else:
        try:
            rows = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise PairTableError(f"{path} is no YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(rows, list) or not rows:
        raise PairTableError(f"{path} is no list of pairs. Give stage, base, tuned and lr of each")
    return tuple(_pair(path, number, row) for number, row in enumerate(rows, start=1))


def _pair(path: Path, number: int, row: Any) -> Pair:
    where = f"{path}, pair {number}"
    if not isinstance(row, dict):
        raise PairTableError(f"{where} is no mapping of {', '.join(_FIELDS)}")
    strange = sorted(str(name) for name in set(row) - set(_FIELDS))
    missing = [name for name in ("base", "tuned") if not row.get(name)]
    if strange or missing:
        fault = f"has no '{missing[0]}'" if missing else f"has an unknown field '{strange[0]}'"
        raise PairTableError(f"{where} {fault}. Fields: {', '.join(_FIELDS)}")
    try:
        lr = float(row["lr"]) if row.get("lr") else None
    except (TypeError, ValueError):
        raise PairTableError(f"{where}: lr '{row['lr']}' is no number") from None
    base, tuned = (_beside(path, str(row[side])) for side in ("base", "tuned"))
    return Pair(str(row.get("stage") or ""), base, tuned, lr, str(row.get("note") or ""))


def _beside(table: Path, name: str) -> str:
    beside = table.parent / name
    return str(beside) if beside.exists() else name


def locate(name: str) -> Path | None:
    """Where the weights are on this machine, without asking the hub; None if they are not.

    Args:
        name: A folder, a file, or a hub id whose snapshot is in the hub's cache.
    """
    if Path(name).expanduser().exists():
        return Path(name).expanduser()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    return folder if any(folder.glob("*.safetensors")) else None
