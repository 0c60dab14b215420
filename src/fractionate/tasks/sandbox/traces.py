"""Countdown solved aloud: goal-regression traces for three and four numbers, right and weak ones.

A try undoes one operation with the last number, lists the two numbers left and judges whether they
make the sub-goal: `t o c = n : a b V`, V the operator or `x`. Four numbers need a header first,
`t o d = n : a b c ,`, which reduces the problem to three.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fractionate.tasks.sandbox.arithmetic import (
    UNDO_ORDER,
    Undo,
    equation_between,
    operator_between,
    undo,
)
from fractionate.tasks.sandbox.pool import solvable
from fractionate.tasks.sandbox.vocabulary import EOS, NO_OPERATOR, OPERATORS

Order = Literal["cyc", "rand"]

VERDICT_WEIGHT = 3.0
HEADER_CHOICE_WEIGHT = 0.4
TRIES_PER_HEADER = 6
SOLVABLE_HEADER_SHARE = 0.6
LONGEST_DEMONSTRATION = 200
WEAK_TRIES = 4
WEAK_CORRUPTION = 0.6


@dataclass(frozen=True, slots=True)
class Response:
    """A completion to learn from.

    Attributes:
        words: The completion; it ends with the end-of-sequence token unless it was cut.
        weights: Weight of each word in the cross-entropy.
    """

    words: list[str]
    weights: list[float]


@dataclass(frozen=True, slots=True)
class Try:
    """One undone operation and the numbers it leaves, in the order in which they were listed."""

    undo: Undo
    left: tuple[int, ...]

    @property
    def verdict(self) -> str:
        """The operator that makes the sub-goal of the two numbers left, or `x`."""
        return operator_between(self.undo.sub_goal, *self.left)

    def line(self, verdict: str) -> list[str]:
        """The nine words of the try."""
        a, b = self.left
        return [*self.undo.step, ":", str(a), str(b), verdict]

    def answer(self, verdict: str) -> list[str]:
        """The two equations of the answer that a verdict stands for."""
        a, b = self.left
        first = equation_between(self.undo.sub_goal, a, b, verdict)
        return [*first, ",", *self.undo.equation]


def tries(numbers: tuple[int, ...], goal: int) -> list[Try]:
    """All tries in the fixed cyclic order: numbers as listed, equal ones once, then `- / + *`."""
    found: list[Try] = []
    for place, number in enumerate(numbers):
        if number in numbers[:place]:
            continue
        left = numbers[:place] + numbers[place + 1 :]
        steps = (undo(goal, operator, number) for operator in UNDO_ORDER)
        found.extend(Try(step, left) for step in steps if step is not None)
    return found


def ordered_tries(
    numbers: tuple[int, ...], goal: int, order: Order, generator: np.random.Generator
) -> list[Try]:
    """All tries in the order of a demonstration.

    Args:
        numbers: The three numbers as listed.
        goal: What they must make.
        order: `cyc`, a random first try and then the cyclic order, or `rand`, a permutation.
        generator: Source of the first try or of the permutation.
    """
    found = tries(numbers, goal)
    if order == "rand":
        return [found[index] for index in generator.permutation(len(found)).tolist()]
    first = int(generator.random() * len(found))
    return found[first:] + found[:first]


def trace(
    numbers: tuple[int, ...], target: int, order: Order, generator: np.random.Generator
) -> Response:
    """A teacher-grade demonstration; one longer than 200 words is cut there, without a stop."""
    if len(numbers) == 3:
        lines, weights, answer = _search(ordered_tries(numbers, target, order, generator))
    else:
        lines, weights, answer = _search_four(numbers, target, order, generator)
    words, weights = ["<think>", *lines], [1.0, *weights]
    if answer is not None:
        closing = ["</think>", "<answer>", *answer, "</answer>", EOS]
        words += closing
        weights += [1.0] * len(closing)
    return Response(words[:LONGEST_DEMONSTRATION], weights[:LONGEST_DEMONSTRATION])


def _search(order: list[Try]) -> tuple[list[str], list[float], list[str] | None]:
    """The lines up to the first success, their weights, and the answer if there is a success."""
    lines: list[str] = []
    weights: list[float] = []
    for attempt in order:
        verdict = attempt.verdict
        lines += attempt.line(verdict)
        weights += [1.0] * 8 + [VERDICT_WEIGHT]
        if verdict != NO_OPERATOR:
            return lines, weights, attempt.answer(verdict)
    return lines, weights, None


def _search_four(
    numbers: tuple[int, ...], target: int, order: Order, generator: np.random.Generator
) -> tuple[list[str], list[float], list[str] | None]:
    """Headers and at most six tries under each, up to the first success or the longest trace."""
    headers = tries(numbers, target)
    lines: list[str] = []
    weights: list[float] = []
    while headers and len(lines) < LONGEST_DEMONSTRATION:
        header = headers.pop(_choose_header(headers, generator))
        goal = header.undo.sub_goal
        lines += [*header.undo.step, ":", *map(str, header.left), ","]
        weights += _header_weights(header.undo, target)
        below = ordered_tries(header.left, goal, order, generator)[:TRIES_PER_HEADER]
        found, found_weights, answer = _search(below)
        lines += found
        weights += found_weights
        if answer is not None:
            return lines, weights, [*answer, ",", *header.undo.equation]
    return lines, weights, None


def _header_weights(step: Undo, target: int) -> list[float]:
    """Weights of a header's ten words: its operator and its number are free choices."""
    chosen = {1, 2 if step.step[0] == str(target) else 0}
    return [HEADER_CHOICE_WEIGHT if place in chosen else 1.0 for place in range(10)]


