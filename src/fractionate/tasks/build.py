"""From the configuration of a task to the task itself."""

from collections.abc import Callable, Mapping
from typing import Any

from fractionate.config import CountdownTask, Harder, SandboxWorld, TableTask
from fractionate.config import Task as TaskConfig
from fractionate.rng import derive_seed
from fractionate.tasks.base import Task
from fractionate.tasks.countdown import V16, Countdown
from fractionate.tasks.sandbox.countdown import SandboxCountdown
from fractionate.tasks.sandbox.skills import SKILLS, SandboxSkill
from fractionate.tasks.table import Table


def build_task(task: TaskConfig, world: SandboxWorld | None) -> Task:
    """The task that a study names; the sandbox poses its own Countdown problems.

    Raises:
        ValueError: The task's data cannot be used, or the world does not know the task.
    """
    if world is None:
        return _BUILDERS[task.kind](task)
    if task.kind != "countdown":
        raise ValueError(
            f"task.kind '{task.kind}' needs 'models': the world is the sandbox, which knows "
            "Countdown only"
        )
    return SandboxCountdown(task.operands)


def build_harder(harder: Harder, task: TaskConfig, world: SandboxWorld | None) -> Task:
    """The harder version of a task; its reported problems are in its test split.

    Outside the sandbox it takes the task's own rules, numbers unless `harder.numbers` is given,
    and more operands, so that no problem of it can have been trained on.

    Raises:
        ValueError: The task has no harder version.
    """
    if world is not None:
        return SandboxCountdown(harder.operands)
    if task.kind != "countdown":
        raise ValueError(
            f"evaluate.harder is a harder Countdown, but task.kind is '{task.kind}'. "
            "Set evaluate.harder: null"
        )
    if harder.operands <= task.operands:
        raise ValueError(
            f"evaluate.harder.operands {harder.operands} is not above task.operands "
            f"{task.operands}, so its problems could be trained on. Raise it"
        )
    return Countdown(
        operands=harder.operands,
        numbers=harder.numbers or task.numbers or V16,
        targets=task.targets,
        replacement=task.replacement,
        allow_negative=task.allow_negative,
        target_may_be_given=task.target_may_be_given,
        n_train=0,
        n_selection=0,
        n_test=harder.items,
        seed=derive_seed(task.data_seed, "harder"),
        name="countdown-harder",
    )


def build_skills(world: SandboxWorld) -> tuple[Task, ...]:  # noqa: ARG001 - one set of skills so far
    """The prior skills of a world, one task each."""
    return tuple(SandboxSkill(name) for name in SKILLS)


def _countdown(task: CountdownTask) -> Task:
    return Countdown(
        operands=task.operands,
        numbers=task.numbers or V16,
        targets=task.targets,
        replacement=task.replacement,
        allow_negative=task.allow_negative,
        target_may_be_given=task.target_may_be_given,
        n_train=task.train,
        n_selection=task.selection,
        n_test=task.test,
        seed=task.data_seed,
    )


def _table(task: TableTask) -> Task:
    return Table(task)


_BUILDERS: Mapping[str, Callable[[Any], Task]] = {"countdown": _countdown, "table": _table}
