"""Building the models of the sandbox, one folder each, with where they come from."""

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from fractionate.cli.errors import BadInputError, from_the_user, writing
from fractionate.cli.printing import note, say
from fractionate.teachers.sandbox import CHECKPOINT, Progress, build_model
from fractionate.teachers.sandbox_evaluation import Plan, evaluate_model
from fractionate.teachers.sandbox_origin import ORIGIN, write_origin
from fractionate.teachers.sandbox_recipes import RECIPES

_DEFAULT = ("teacher", "components")
_SAY_EVERY = 20.0
"""Seconds between two lines of progress."""


def wanted(names: Sequence[str], seed: int | None, *, bases: int) -> list[tuple[str, int]]:
    """Names and seeds to build.

    Args:
        names: Recipes; empty for the teacher and the default students.
        seed: One seed for all; none takes 0, and the first `bases` seeds for `components`.
        bases: How many independent students there are by default.

    Raises:
        BadInputError: A name is unknown.
    """
    for name in names:
        if name not in RECIPES:
            raise BadInputError(
                f"'{name}' is no model of the sandbox. There are: {', '.join(RECIPES)}"
            )
    found: list[tuple[str, int]] = []
    for name in dict.fromkeys(names or _DEFAULT):
        default = range(bases) if name == "components" else range(1)
        found += [(name, number) for number in (default if seed is None else (seed,))]
    return found


def build(name: str, seed: int, out: Path, *, scale: float, measured: bool) -> Path:
    """Build one model in `out/<name>-<seed>`, unless it is there; go on from its checkpoint.

    Raises:
        BadInputError: The folder cannot be written to, or holds a checkpoint of another scale.
    """
    folder = out / f"{name}-{seed}"
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)  # sums in another order would give other weights
    torch.use_deterministic_algorithms(True)
    if not _finished(folder):
        with from_the_user(), writing(folder):
            build_model(name, seed=seed, out=folder, steps_scale=scale, progress=_Pace(folder.name))
    if measured and not (folder / ORIGIN).is_file():
        note(f"{folder.name}: measuring")
        scores = tuple(evaluate_model(folder, Plan(split=split)) for split in ("selection", "test"))
        write_origin(folder, name, seed, scores, scale)
    say(str(folder))
    return folder


def _finished(folder: Path) -> bool:
    return (folder / "config.json").is_file() and not (folder / CHECKPOINT).is_file()


class _Pace:
    """Says from time to time how far a pre-training is."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last < _SAY_EVERY and progress.step < progress.steps:
            return
        self._last = now
        note(
            f"{self._name}: {progress.stage}, step {progress.step} of {progress.steps}, "
            f"loss {progress.loss:.4f}"
        )
