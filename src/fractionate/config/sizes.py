"""Whether a task holds as many problems as a study asks for, as far as that is known beforehand."""

from collections.abc import Mapping

from fractionate.config.measure import Evaluate
from fractionate.config.task import Task

SANDBOX_TEST_PROBLEMS: Mapping[int, int] = {3: 659, 4: 9225}
"""Problems in the test split of the sandbox's Countdown, by number of operands."""
SANDBOX_TRAINING_PROBLEMS: Mapping[int, int] = {3: 4915, 4: 73779}
"""Problems in its training split."""


def check_sizes(task: Task, evaluate: Evaluate, *, prompts_per_step: int, sandbox: bool) -> None:
    """Refuse more problems than there are, in a step or in a measurement.

    Args:
        task: The task.
        evaluate: What is measured.
        prompts_per_step: Problems that a step draws without replacement.
        sandbox: Whether the sandbox poses the problems.

    Raises:
        ValueError: Names the field and the mend.
    """
    _check_items(task, evaluate, sandbox=sandbox)
    _check_harder(task, evaluate, sandbox=sandbox)
    train = task.train
    if sandbox and task.kind == "countdown":
        train = SANDBOX_TRAINING_PROBLEMS[task.operands]
    if train is not None:
        check_step(train, prompts_per_step)


def check_step(train: int, prompts_per_step: int) -> None:
    """Refuse steps of more prompts than there are problems to train on.

    Raises:
        ValueError: Names the field and the mend.
    """
    if train < prompts_per_step:
        raise ValueError(
            f"budget.prompts_per_step is {prompts_per_step}, but the training split holds {train} "
            f"problems. Set budget.prompts_per_step: {train}, or train on more problems"
        )


def _check_items(task: Task, evaluate: Evaluate, *, sandbox: bool) -> None:
    held = task.test
    if sandbox and task.kind == "countdown":
        held = SANDBOX_TEST_PROBLEMS[task.operands]
    wanted = {
        "accuracy": evaluate.accuracy and evaluate.accuracy.items,
        "coverage": evaluate.coverage and evaluate.coverage.items,
        "drift": evaluate.drift and evaluate.drift.items,
        "style": evaluate.style and evaluate.style.items,
        "resampling": evaluate.resampling and evaluate.resampling.items,
    }
    for name, items in wanted.items():
        if items and items > held:
            more = "" if sandbox else ", or raise task.test"
            raise ValueError(
                f"evaluate.{name}.items is {items}, but the test split holds {held} problems. "
                f"Set evaluate.{name}.items: {held}{more}"
            )


def _check_harder(task: Task, evaluate: Evaluate, *, sandbox: bool) -> None:
    harder = evaluate.harder
    if harder is None:
        return
    if not sandbox:
        check_harder(task, harder.operands)
        return
    held = SANDBOX_TEST_PROBLEMS[harder.operands]
    if harder.items > held:
        raise ValueError(
            f"evaluate.harder.items is {harder.items}, but the sandbox's test split of "
            f"{harder.operands} operands holds {held} problems. Set evaluate.harder.items: {held}"
        )


def check_harder(task: Task, operands: int) -> None:
    """Refuse a harder version of a task that has none, or one that is not harder.

    Raises:
        ValueError: Names the field and the mend.
    """
    if task.kind != "countdown":
        raise ValueError(
            f"evaluate.harder is a harder Countdown, but task.kind is '{task.kind}'. "
            "Set evaluate.harder: null"
        )
    if operands <= task.operands:
        raise ValueError(
            f"evaluate.harder.operands {operands} is not above task.operands {task.operands}, so "
            "its problems could be trained on. Raise it"
        )
