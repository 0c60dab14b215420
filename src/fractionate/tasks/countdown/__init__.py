"""Countdown: reach a target from given numbers by a chain of exact equations."""

from fractionate.tasks.answers import extract_answer
from fractionate.tasks.countdown.canonical import canonical_form
from fractionate.tasks.countdown.demonstrations import demonstrate
from fractionate.tasks.countdown.expression import verify_expression
from fractionate.tasks.countdown.generator import V16, CountdownProblem, generate
from fractionate.tasks.countdown.solver import Solutions, solve
from fractionate.tasks.countdown.task import Countdown, MultisetOverlap
from fractionate.tasks.countdown.verifier import Verdict, verify

__all__ = [
    "V16",
    "Countdown",
    "CountdownProblem",
    "MultisetOverlap",
    "Solutions",
    "Verdict",
    "canonical_form",
    "demonstrate",
    "extract_answer",
    "generate",
    "solve",
    "verify",
    "verify_expression",
]
