"""Rewards of completions: the task's verifier, and for teachers the layout of the answer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from fractionate.metrics.verdicts import Answer
from fractionate.tasks.base import Grade, Problem, Task

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_KINDS = (TAGS[:2], TAGS[2:])
_LAYOUT = re.compile(
    r"\s*<think>(?P<thoughts>.*)</think>\s*<answer>(?P<answer>.*)</answer>\s*", re.DOTALL
)


@dataclass(frozen=True)
class Reward:
    """A completion's reward and what it is for.

    Attributes:
        value: The reward.
        grade: The verifier's verdict.
    """

    value: float
    grade: Grade


@final
class Rewarder:
    """Correctness, and a share for format."""

    def __init__(self, task: Task, *, correct: float, layout: float) -> None:
        """Bind the judge.

        Args:
            task: Whose verifier judges.
            correct: Reward of a right answer.
            layout: At most this for each of the three terms of `format_terms`.
        """
        self._task = task
        self._correct = correct
        self._layout = layout

    def __call__(self, problems: Sequence[Problem], answers: Sequence[Answer]) -> list[Reward]:
        """One reward per completion; equal texts to one problem are judged once."""
        judged: dict[tuple[str, str], Reward] = {}
        for problem, answer in zip(problems, answers, strict=True):
            known = (problem.key, answer.text)
            if known not in judged:
                judged[known] = self._judge(problem, answer.text)
        return [judged[p.key, a.text] for p, a in zip(problems, answers, strict=True)]

    def _judge(self, problem: Problem, text: str) -> Reward:
        grade = self._task.grade(problem, text)
        layout = self._layout * sum(format_terms(text)) if self._layout else 0.0
        return Reward(self._correct * grade.correct + layout, grade)


def format_terms(text: str) -> tuple[float, float, float]:
    """How well a completion keeps to thoughts in one pair of tags and the answer in another.

    The paper gives the three terms (arXiv 2609.35259, its appendix on teachers); that the first is
    paid by kind of tag is ours.

    Returns:
        Share of the two kinds of tag that occur as exactly one pair; whether all four tags occur,
        first in their order; whether the text is the two blocks and nothing else.
    """
    pairs = sum(all(text.count(tag) == 1 for tag in kind) for kind in _KINDS) / len(_KINDS)
    places = [text.find(tag) for tag in TAGS]
    ordered = min(places) >= 0 and places == sorted(places)
    layout = _LAYOUT.fullmatch(text)
    strict = layout is not None and not any(
        tag in block for block in layout.groupdict().values() for tag in TAGS
    )
    return pairs, float(ordered), float(strict)
