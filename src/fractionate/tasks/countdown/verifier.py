"""The Countdown verifier: a grammar and exact integers, no pattern hunting, no `eval`.

An answer is a chain of equations, `2+3=5,5*4=20`. Each equation takes two numbers out of the pool
and puts its result back, so every given number is used exactly once and intermediates chain. The
verdict of a chain is the reason of its first faulty equation.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Reason = Literal[
    "ok",
    "no_answer",
    "empty",
    "syntax",
    "operand",
    "div0",
    "nonint",
    "arith",
    "unused",
    "target",
]
OPERATORS = "+-*/"

# 18 digits: more than any honest answer needs, and int() stays cheap on hostile text.
NATURAL = r"(?:0|[1-9][0-9]{0,17})"
_INTEGER = rf"(?:-?{NATURAL}|\(-?{NATURAL}\))"
_EQUATION = re.compile(rf"({_INTEGER})([-+*/])({_INTEGER})=({_INTEGER})")
_SPLIT_NUMBER = re.compile(r"[0-9]\s+[0-9]")
_SIGNS = str.maketrans({"×": "*", "∗": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})


@dataclass(frozen=True)
class Verdict:
    """What the verifier says of one answer.

    Attributes:
        ok: Whether the answer is right.
        reason: "ok", or why it is not, in the words of `Reason`.
    """

    ok: bool
    reason: Reason


@dataclass(frozen=True)
class Step:
    """One equation, `left operator right = value`, of a chain that holds so far.

    Attributes:
        left: First operand.
        operator: One of `+ - * /`.
        right: Second operand.
        value: The exact result.
    """

    left: int
    operator: str
    right: int
    value: int

    def __str__(self) -> str:
        return f"{self.left}{self.operator}{self.right}={self.value}"


@dataclass(frozen=True)
class Reduction:
    """What the equations of an answer make of the pool of operands.

    Attributes:
        reason: "ok" for a valid chain, whatever it amounts to, else the reason of its first fault.
        steps: The equations that hold, up to the fault.
    """

    reason: Reason
    steps: tuple[Step, ...] = ()


def combine(left: int, operator: str, right: int) -> int | None:
    """The exact integer `left operator right`; None for a division that has none."""
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if right == 0 or left % right:
        return None
    return left // right


def normalise(text: str) -> str | None:
    """Map typographic operators to ASCII and drop white space; None if it splits a number."""
    text = text.translate(_SIGNS)
    if _SPLIT_NUMBER.search(text):
        return None
    return "".join(text.split())


def _parse(equation: str) -> tuple[int, str, int, int] | None:
    normal = normalise(equation)
    match = None if normal is None else _EQUATION.fullmatch(normal)
    if match is None:
        return None
    left, operator, right, stated = match.groups()
    return _int(left), operator, _int(right), _int(stated)


def _int(literal: str) -> int:
    return int(literal.strip("()"))


def _take(pool: Counter[int], value: int) -> bool:
    if pool[value] <= 0:
        return False
    pool[value] -= 1
    return True


def _reduce_one(equation: str, pool: Counter[int]) -> Step | Reason:
    parsed = _parse(equation)
    if parsed is None:
        return "syntax"
    left, operator, right, stated = parsed
    if not (_take(pool, left) and _take(pool, right)):
        return "operand"
    value = combine(left, operator, right)
    if value is None:
        return "nonint" if right else "div0"
    if value != stated:
        return "arith"
    pool[value] += 1
    return Step(left, operator, right, value)


def reduce_chain(answer: str, operands: Sequence[int]) -> Reduction:
    """Reduce the pool of operands by the equations of a chain; never raises on text.

    Args:
        answer: Comma-separated equations.
        operands: The given numbers, a multiset; the order plays no part.

    Returns:
        The steps and the reason; a valid chain has one step fewer than operands.
    """
    if not answer.strip():
        return Reduction("empty")
    pool = Counter(operands)
    steps: list[Step] = []
    for equation in answer.split(","):
        step = _reduce_one(equation, pool)
        if isinstance(step, str):
            return Reduction(step, tuple(steps))
        steps.append(step)
    return Reduction("ok" if len(steps) == len(operands) - 1 else "unused", tuple(steps))


def verify(answer: str | None, operands: Sequence[int], target: int) -> Verdict:
    """Judge a chain of equations; never raises on text.

    The rules are those of the study (arXiv 2609.35259): exact integers, each given number exactly
    once, stated results checked, zero and negative intermediates allowed. Integers are ASCII
    without leading zeros, at most 18 digits, anything else is "syntax". Linear in the length.

    Args:
        answer: Content of the answer block, e.g. `2+3=5,5*4=20`; None where there was no block.
        operands: The given numbers, a multiset; the order plays no part.
        target: The number to reach.

    Returns:
        The verdict with the reason of the first fault.
    """
    if answer is None:
        return Verdict(ok=False, reason="no_answer")
    reduction = reduce_chain(answer, operands)
    if reduction.reason != "ok":
        return Verdict(ok=False, reason=reduction.reason)
    reached = reduction.steps[-1].value == target
    return Verdict(ok=reached, reason="ok" if reached else "target")
