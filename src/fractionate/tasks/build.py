"""From the configuration of a task to the task itself."""

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from fractionate.config import CountdownTask, Harder, SandboxWorld, Study, resolve
from fractionate.config import Task as TaskConfig
from fractionate.config.sizes import check_harder, check_step
from fractionate.rng import derive_seed
from fractionate.tasks.base import Task
from fractionate.tasks.countdown import V16, Countdown
from fractionate.tasks.gsm8k import gsm8k_task
from fractionate.tasks.math import math_task
from fractionate.tasks.medreason import medreason_task
from fractionate.tasks.sandbox.countdown import SandboxCountdown
from fractionate.tasks.sandbox.skills import SKILLS, SandboxSkill
from fractionate.tasks.science import science_task
from fractionate.tasks.table import table_task


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
    check_harder(task, harder.operands)
    if task.kind != "countdown":
        raise TypeError(f"a '{task.kind}' task has no harder version, and that was checked")
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


def check_rows(task: Task, study: Study) -> None:
    """Refuse data that holds too little for a study.

    Args:
        task: The task of the study, with its data.
        study: The study.

    Raises:
        ValueError: Fewer problems than a step takes, or a demonstration is wanted and a row has
            none; names the field and the mend.
    """
    problems = task.problems("train")
    paths = {resolve(factor): levels for factor, levels in study.vary.items()}
    largest = [level for level in paths.get("budget.prompts_per_step", ()) if _is_count(level)]
    check_step(len(problems), max([study.budget.prompts_per_step, *largest]))
    levels = (level for level in paths.get("method.rollout", ()) if isinstance(level, Mapping))
    kinds = {study.method.rollout.kind, *(str(level.get("kind")) for level in levels)}
    context = study.models.teacher_context if study.models is not None else None
    if "dataset" in kinds or (context is not None and context.demonstration):
        for problem in problems:
            task.demonstration(problem, seed=0)


def _is_count(level: object) -> TypeGuard[int]:
    return isinstance(level, int) and not isinstance(level, bool)


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


_BUILDERS: Mapping[str, Callable[[Any], Task]] = {
    "countdown": _countdown,
    "science": science_task,
    "medreason": medreason_task,
    "math": math_task,
    "gsm8k": gsm8k_task,
    "table": table_task,
}