def _choose_header(headers: list[Try], generator: np.random.Generator) -> int:
    """A header at random; with probability .6 among those that lead to a solution, if any."""
    able = [
        index
        for index, header in enumerate(headers)
        if header.undo.sub_goal in solvable(tuple(sorted(header.left)))
    ]
    solving, place = generator.random(2).tolist()
    candidates = able if able and solving < SOLVABLE_HEADER_SHARE else list(range(len(headers)))
    return candidates[int(place * len(candidates))]


def weak_trace(numbers: tuple[int, ...], target: int, generator: np.random.Generator) -> Response:
    """A trace of three numbers in the right form whose verdicts are often wrong.

    Every verdict is replaced, with probability .6, by one of the four others. The trace stops at
    the first verdict that names an operator, at the latest after four tries; then the last line
    gives the answer, with an operator at random where its verdict is `x`.
    """
    words = ["<think>"]
    weights = [1.0]
    verdict, attempt = NO_OPERATOR, None
    for attempt in ordered_tries(numbers, target, "cyc", generator)[:WEAK_TRIES]:
        verdict = corrupt(attempt.verdict, generator)
        words += attempt.line(verdict)
        weights += [1.0] * 9
        if verdict != NO_OPERATOR:
            break
    if attempt is None:
        message = f"{numbers} and {target} leave nothing to try"
        raise ValueError(message)
    if verdict == NO_OPERATOR:
        verdict = OPERATORS[int(generator.random() * len(OPERATORS))]
    closing = ["</think>", "<answer>", *attempt.answer(verdict), "</answer>", EOS]
    return Response(words + closing, weights + [1.0] * len(closing))


DIALECT = {"=": ">", ":": "<"}
"""What the second dialect writes inside a trace, by what the first one writes there."""
DIALECT_INSTRUCTION = "< >"
"""At the end of a problem it asks for a trace in the second dialect."""


def in_dialect(response: Response) -> Response:
    """The same trace in the second dialect; the answer is the same in both."""
    end = response.words.index("</think>") if "</think>" in response.words else None
    spoken = [DIALECT.get(word, word) for word in response.words[:end]]
    rest = [] if end is None else response.words[end:]
    return Response([*spoken, *rest], response.weights)


def dialect_share(completion: str) -> float | None:
    """Share of a trace that is in the second dialect, of the words that tell; none without any.

    Args:
        completion: A completion as text; what follows `</think>` does not count.
    """
    words = completion.split("</think>")[0].split()
    second = sum(word in DIALECT.values() for word in words)
    telling = second + sum(word in DIALECT for word in words)
    return second / telling if telling else None


def corrupt(verdict: str, generator: np.random.Generator) -> str:
    """The verdict, or with probability .6 one of the four others."""
    changes, which = generator.random(2).tolist()
    if changes >= WEAK_CORRUPTION:
        return verdict
    others = [other for other in (*OPERATORS, NO_OPERATOR) if other != verdict]
    return others[int(which * len(others))]
