"""The other notation of Countdown: one free expression, `(2+3)*4`, judged by exact fractions.

Checkers of this kind accept fractional intermediates and check no chaining, so their verdicts are
not those of `verify`; this one is for comparisons with work that uses them. A sign in front of a
number belongs to the number, as in the chain grammar; other unary signs are "syntax".
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction

from fractionate.tasks.countdown.verifier import NATURAL, OPERATORS, Reason, Verdict, normalise

_TOKENS = re.compile(r"(?:[0-9]+|[-+*/()])+")
_TOKEN = re.compile(r"[0-9]+|[-+*/()]")
_NUMBER = re.compile(NATURAL)
_STATED = re.compile(rf"(-?{NATURAL})(?:/({NATURAL}))?")
_PRIORITY = {"+": 1, "-": 1, "*": 2, "/": 2}


def verify_expression(answer: str | None, operands: Sequence[int], target: int) -> Verdict:
    """Judge one expression of + - * / and parentheses; never raises on text, linear in its length.

    A stated result after one equals sign is allowed, an integer or a fraction, and must be right.

    Args:
        answer: The expression, without tags; None where there was no answer.
        operands: The given numbers, each to be used exactly once.
        target: The number to reach, exactly.

    Returns:
        The verdict; "nonint" does not occur.
    """
    if answer is None:
        return Verdict(ok=False, reason="no_answer")
    if not answer.strip():
        return Verdict(ok=False, reason="empty")
    reason = _judge(answer, operands, target)
    return Verdict(ok=reason == "ok", reason=reason)


def _judge(answer: str, operands: Sequence[int], target: int) -> Reason:
    normal = normalise(answer)
    if normal is None:
        return "syntax"
    text, equals, stated = normal.partition("=")
    claim = _STATED.fullmatch(stated)
    postfix = _postfix(text)
    if postfix is None or bool(equals) != bool(claim):
        return "syntax"
    pool, used = Counter(operands), Counter(token for token in postfix if isinstance(token, int))
    if used != pool:
        return "operand" if used - pool else "unused"
    value = _evaluate(postfix)
    if value is None or (claim and claim[2] == "0"):
        return "div0"
    if claim and value != Fraction(int(claim[1]), int(claim[2] or 1)):
        return "arith"
    return "ok" if value == target else "target"


def _postfix(text: str) -> list[int | str] | None:
    """Numbers and operators in postfix order; None if the text is no expression."""
    if not _TOKENS.fullmatch(text):
        return None
    output: list[int | str] = []
    stack: list[str] = []
    sign = ""
    operand_expected = True
    for token in _TOKEN.findall(text):
        if operand_expected:
            if _NUMBER.fullmatch(token):
                output.append(int(sign + token))
                sign, operand_expected = "", False
            elif token == "(" and not sign:
                stack.append(token)
            elif token == "-" and not sign:
                sign = token
            else:
                return None
        elif not _after_operand(token, output, stack):
            return None
        else:
            operand_expected = token != ")"
    if operand_expected or "(" in stack:
        return None
    return [*output, *reversed(stack)]


def _after_operand(token: str, output: list[int | str], stack: list[str]) -> bool:
    """One shunting-yard step for an operator or a closing parenthesis; False if neither fits."""
    if token == ")":
        while stack and stack[-1] != "(":
            output.append(stack.pop())
        return bool(stack) and stack.pop() == "("
    if token not in OPERATORS:
        return False
    while stack and _PRIORITY.get(stack[-1], 0) >= _PRIORITY[token]:
        output.append(stack.pop())
    stack.append(token)
    return True


def _evaluate(postfix: Iterable[int | str]) -> Fraction | None:
    """The exact value; None for a division by zero."""
    stack: list[Fraction] = []
    for token in postfix:
        if isinstance(token, int):
            stack.append(Fraction(token))
            continue
        right, left = stack.pop(), stack.pop()
        if token == "/":
            if right == 0:
                return None
            stack.append(left / right)
        else:
            stack.append({"+": left + right, "-": left - right, "*": left * right}[token])
    return stack.pop()
