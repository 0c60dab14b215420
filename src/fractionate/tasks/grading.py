r"""Grading free text against a gold answer: which span is the answer, and when it is right.

Which span. Only what follows the last `</think>` counts; a thought that was never finished holds no
answer. Of the rest it is, in this order: the last complete `<answer>` block; the content of the
last complete `\boxed{}`; for numbers, what follows the last `####` on its line; the whole text.

Numbers. The span must hold exactly one distinct number, else there is no answer: a later or an
earlier number is never guessed at. Currency signs, units, percent signs and text around it do not
matter; `1,234.50`, `-3`, `2e3`, `3/4` and `\frac{3}{4}` are numbers. They are compared exactly, as
fractions.

Mathematics ("math") is found and compared by rules of its own: `fractionate.tasks.math_answers`.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Literal

from fractionate.tasks.answers import extract_answer, last_boxed, outside_thought
from fractionate.tasks.base import Grade
from fractionate.tasks.math_answers import gold_fault as math_fault
from fractionate.tasks.math_answers import grade_math
from fractionate.tasks.multiple_choice import extract_choice

Rule = Literal["exact", "number", "choice", "math", "none"]

UNSCORED = Grade(correct=False, reason="unscored", answered=True)
"""The verdict of the rule "none": it is no verdict, and counts neither as right nor as wrong."""

_LETTERS = 26
_LONGEST = 400  # characters of a number; Python refuses to read integers of thousands of digits
_UNSIGNED = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_NUMBER = re.compile(
    rf"(?<![A-Za-z0-9.])(?P<sign>(?<![\w)])[-+])?(?P<top>{_UNSIGNED})"
    rf"(?:[eE](?P<power>[-+]?[0-9]{{1,3}})(?![0-9A-Za-z]))?"
    rf"(?:\s*/\s*(?P<bottom>{_UNSIGNED}))?"
)
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*([^{}]*?)\s*\}\s*\{\s*([^{}]*?)\s*\}")


def grade(rule: Rule, completion: str, gold: str) -> Grade:
    """Judge a completion against the gold answer by one of the rules; never raises on text.

    Args:
        rule: "exact" compares text (white space collapsed), "number" compares numbers, "choice"
            letters, "math" what is boxed; "none" gives no verdict.
        completion: The text of a completion.
        gold: The gold answer, one that `gold_fault` has nothing against.

    Returns:
        The verdict; the reason of a failure is "no_answer", "ambiguous" (several numbers) or
        "wrong". The solution is the normalised answer.
    """
    return _RULES[rule](completion, gold)


def gold_fault(rule: Rule, gold: str) -> str | None:
    """Why a gold answer cannot be graded against by a rule, or None."""
    if rule == "exact" and not gold.strip():
        return "is empty"
    if rule == "number" and len(_numbers(_span(gold, numeric=True) or "")) != 1:
        return "holds no single number"
    if rule == "choice" and _choice(gold) is None:
        return "is no single letter"
    return math_fault(gold) if rule == "math" else None


def _exact(completion: str, gold: str) -> Grade:
    span = _span(completion, numeric=False)
    return _verdict(" ".join((span or "").split()) or None, " ".join(gold.split()))


def _number(completion: str, gold: str) -> Grade:
    span = _span(completion, numeric=True)
    given = _numbers(span or "")
    if len(given) > 1:
        return Grade(correct=False, reason="ambiguous", answered=False)
    right = _numbers(_span(gold, numeric=True) or "")
    return _verdict(str(*given) if given else None, str(*right))


def _letter(completion: str, gold: str) -> Grade:
    return _verdict(_choice(completion), _choice(gold) or "")


def _unscored(completion: str, gold: str) -> Grade:  # noqa: ARG001 - one signature for all rules
    return UNSCORED


_RULES: Mapping[Rule, Callable[[str, str], Grade]] = {
    "exact": _exact,
    "number": _number,
    "choice": _letter,
    "math": grade_math,
    "none": _unscored,
}


def _verdict(given: str | None, right: str) -> Grade:
    if given is None:
        return Grade(correct=False, reason="no_answer", answered=False)
    correct = given == right
    reason = "ok" if correct else "wrong"
    return Grade(correct, reason, answered=True, solution=given if correct else None)


def _span(text: str, *, numeric: bool) -> str | None:
    """The part of a text that is its answer, by the order in the module's header."""
    before = outside_thought(text)
    if before is None:
        return None
    block = extract_answer(text)
    boxed = last_boxed(before) if block is None else None
    if block is not None or boxed is not None:
        return block if boxed is None else boxed
    _, marked, tail = before.rpartition("####")
    return tail.partition("\n")[0] if numeric and marked else before


def _choice(text: str) -> str | None:
    span = _span(text, numeric=False)
    return None if span is None else extract_choice(f"<answer>{span}</answer>", _LETTERS)


def _numbers(text: str) -> set[Fraction]:
    """The distinct numbers in a text; none if one of them cannot be read."""
    plain = text.replace("−", "-").replace("{,}", ",").replace("\\,", "").replace("\\!", "")
    plain = _FRACTION.sub(r" \1/\2 ", plain)
    found: set[Fraction] = set()
    for match in _NUMBER.finditer(plain):
        value = _value(match)
        if value is None:
            return set()
        found.add(value)
    return found


def _value(match: re.Match[str]) -> Fraction | None:
    if len(match[0]) > _LONGEST:
        return None
    bottom = Fraction((match["bottom"] or "1").replace(",", ""))
    if bottom == 0:
        return None
    top = Fraction(match["top"].replace(",", "")) * Fraction(10) ** int(match["power"] or 0)
    return (-top if match["sign"] == "-" else top) / bottom
