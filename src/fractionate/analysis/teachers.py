"""The teacher as the paper tabulates it: how often it is right, and how long its answers are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fractionate.records import EvalRecord
from fractionate.statistics import wilson_interval


@dataclass(frozen=True)
class TeacherRow:
    """One teacher on one task, from one sample per item.

    Attributes:
        items: Problems, and responses.
        accuracy: Share of right answers.
        low: Lower end of its 95 % Wilson interval.
        high: Upper end.
        mean_tokens: Mean length of a response in tokens, stop token included.
        sd_tokens: Standard deviation over responses (n - 1).
        unanswered: Responses without a parsable answer.
        truncated: Responses that met the length limit.
    """

    items: int
    accuracy: float
    low: float
    high: float
    mean_tokens: float
    sd_tokens: float
    unanswered: int
    truncated: int


def teacher_row(records: Sequence[EvalRecord]) -> TeacherRow | None:
    """The row of a teacher's evaluation (arXiv 2609.35259, its table of teachers).

    Args:
        records: Of the `teacher_evaluation`; those of other suites than "accuracy" are passed over.

    Returns:
        None where accuracy was not measured.
    """
    asked = [record for record in records if record.suite == "accuracy"]
    if not asked:
        return None
    tokens = np.array([record.tokens for record in asked], dtype=float)
    right = sum(record.correct for record in asked)
    low, high = wilson_interval(right, len(asked))
    return TeacherRow(
        items=len(asked),
        accuracy=right / len(asked),
        low=float(low),
        high=float(high),
        mean_tokens=float(tokens.mean()),
        sd_tokens=float(tokens.std(ddof=1)) if len(asked) > 1 else math.nan,
        unanswered=sum(record.unanswered for record in asked),
        truncated=sum(record.truncated for record in asked),
    )
