"""What all measurements of one evaluation share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fractionate.config import Lengths
from fractionate.metrics.harness import Benchmarks
from fractionate.models.load import LanguageModel
from fractionate.models.prompts import check_length, render
from fractionate.records import EvalRecord
from fractionate.rng import derive_seed
from fractionate.tasks.base import Problem, Task

Messages = Sequence[Mapping[str, str]]
Report = Callable[[dict[str, Any]], None]
Measure = tuple[str, Callable[[], list[EvalRecord]]]


def _own_messages(problem: Problem) -> Messages:
    return problem.messages


@dataclass(frozen=True)
class Suite:
    """What a model is evaluated on.

    Attributes:
        task: The task of the study; its test split is measured.
        harder: The harder task, where the study has one.
        skills: Prior skills, one task each.
        benchmarks: Loaded tasks of lm-evaluation-harness, for forgetting of real models.
        chat_template_kwargs: Passed to the chat template.
    """

    task: Task
    harder: Task | None = None
    skills: Sequence[Task] = ()
    benchmarks: Benchmarks | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reference:
    """A model that others are compared with, and what it sees of a problem.

    Attributes:
        model: The model.
        messages_of: Its prompt for a problem; a teacher may see more than the student does.
    """

    model: LanguageModel
    messages_of: Callable[[Problem], Messages] = _own_messages


@dataclass(frozen=True)
class Session:
    """What all conditions of one evaluation share."""

    subject: Reference
    lengths: Lengths
    seed: int
    chat_template_kwargs: Mapping[str, Any]

    def prompts(self, reference: Reference, problems: Sequence[Problem]) -> list[list[int]]:
        """Token ids of the prompts, none over the limit."""
        ids = [
            render(
                reference.model.tokenizer,
                reference.messages_of(problem),
                self.chat_template_kwargs,
            )
            for problem in problems
        ]
        for problem, prompt in zip(problems, ids, strict=True):
            check_length(prompt, self.lengths.prompt, field="lengths.prompt", key=problem.key)
        return ids


def stream_seed(seed: int, suite: str, temperature: float) -> int:
    """Of one condition: it depends on nothing else, so that arms share their random numbers."""
    return derive_seed(seed, "evaluation", suite, f"{temperature:g}")
