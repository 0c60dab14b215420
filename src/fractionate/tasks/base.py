"""What a task is: problems to pose, completions to grade, demonstrations to learn from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

Split = Literal["train", "selection", "test"]


@dataclass(frozen=True)
class Problem:
    """One item of a task.

    Attributes:
        key: Identity of the item; splits are disjoint in it and statistics pair by it.
        messages: The prompt as chat messages, `{"role": ..., "content": ...}`, for a chat template.
        reference: What grading needs (operands and target, the gold letter, ...).
    """

    key: str
    messages: tuple[Mapping[str, str], ...]
    reference: Mapping[str, Any]


@dataclass(frozen=True)
class Grade:
    """The verdict on one completion.

    Attributes:
        correct: Whether the answer is right.
        reason: "ok" or the reason of the failure, in the task's own short words.
        answered: Whether an answer of the required form was found at all; unparsable answers count
            as wrong, and this says how many of the wrong ones they are.
        solution: Canonical form of a right answer: two are equal iff they are the same solution.
    """

    correct: bool
    reason: str
    answered: bool
    solution: str | None = None


@runtime_checkable
class Task(Protocol):
    """Problems with a verifier. All three splits are disjoint by `Problem.key`."""

    @property
    def name(self) -> str:
        """The name of the task in records."""
        ...

    def problems(self, split: Split, n: int | None = None) -> Sequence[Problem]:
        """The first `n` problems of a split in its fixed order; None: all of them.

        Raises:
            ValueError: The split holds fewer than `n` problems.
        """
        ...

    def grade(self, problem: Problem, completion: str) -> Grade:
        """Judge the text of a completion; never raises on text."""
        ...

    def demonstration(self, problem: Problem, *, seed: int) -> str:
        """A correct completion written by a solver, as the teacher's training data has it."""
        ...
