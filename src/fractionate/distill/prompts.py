"""Prompts of a task as token ids, and the order in which the steps of a run see them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fractionate.config import TeacherContext
from fractionate.models.load import LanguageModel
from fractionate.models.prompts import check_length, render
from fractionate.rng import derive_seed, stream
from fractionate.rollouts.context import teacher_messages
from fractionate.tasks.base import Problem, Task

Order = Literal["step_draw", "epoch_shuffle"]


@dataclass(frozen=True)
class Prompt:
    """One prompt as both models read it.

    Attributes:
        problem: The problem posed.
        student: Token ids in the student's context.
        teacher: Token ids in the teacher's context: the same, unless the teacher is conditioned.
    """

    problem: Problem
    student: tuple[int, ...]
    teacher: tuple[int, ...]


class PromptBook:
    """All prompts of a sequence of problems, rendered when they are first asked for.

    A prompt is rendered once, with the student's template, and both models get the same ids; only
    a conditioned teacher has its own.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        *,
        task: Task,
        student: LanguageModel,
        limit: int,
        context: TeacherContext | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep what rendering needs.

        Args:
            problems: What is asked.
            task: Where demonstrations for a conditioned teacher come from.
            student: Whose tokenizer and chat template render.
            limit: Longest prompt in tokens; a longer one raises `PromptTooLongError`.
            context: Conditioning of the teacher.
            chat_template_kwargs: Passed to the chat template.
        """
        self.problems = problems
        self._task = task
        self._tokenizer = student.tokenizer
        self._limit = limit
        self._context = context
        self._kwargs = dict(chat_template_kwargs or {})
        self._rendered: dict[int, Prompt] = {}

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: int) -> Prompt:
        if index not in self._rendered:
            self._rendered[index] = self._render(self.problems[index])
        return self._rendered[index]

    def _render(self, problem: Problem) -> Prompt:
        student = self._ids(problem, problem.messages)
        if self._context is None:
            return Prompt(problem, student, student)
        messages = conditioned(problem, self._task, self._context)
        return Prompt(problem, student, self._ids(problem, messages))

    def _ids(self, problem: Problem, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        ids = render(self._tokenizer, messages, self._kwargs)
        check_length(ids, self._limit, field="lengths.prompt", key=problem.key)
        return tuple(ids)


def conditioned(
    problem: Problem, task: Task, context: TeacherContext | None
) -> Sequence[Mapping[str, str]]:
    """A problem as the teacher sees it: with a worked solution, if the context asks for one."""
    demonstration = None
    if context is not None and context.demonstration:
        seed = derive_seed(0, "teacher context", problem.key)
        demonstration = task.demonstration(problem, seed=seed)
    return teacher_messages(problem.messages, context, demonstration=demonstration)


def prompt_indices(
    step: int,
    *,
    n_problems: int,
    prompts_per_step: int,
    order: Order,
    seed: int,
) -> list[int]:
    """Which problems a step sees; all arms of one seed see the same.

    "step_draw" draws without replacement inside the step, anew at every step; "epoch_shuffle"
    walks through one permutation per epoch.

    Raises:
        ValueError: There are fewer problems than prompts in a step.
    """
    if n_problems < prompts_per_step:
        raise ValueError(
            f"budget.prompts_per_step is {prompts_per_step}, but the training split holds "
            f"{n_problems} problems. Lower it, or train on more problems"
        )
    if order == "step_draw":
        rng = stream(seed, "prompts", step)
        return rng.choice(n_problems, size=prompts_per_step, replace=False).tolist()
    positions = np.arange(step * prompts_per_step, (step + 1) * prompts_per_step)
    epochs = {
        int(epoch): stream(seed, "prompts", "epoch", int(epoch)).permutation(n_problems)
        for epoch in np.unique(positions // n_problems)
    }
    return [int(epochs[int(p // n_problems)][p % n_problems]) for p in positions]
