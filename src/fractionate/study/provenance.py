"""Where a result was made: commit, package versions, machine and time. Never part of a key."""

import functools
import importlib.metadata
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fractionate
from fractionate.study.keys import Stage

_PACKAGES = (
    "fractionate",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "trl",
    "peft",
)


def provenance(stage: Stage, seconds: float) -> dict[str, Any]:
    """What is written beside a result.

    Args:
        stage: The stage.
        seconds: Wall time of the attempt that finished it.
    """
    return {
        "name": stage.name,
        "locations": {role: source.location for role, source in stage.inputs.items()},
        "commit": commit(),
        "packages": packages(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
    }


@functools.cache
def packages() -> dict[str, str]:
    """Versions of the installed packages that can change a number."""
    versions: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


@functools.cache
def commit() -> str | None:
    """Commit of the source tree the package runs from, `-dirty` if it was edited; none outside."""
    tracked = _git("ls-files", "--error-unmatch", "__init__.py")
    return (
        _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*") if tracked else None
    )


def _git(*arguments: str) -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    told = subprocess.run(
        [git, *arguments],
        cwd=Path(fractionate.__file__).parent,
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    return told.stdout.strip() if told.returncode == 0 else None
