"""Where a stage writes: its result, its own checkpoints, its progress and its timings."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

OUTSIDE = frozenset({"manifest.json", "provenance.json", "timing.jsonl"})
"""Files of a result without a checksum: they hold times and machines, or the checksums."""

TRANSIENT = frozenset({"scratch", "progress.json"})
"""What a stage keeps for itself until it is finished."""


@dataclass(frozen=True)
class Workspace:
    """The folder of a stage.

    Attributes:
        path: Everything here, but for `scratch` and the progress, becomes the result.
        done: The stage is finished already, and `path` is its result: write nothing.
    """

    path: Path
    done: bool

    @property
    def scratch(self) -> Path:
        """Folder for resumable checkpoints: it survives interruptions and goes with success."""
        folder = self.path / "scratch"
        folder.mkdir(exist_ok=True)
        return folder

    def progress(self, step: int, total: int) -> None:
        """Say how far the stage is, for `status`; at most once a second."""
        now, path = time.time(), self.path / "progress.json"
        if step < total and path.exists() and now - path.stat().st_mtime < 1.0:
            return
        known = read_progress(self.path)
        state = {
            "step": step,
            "total": total,
            "first_step": known["first_step"] if known else step,
            "started": known["started"] if known else now,
            "updated": now,
        }
        write_whole(path, json.dumps(state), durable=False)

    def time(self, entry: Mapping[str, Any]) -> None:
        """Add a line to `timing.jsonl`, which no checksum and no comparison covers."""
        with (self.path / "timing.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(entry)) + "\n")

    def files(self) -> Iterator[Path]:
        """The files of the result, in order of their names; half-written ones are removed."""
        for path in sorted(self.path.rglob("*")):
            inside = path.relative_to(self.path)
            if not path.is_file() or inside.parts[0] in TRANSIENT or path.name in OUTSIDE:
                continue
            if path.suffix == ".writing":
                path.unlink()
                continue
            yield path


def clear_transient(folder: Path) -> None:
    """Drop checkpoints and progress of a stage that is finished."""
    shutil.rmtree(folder / "scratch", ignore_errors=True)
    (folder / "progress.json").unlink(missing_ok=True)


def read_progress(folder: Path) -> dict[str, Any] | None:
    """The last progress that a stage reported: `step`, `total`, `started`, `updated` (epoch)."""
    try:
        state = json.loads((folder / "progress.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return cast("dict[str, Any]", state) if isinstance(state, dict) else None


def write_whole(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a text file so that a reader sees the old one or the new one, never a part.

    Args:
        path: The file.
        text: Its new contents.
        durable: Wait until it is on disk; what may be lost in a power cut need not wait.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.writing")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)


def hash_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
