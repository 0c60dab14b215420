"""Countdown in the sandbox's words, as a `Task`."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from fractionate.rng import stream
from fractionate.tasks.base import Grade, Problem, Split
from fractionate.tasks.countdown import canonical_form, extract_answer, verify
from fractionate.tasks.sandbox.components import countdown_prompt
from fractionate.tasks.sandbox.pool import OPERANDS, key_of, pool
from fractionate.tasks.sandbox.traces import Order, trace
from fractionate.tasks.sandbox.vocabulary import EOS

_UNREADABLE = ("no_answer", "empty", "syntax")
_DEMONSTRATION_TRIES = 200


@final
@dataclass(frozen=True)
class SandboxCountdown:
    """Countdown with three or four numbers of 1 ... 15 and targets of 1 ... 60.

    The splits share no (sorted numbers, target) and hold every solvable problem once: with three
    numbers 4,915 train, 675 selection, 659 test. They are in the order in which a random reduction
    path would come across them, so the first problems are the likelier ones.

    Attributes:
        operands: Given numbers, 3 or 4.
        order: Order of tries in demonstrations, `cyc` or `rand`.

    Raises:
        ValueError: Another number of operands.
    """

    operands: int = 3
    order: Order = "cyc"

    def __post_init__(self) -> None:
        if self.operands not in OPERANDS:
            message = f"operands: the sandbox has Countdown with {OPERANDS}, not {self.operands}"
            raise ValueError(message)

    @property
    def name(self) -> str:
        """The name of the task in records."""
        return f"countdown-{self.operands}"

    def problems(self, split: Split, n: int | None = None) -> Sequence[Problem]:
        """The first `n` problems of a split in its fixed order; None: all of them.

        Raises:
            ValueError: The split holds fewer than `n` problems.
        """
        order = _ordered(self.operands, split)
        if n is not None and not 0 <= n <= len(order):
            message = f"{self.name}: split {split!r} holds {len(order)} problems, not {n}"
            raise ValueError(message)
        return [_problem(numbers, target) for numbers, target in order[:n]]

    def grade(self, problem: Problem, completion: str) -> Grade:
        """Judge the text of a completion with the plain-text verifier; never raises on text."""
        operands, target = problem.reference["operands"], problem.reference["target"]
        answer = extract_answer(completion)
        verdict = verify(answer, operands, target)
        solution = None
        if verdict.ok and answer is not None:
            solution = repr(canonical_form(answer, operands))
        answered = verdict.reason not in _UNREADABLE
        return Grade(verdict.ok, verdict.reason, answered, solution)

    def demonstration(self, problem: Problem, *, seed: int) -> str:
        """A complete, correct trace of at most 200 words.

        Raises:
            RuntimeError: No short enough trace was found in 200 draws.
        """
        operands, target = problem.reference["operands"], problem.reference["target"]
        for draw in range(_DEMONSTRATION_TRIES):
            generator = stream(seed, "sandbox", "demonstration", problem.key, draw)
            words = trace(tuple(operands), target, self.order, generator).words
            if words[-1] == EOS:
                return " ".join(words[:-1])
        message = f"{problem.key}: no trace of at most 200 words in {_DEMONSTRATION_TRIES} draws"
        raise RuntimeError(message)


@functools.cache
def _ordered(operands: int, split: Split) -> tuple[tuple[tuple[int, ...], int], ...]:
    """The problems of a split: shuffled numbers and target, in a weighted random order."""
    problems = pool(operands)
    rows = problems.rows(split)
    generator = stream(0, "sandbox", "countdown", operands, split)
    # The order statistics of exponentials with these rates are draws without replacement.
    waiting = generator.exponential(size=len(rows)) / problems.weights[rows]
    rows = rows[np.argsort(waiting)]
    numbers = generator.permuted(problems.numbers[rows], axis=1).tolist()
    targets = problems.targets[rows].tolist()
    return tuple((tuple(row), target) for row, target in zip(numbers, targets, strict=True))


def _problem(numbers: tuple[int, ...], target: int) -> Problem:
    message = {"role": "user", "content": " ".join(countdown_prompt(numbers, target))}
    return Problem(key_of(numbers, target), (message,), {"operands": numbers, "target": target})
