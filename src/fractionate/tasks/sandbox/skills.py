"""The fourteen prior skills of the sandbox: what a student can do and may forget."""

import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from fractionate.rng import stream
from fractionate.tasks.base import Grade, Problem, Split
from fractionate.tasks.sandbox.arithmetic import UNDO_ORDER, operator_between, undo
from fractionate.tasks.sandbox.pool import LARGEST_OPERAND, LARGEST_TARGET
from fractionate.tasks.sandbox.vocabulary import LARGEST, OPERATORS, SKILL_TAGS

Draw = Callable[[list[float]], tuple[list[int | str], list[int | str]]]

UNIFORMS = 10
"""How many uniform numbers one question may use."""
SPLITS: tuple[Split, ...] = ("train", "selection", "test")
DRAWS_PER_SKILL = 6_000
LISTS = (3, 4, 5)


@dataclass(frozen=True)
class Skill:
    """A skill: how a question is drawn, and how often a guess is right.

    Attributes:
        draw: From ten uniform numbers to the words after the tag and the words of the answer.
        chance: Accuracy of a guess that knows the form of the answer but not the skill: the most
            frequent answer for closed sets (cmp, parity, op), one of the numbers of the question
            for max, min and rest, any order of them for sort, reverse and copy, else one of 90.
    """

    draw: Draw
    chance: float


def _whole(uniform: float, low: int, high: int) -> int:
    """A whole number of low ... high from a uniform number."""
    return low + int(uniform * (high - low + 1))


def _second(u: list[float]) -> int:
    """The second number of a sum or difference: half of the time an operand of Countdown."""
    return _whole(u[1], 1, LARGEST_OPERAND) if u[0] < 0.5 else _whole(u[1], 0, LARGEST)


def _add(u: list[float]) -> tuple[list[int | str], list[int | str]]:
    b = _second(u)
    a = _whole(u[2], 0, LARGEST - b)
    return [a, b], [a + b]


def _sub(u: list[float]) -> tuple[list[int | str], list[int | str]]:
    b = _second(u)
    a = _whole(u[2], b, LARGEST)
    return [a, b], [a - b]


