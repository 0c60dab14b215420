"""Accuracy of one condition, with what stands beside it: parse rate and completion rate."""

from collections.abc import Sequence
from dataclasses import dataclass

from fractionate.records import EvalRecord
from fractionate.statistics import wilson_interval

UNSCORED = "unscored"
"""The grading reason of a completion that no verifier judged: neither right nor wrong."""


@dataclass(frozen=True)
class Accuracy:
    """Answers counted over items and samples.

    Attributes:
        correct: Right completions.
        scored: Completions with a verdict; truncated and unparsable ones are among them, as wrong.
        rate: correct / scored; None where nothing was scored.
        low: Lower end of Wilson's interval, treating completions as independent.
        high: Its upper end.
        answered: Share of completions with a parsable answer.
        finished: Share of completions that ended before the length limit.
        unscored: Completions without a verdict; they are in no rate above.
    """

    correct: int
    scored: int
    rate: float | None
    low: float | None
    high: float | None
    answered: float
    finished: float
    unscored: int


def accuracy(records: Sequence[EvalRecord], *, confidence: float = 0.95) -> Accuracy:
    """Accuracy over the records of one suite and temperature.

    The interval is meant for one sample per item; several samples of one item are not independent.

    Raises:
        ValueError: No completion in the records.
    """
    samples = sum(record.samples for record in records)
    if samples == 0:
        raise ValueError("there is no completion in these records: nothing was evaluated")
    unscored = sum(record.reasons.get(UNSCORED, 0) for record in records)
    correct = sum(record.correct for record in records)
    scored = samples - unscored
    low, high = wilson_interval(correct, scored, confidence=confidence) if scored else (None, None)
    return Accuracy(
        correct=correct,
        scored=scored,
        rate=correct / scored if scored else None,
        low=low,
        high=high,
        answered=1 - sum(record.unanswered for record in records) / samples,
        finished=1 - sum(record.truncated for record in records) / samples,
        unscored=unscored,
    )
