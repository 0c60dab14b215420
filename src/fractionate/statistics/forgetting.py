"""What a student loses outside its task, by every definition in use, and chance-corrected scores.

Scores are on one scale from 0 to 100 (points); forgetting is base minus final, so a gain is
negative.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import ArrayLike

from fractionate.statistics._checks import FloatArray, IntArray, vector


@dataclass(frozen=True)
class Forgetting:
    """The definitions of forgetting side by side, over the same benchmarks."""

    tasks: tuple[str, ...]
    """Names of the benchmarks."""
    drops: dict[str, float]
    """Base minus final per benchmark, points."""
    base_mean: float
    """Unweighted mean of the base model, points (the OOD score of the base)."""
    final_mean: float
    """Unweighted mean of the final model, points (its OOD score)."""
    mean_drop: float
    """base_mean - final_mean, points: the study's definition (arXiv 2609.35259)."""
    relative_drop_of_mean: float | None
    """mean_drop / base_mean, a share; None where base_mean <= 0."""
    mean_relative_drop: float | None
    """Mean of the drop / base of each benchmark, a share; None where some base <= 0."""
    mean_loss_only: float
    """Mean of max(drop, 0), points: gains do not offset losses."""
    note: str | None
    """Why a share is None, naming the benchmarks, or None."""


@dataclass(frozen=True)
class GainAndDrop:
    """The (gain, drop) pair of arXiv 2510.18874, points."""

    gain: float
    """Final minus base on the target task."""
    drop: float
    """Base minus final, mean over the other tasks."""


def _same_tasks(base: Mapping[str, float], final: Mapping[str, float]) -> tuple[str, ...]:
    """The benchmarks of both models, in the order of `base`."""
    if not base:
        raise ValueError("base is empty; give one score per benchmark")
    if set(base) != set(final):
        only = sorted(set(base) ^ set(final))
        raise ValueError(f"base and final must score the same benchmarks; unmatched: {only}")
    return tuple(base)


def forgetting(base: Mapping[str, float], final: Mapping[str, float]) -> Forgetting:
    """Every definition of forgetting for one pair of models.

    Args:
        base: score per benchmark of the model before training, points; re-run under the same
            settings as `final`. Negative scores (EQ-Bench) are kept, not clipped.
        final: score per benchmark after training, points.

    Raises:
        ValueError: no benchmark, other benchmarks in `final`, or NaN.
    """
    tasks = _same_tasks(base, final)
    before = vector([base[task] for task in tasks], "base")
    after = vector([final[task] for task in tasks], "final")
    drops = before - after
    base_mean, mean_drop = float(before.mean()), float(drops.mean())
    unusable = [task for task, score in zip(tasks, before, strict=True) if score <= 0]
    notes = []
    if unusable:
        notes.append(f"mean_relative_drop is undefined: base <= 0 on {', '.join(unusable)}")
    if base_mean <= 0:
        notes.append("relative_drop_of_mean is undefined: the mean of the base is <= 0")
    return Forgetting(
        tasks=tasks,
        drops={task: float(drop) for task, drop in zip(tasks, drops, strict=True)},
        base_mean=base_mean,
        final_mean=float(after.mean()),
        mean_drop=mean_drop,
        relative_drop_of_mean=mean_drop / base_mean if base_mean > 0 else None,
        mean_relative_drop=None if unusable else float(np.mean(drops / before)),
        mean_loss_only=float(np.maximum(drops, 0.0).mean()),
        note="; ".join(notes) or None,
    )


def gain_and_drop(
    base: Mapping[str, float], final: Mapping[str, float], *, target: str
) -> GainAndDrop:
    """Gain on the target task against the mean drop elsewhere (arXiv 2510.18874).

    Args:
        base: score per task before training, points.
        final: score per task after training, points.
        target: the task trained on.

    Raises:
        ValueError: tasks that differ, a target without a score, or no other task.
    """
    tasks = _same_tasks(base, final)
    if target not in base:
        raise ValueError(f"target {target!r} has no score; scored: {list(tasks)}")
    others = {task: base[task] for task in tasks if task != target}
    if not others:
        raise ValueError(f"no task besides the target {target!r}: a drop needs at least one")
    elsewhere = forgetting(others, {task: final[task] for task in others})
    return GainAndDrop(gain=final[target] - base[target], drop=elsewhere.mean_drop)


def pareto_front(new_task: ArrayLike, retained: ArrayLike) -> IntArray:
    """Indices of the runs that no other run beats on both scores (arXiv 2509.04259).

    Methods are compared along this front of a sweep, at matched new-task accuracy, rather than at
    one setting each.

    Args:
        new_task: [n] score on the trained task; higher is better.
        retained: [n] mean score on unrelated benchmarks; higher is better.

    Returns:
        [m] indices by rising new-task score; of equal runs all are kept.

    Raises:
        ValueError: lengths that differ, no run, or NaN.
    """
    new, old = vector(new_task, "new_task"), vector(retained, "retained")
    if new.size != old.size:
        raise ValueError(f"new_task has {new.size} runs, retained has {old.size}")
    no_worse = (new[:, None] >= new) & (old[:, None] >= old)
    better = (new[:, None] > new) | (old[:, None] > old)
    front = np.flatnonzero(~np.any(no_worse & better, axis=0))
    return front[np.lexsort((-old[front], new[front]))]


@overload
def chance_corrected(accuracy: float, options: int) -> float: ...
@overload
def chance_corrected(accuracy: ArrayLike, options: ArrayLike) -> FloatArray | float: ...
def chance_corrected(accuracy: ArrayLike, options: ArrayLike) -> FloatArray | float:
    """Multiple-choice accuracy on the scale where guessing is 0: (a - 1/m) / (1 - 1/m).

    Args:
        accuracy: rate a in [0, 1]; a number or an array.
        options: number of options m >= 2; broadcasts.

    Returns:
        A share, negative below chance.

    Raises:
        ValueError: an accuracy outside [0, 1] (points, perhaps) or m < 2.
    """
    a, m = np.broadcast_arrays(np.asarray(accuracy, float), np.asarray(options, float))
    if not np.all((a >= 0) & (a <= 1)):
        raise ValueError(f"accuracy must be a rate in [0, 1], got {accuracy!r}")
    if not np.all(m >= 2):
        raise ValueError(f"options must be at least 2, got {options!r}")
    value = (a - 1 / m) / (1 - 1 / m)
    return float(value) if value.ndim == 0 else value