def _factors(u: list[float]) -> tuple[int, int]:
    b = _whole(u[0], 1, LARGEST_OPERAND) if u[2] < 0.8 else _whole(u[0], 1, LARGEST)
    return _whole(u[1], 0, LARGEST // b), b


def _mul(u: list[float]) -> tuple[list[int | str], list[int | str]]:
    a, b = _factors(u)
    return ([b, a], [a * b]) if u[3] < 0.3 else ([a, b], [a * b])


def _div(u: list[float]) -> tuple[list[int | str], list[int | str]]:
    a, b = _factors(u)
    return [a * b, b], [a]


def _cmp(u: list[float]) -> tuple[list[int | str], list[int | str]]:
    a, b = _whole(u[0], 0, LARGEST), _whole(u[1], 0, LARGEST)
    if u[2] < 0.1:
        b = a
    return [a, b], ["<" if a < b else ">" if a > b else "="]


def _list(u: list[float]) -> list[int | str]:
    return [_whole(value, 0, LARGEST) for value in u[1 : 1 + LISTS[int(u[0] * len(LISTS))]]]


def _sort(u: list[float]) -> tuple[list[int | str], list[int | str]]:
    numbers = _list(u)
    return numbers, sorted(numbers, key=int)


def _reverse(u: list[float]) -> tuple[list[int | str], list[int | str]]:
    numbers = _list(u)
    return numbers, numbers[::-1]


def _copy(u: list[float]) -> tuple[list[int | str], list[int | str]]:
    numbers = _list(u)
    return numbers, numbers


def _max(u: list[float]) -> tuple[list[int | str], list[int | str]]:
    numbers = _list(u)
    return numbers, [max(numbers, key=int)]


def _min(u: list[float]) -> tuple[list[int | str], list[int | str]]:
    numbers = _list(u)
    return numbers, [min(numbers, key=int)]


def _parity(u: list[float]) -> tuple[list[int | str], list[int | str]]:
    number = _whole(u[0], 0, LARGEST)
    return [number], [number % 2]


def _successor(u: list[float]) -> tuple[list[int | str], list[int | str]]:
    number = _whole(u[0], 0, LARGEST - 1)
    return [number], [number + 1]


def _op(u: list[float]) -> tuple[list[int | str], list[int | str]]:
    """Half of the questions have an answer by construction, half ask for a trace's sub-goal."""
    a, b = _whole(u[0], 1, LARGEST_OPERAND), _whole(u[1], 1, LARGEST_OPERAND)
    value = _made(a, b, OPERATORS[int(u[3] * 4)]) if u[2] < 0.5 else None
    if value is None:
        goal, number = _whole(u[4], 1, LARGEST_TARGET), _whole(u[5], 1, LARGEST_OPERAND)
        step = undo(goal, UNDO_ORDER[int(u[6] * 4)], number)
        value = goal if step is None else step.sub_goal
    return [value, ":", a, b], [operator_between(value, a, b)]


def _made(a: int, b: int, operator: str) -> int | None:
    low, high = min(a, b), max(a, b)
    if operator == "+":
        return a + b
    if operator == "-":
        return high - low
    if operator == "*":
        return a * b if a * b <= LARGEST else None
    return high // low if high % low == 0 else None


def _rest(u: list[float]) -> tuple[list[int | str], list[int | str]]:
    numbers: list[int | str] = [_whole(value, 1, LARGEST_OPERAND) for value in u[:3]]
    place = int(u[3] * 3)
    left = numbers[:place] + numbers[place + 1 :]
    return [*numbers, ":", *left], [numbers[place]]


_ANY = 1 / (LARGEST + 1)
_ONE_OF_LIST = sum(1 / size for size in LISTS) / len(LISTS)
_ORDER_OF_LIST = sum(1 / math.factorial(size) for size in LISTS) / len(LISTS)

SKILLS: Mapping[str, Skill] = {
    "add": Skill(_add, _ANY),
    "sub": Skill(_sub, _ANY),
    "mul": Skill(_mul, _ANY),
    "div": Skill(_div, _ANY),
    "cmp": Skill(_cmp, 0.45),
    "sort": Skill(_sort, _ORDER_OF_LIST),
    "reverse": Skill(_reverse, _ORDER_OF_LIST),
    "copy": Skill(_copy, _ORDER_OF_LIST),
    "parity": Skill(_parity, 0.5),
    "max": Skill(_max, _ONE_OF_LIST),
    "min": Skill(_min, _ONE_OF_LIST),
    "successor": Skill(_successor, _ANY),
    "op": Skill(_op, 0.55),
    "rest": Skill(_rest, 1 / 3),
}


def draw(name: str, generator: np.random.Generator) -> tuple[list[str], list[str]]:
    """One question of a skill and its answer, both in words: `add 3 5 =` and `8`."""
    question, answer = SKILLS[name].draw(generator.random(UNIFORMS).tolist())
    return [name, *map(str, question), "="], [str(word) for word in answer]


@functools.cache
def _questions(name: str) -> Mapping[Split, tuple[Problem, ...]]:
    """The distinct questions of a skill among 6,000 draws, split in three by hash of the prompt."""
    generator = stream(0, "sandbox", "skill", name)
    splits: dict[Split, dict[str, Problem]] = {split: {} for split in SPLITS}
    for _ in range(DRAWS_PER_SKILL):
        question, answer = draw(name, generator)
        prompt = " ".join(question)
        split = SPLITS[hashlib.sha256(prompt.encode()).digest()[0] % len(SPLITS)]
        message = {"role": "user", "content": prompt}
        reference = {"skill": name, "answer": " ".join(answer)}
        splits[split].setdefault(prompt, Problem(prompt, (message,), reference))
    return {split: tuple(problems.values()) for split, problems in splits.items()}


@final
class SandboxSkill:
    """A prior skill as a task: the answer must match exactly.

    Pre-training shows every question there is (numbers are few: 90 for parity), so this measures
    whether what was once known still is, not generalisation. The splits keep distillation on
    skills, the choice of a recipe and the report apart.

    Attributes:
        name: The skill's tag.
        chance: Accuracy of a guess, for the chance-corrected score.
    """

    def __init__(self, name: str) -> None:
        if name not in SKILLS:
            message = f"skill {name!r} is unknown; the sandbox has {', '.join(SKILL_TAGS)}"
            raise ValueError(message)
        self.name = name
        self.chance = SKILLS[name].chance

    def problems(self, split: Split, n: int | None = None) -> Sequence[Problem]:
        """The first `n` questions of a split, or all of them.

        Raises:
            ValueError: The split holds fewer than `n` questions.
        """
        found = _questions(self.name)[split]
        if n is not None and n > len(found):
            message = f"{self.name}: split {split!r} holds {len(found)} questions, {n} were asked"
            raise ValueError(message)
        return found[:n]

    def grade(self, problem: Problem, completion: str) -> Grade:
        """Exact match of the words of the answer; an empty completion is no answer."""
        given = " ".join(completion.split())
        expected: Any = problem.reference["answer"]
        correct = given == expected
        reason = "ok" if correct else "wrong" if given else "no_answer"
        return Grade(correct, reason, bool(given), given if correct else None)

    def demonstration(self, problem: Problem, *, seed: int) -> str:  # noqa: ARG002 - one answer only
        """The right answer."""
        return str(problem.reference["answer"])
