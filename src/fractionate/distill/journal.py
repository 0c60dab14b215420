"""What a run writes while it trains, and how it picks itself up after an interruption."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fractionate.records import StepRecord, encode

RECORDS, _STATE = "steps.jsonl", "state.safetensors"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read; the message names the file and the mend."""


def taken_from(state: dict[str, torch.Tensor], *, prefix: str) -> dict[str, torch.Tensor]:
    """Take the entries whose names begin with a prefix out of a state; the prefix is cut off."""
    names = [name for name in state if name.startswith(prefix)]
    return {name.removeprefix(prefix): state.pop(name) for name in names}


class Journal:
    """Records and checkpoints of one run.

    A checkpoint is written beside its place and renamed into it, so it is whole or absent. Records
    behind the last checkpoint are dropped on resume and written again, bit for bit.
    """

    def __init__(self, folder: Path, scratch: Path) -> None:
        """Use two existing folders.

        Args:
            folder: Where the records stay.
            scratch: Where checkpoints go; nothing there is part of the result.
        """
        self._records = folder / RECORDS
        self._checkpoints = scratch / "checkpoints"

    def resume(self) -> tuple[int, dict[str, torch.Tensor]]:
        """The number of finished steps and the state after them; (0, {}) for a fresh run.

        Raises:
            CheckpointError: The newest checkpoint is unreadable.
        """
        done = sorted(int(p.name) for p in self._checkpoints.glob("[0-9]*") if p.name.isdigit())
        step = done[-1] if done else 0
        state = self._load(self._checkpoints / str(step) / _STATE) if done else {}
        self._keep_records(step)
        return step, state

    def record(self, record: StepRecord) -> None:
        """Append one step record."""
        with self._records.open("a", encoding="utf-8") as file:
            file.write(encode(record) + "\n")

    def checkpoint(self, step: int, state: Mapping[str, torch.Tensor]) -> None:
        """Save the state after `step` updates; older checkpoints are removed afterwards."""
        self._checkpoints.mkdir(exist_ok=True)
        fresh = self._checkpoints / f"{step}.writing"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        save_file({k: v.detach().clone().contiguous() for k, v in state.items()}, fresh / _STATE)
        target = self._checkpoints / str(step)
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
        for old in self._checkpoints.iterdir():
            if old != target:
                shutil.rmtree(old)

    def _load(self, path: Path) -> dict[str, torch.Tensor]:
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path}: unreadable checkpoint ({error}). Remove the folder {path.parent} to "
                "start this cell again"
            ) from None

    def _keep_records(self, steps: int) -> None:
        if not self._records.exists():
            return
        lines = self._records.read_text(encoding="utf-8").splitlines(keepends=True)
        fresh = self._records.with_suffix(".writing")
        fresh.write_text("".join(lines[:steps]), encoding="utf-8")
        fresh.replace(self._records)
