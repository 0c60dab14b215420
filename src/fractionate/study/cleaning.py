"""Removing what a store need not keep, and the locks that say what is in use."""

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout


@dataclass(frozen=True)
class Removed:
    """What a clean-up removed.

    Attributes:
        names: Folders, relative to the store.
        bytes: Their size.
    """

    names: tuple[str, ...]
    bytes: int


def remove_unkept(root: Path, folders: Collection[str], keep: Collection[str]) -> Removed:
    """Remove what stands in the folders of a store under keys that are not in `keep`.

    Args:
        root: The store.
        folders: Names of its folders that are looked at.
        keep: Keys that stay.
    """
    kept = {key[:16] for key in keep}
    names: list[str] = []
    size = 0
    for kind in folders:
        for path in sorted((root / kind).glob("*")):
            short = path.name.partition(".")[0]
            if short in kept or is_held(lock_path(root, kind, short)):
                continue
            names.append(path.relative_to(root).as_posix())
            size += bytes_of(path)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return Removed(tuple(names), size)


def lock_path(root: Path, kind: str, short: str) -> Path:
    """The lock file of a stage."""
    return root / "locks" / f"{kind}-{short}.lock"


def is_held(lock: Path) -> bool:
    """Whether some process holds a lock; one that cannot be opened counts as held."""
    if not lock.exists():
        return False
    probe = FileLock(lock)
    try:
        probe.acquire(timeout=0)
    except (Timeout, OSError):
        return True
    probe.release()
    return False


def bytes_of(path: Path) -> int:
    """Size of a file, or of all files below a folder, in bytes."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
