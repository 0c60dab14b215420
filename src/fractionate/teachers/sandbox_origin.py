"""Where a checkpoint of the sandbox comes from: command, seed, steps, scores, versions."""

import dataclasses
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

from fractionate.teachers.sandbox import scaled_steps
from fractionate.teachers.sandbox_evaluation import ModelScores
from fractionate.teachers.sandbox_recipes import RECIPES

ORIGIN = "origin.json"
_DIGITS = 4


def scores_as_json(scores: ModelScores) -> dict[str, Any]:
    """Scores as plain, rounded data, with the mean over the skills and the lowest of them."""
    lowest = min(scores.skills, key=lambda name: scores.skills[name])
    plain = dataclasses.asdict(scores)
    plain["skills_mean"] = scores.skills_mean
    plain["skills_lowest"] = lowest
    rounded = _rounded(plain)
    assert isinstance(rounded, dict)
    return rounded


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, Mapping):
        return {str(key): _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return value


def write_origin(
    folder: Path, name: str, seed: int, scores: tuple[ModelScores, ...], steps_scale: float = 1.0
) -> Path:
    """Write `origin.json` beside a checkpoint.

    Args:
        folder: The checkpoint's folder.
        name: Name of the recipe.
        seed: Seed it was built with.
        scores: Its evaluations, one per split.
        steps_scale: Factor on the steps it was built with.

    Returns:
        The file.
    """
    stages = {stage.name: scaled_steps(stage, steps_scale) for stage in RECIPES[name].stages}
    origin = {
        "command": f"fractionate sandbox build {name} --seed {seed}",
        "recipe": name,
        "seed": seed,
        "steps_scale": steps_scale,
        "steps": stages,
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "tokenizers": tokenizers.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "evaluation": {found.split: scores_as_json(found) for found in scores},
    }
    path = folder / ORIGIN
    path.write_text(json.dumps(origin, indent=1) + "\n")
    return path


def gather_evaluations(folder: Path) -> Path:
    """Write `evaluation.json`: the evaluations of all checkpoints below a folder, by name.

    Raises:
        ValueError: No checkpoint with an origin lies below the folder.
    """
    origins = sorted(folder.glob(f"*/{ORIGIN}"))
    if not origins:
        message = f"{folder}: no */{ORIGIN} to gather; build and evaluate a model first"
        raise ValueError(message)
    found = {path.parent.name: json.loads(path.read_text())["evaluation"] for path in origins}
    path = folder / "evaluation.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    return path
