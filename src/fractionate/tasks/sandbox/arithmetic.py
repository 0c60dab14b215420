"""Arithmetic of the sandbox: undoing an operation, and naming the operator between two numbers."""

from dataclasses import dataclass

from fractionate.tasks.countdown.verifier import combine
from fractionate.tasks.sandbox.vocabulary import LARGEST, NO_OPERATOR

UNDO_ORDER = ("-", "/", "+", "*")
"""The fixed order in which operations with one number are undone."""
_INVERSE = {"-": "+", "+": "-", "/": "*", "*": "/"}


@dataclass(frozen=True, slots=True)
class Undo:
    """One step backwards from a goal: `left operator right = sub_goal`.

    Attributes:
        operator: The operator written in the step (the inverse of the one in the answer).
        number: The given number whose last use is undone.
        sub_goal: What the other numbers must make.
        step: The step in words, four tokens and the sub-goal: `left o right = sub_goal`.
        equation: The equation it stands for, forwards: `sub_goal o number = goal`.
    """

    operator: str
    number: int
    sub_goal: int
    step: tuple[str, ...]
    equation: tuple[str, ...]


def words(left: int, operator: str, right: int, value: int) -> tuple[str, ...]:
    """`left operator right = value` as five words."""
    return (str(left), operator, str(right), "=", str(value))


def undo(goal: int, operator: str, number: int) -> Undo | None:
    """Undo the last operation with `number`, or None where no whole number in range results.

    `-`: goal - number (forwards n + number) or, for a smaller goal, number - goal (number - n).
    `/`: goal / number (n * number) or number / goal (number / n). `+`: goal + number (n - number).
    `*`: goal * number (n / number).
    """
    swapped = goal < number and (operator == "-" or (operator == "/" and goal > 0))
    left, right = (number, goal) if swapped else (goal, number)
    sub_goal = combine(left, operator, right)
    if sub_goal is None or sub_goal > LARGEST:
        return None
    if swapped:
        equation = words(number, operator, sub_goal, goal)
    else:
        equation = words(sub_goal, _INVERSE[operator], number, goal)
    return Undo(operator, number, sub_goal, words(left, operator, right, sub_goal), equation)


def operator_between(value: int, a: int, b: int) -> str:
    """The operator that makes `value` of `a` and `b` in either order, `x` if there is none.

    Where several do, the first of `+ - * /` is the answer.
    """
    low, high = min(a, b), max(a, b)
    if a + b == value:
        return "+"
    if high - low == value:
        return "-"
    if a * b == value:
        return "*"
    if low and high % low == 0 and high // low == value:
        return "/"
    return NO_OPERATOR


def equation_between(value: int, a: int, b: int, operator: str) -> tuple[str, ...]:
    """`a operator b = value`, the larger number first where order matters."""
    if operator in ("-", "/") and a < b:
        a, b = b, a
    return words(a, operator, b, value)
