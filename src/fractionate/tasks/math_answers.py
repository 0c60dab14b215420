r"""Mathematical answers: the last \boxed{} of a completion against the gold, by math-verify.

Only what is boxed outside the thinking counts; a completion without a complete box has no answer.
Two answers are equal if math-verify says so: symbolically, numerically to six decimals, or letter
by letter where neither is mathematics.

Simplifying an expression may take for ever, so a comparison has a time limit; one that meets it
counts as wrong, under its own reason. The limit is a signal, which only the main thread of a
process can take; in another thread there is none.
"""

import contextlib
import importlib.util
import logging
import signal
import threading
from collections.abc import Iterator
from functools import lru_cache
from types import FrameType
from typing import Any

from fractionate.tasks.answers import last_boxed, outside_thought
from fractionate.tasks.base import Grade

SECONDS = 5
"""Time limit of a comparison where the task sets no other."""

_LONGEST = 500  # characters of an answer; what is longer is no answer but a text
_LOGGER = logging.getLogger("math_verify")


class _LateError(BaseException):
    """The time limit; no Exception, for the libraries underneath swallow those."""


def check_installed(field: str) -> None:
    """Refuse to begin without math-verify.

    Args:
        field: What asks for it, for the message.

    Raises:
        ValueError: It is not installed.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise ValueError(
            f"{field} compares answers with the package 'math-verify', which is not installed. "
            "Install it with: pip install 'fractionate[data]'"
        )


def grade_math(completion: str, gold: str, *, seconds: float = SECONDS) -> Grade:
    """Judge the boxed answer of a completion; never raises on text.

    Args:
        completion: The text of a completion.
        gold: The gold answer, boxed or plain.
        seconds: Time limit of the comparison.

    Returns:
        The verdict; the reason of a failure is "no_answer" (nothing boxed), "unreadable" (empty, or
        too long to be an answer), "timeout" or "wrong". The solution is the gold answer, because
        all right answers are equal.
    """
    visible = outside_thought(completion)
    given = None if visible is None else last_boxed(visible)
    if given is None:
        return Grade(correct=False, reason="no_answer", answered=False)
    if not given.strip() or len(given) > _LONGEST:
        return Grade(correct=False, reason="unreadable", answered=False)
    wanted = gold_answer(gold)
    importlib.import_module("math_verify")  # takes its time, which is no part of a comparison
    try:
        with _limit(seconds):
            correct = _equal(given, wanted)
    except _LateError:
        return Grade(correct=False, reason="timeout", answered=True)
    reason = "ok" if correct else "wrong"
    return Grade(correct, reason, answered=True, solution=wanted if correct else None)


def gold_answer(gold: str) -> str:
    """What is boxed last in a gold answer, or all of it where nothing is boxed."""
    boxed = last_boxed(gold)
    return (gold if boxed is None else boxed).strip()


def gold_fault(gold: str) -> str | None:
    """Why a gold answer cannot be graded against, or None."""
    answer = gold_answer(gold)
    if not answer:
        return "is empty"
    return None if len(answer) <= _LONGEST else "is too long for an answer; box the answer in it"


@lru_cache(maxsize=4096)  # samples of one problem repeat its gold and often themselves
def _equal(given: str, wanted: str) -> bool:
    from math_verify import verify

    if given.strip() == wanted:
        return True
    return verify(_parsed(wanted), _parsed(given), timeout_seconds=None)


def _parsed(answer: str) -> list[Any]:
    """The answer as math-verify reads it: an expression, and the text beside it."""
    from math_verify import LatexExtractionConfig, parse

    # its own limit is off, for it cannot be told from a failure; it warns of that on every import
    _LOGGER.setLevel(logging.ERROR)
    return parse(
        f"\\boxed{{{answer}}}",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
        parsing_timeout=None,  # pyright: ignore[reportArgumentType] - as its message advises
    )


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise `_LateError` inside after some seconds, and leave the signal as it was."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as signals call it
        raise _LateError

    before = signal.signal(signal.SIGALRM, late)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
        signal.signal(signal.SIGALRM, before)
