"""Coverage: what several samples per item reach that one does not."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from fractionate.records import EvalRecord
from fractionate.statistics import pass_at_k


@dataclass(frozen=True)
class SolutionRecall:
    """How many of an item's solutions were found.

    Attributes:
        found: Distinct right solutions among the samples.
        exist: Solutions that a solver finds.
        recall: found / exist.
    """

    found: int
    exist: int
    recall: float


def mean_pass_at_k(records: Sequence[EvalRecord], k: Sequence[int]) -> dict[int, float]:
    """Mean over items of the unbiased pass@k, by k; never the pass@k of pooled counts.

    Raises:
        ValueError: No record, or a k beyond an item's samples.
    """
    if not records:
        raise ValueError("there are no records: nothing was evaluated")
    samples = np.array([record.samples for record in records])
    correct = np.array([record.correct for record in records])
    return {size: float(np.mean(pass_at_k(samples, correct, size))) for size in k}


def mean_distinct(records: Sequence[EvalRecord]) -> float:
    """Mean number of distinct right solutions per item, among its samples.

    Raises:
        ValueError: No record.
    """
    if not records:
        raise ValueError("there are no records: nothing was evaluated")
    return float(np.mean([record.distinct for record in records]))


def solution_recall(found: Collection[str], solver: Collection[str]) -> SolutionRecall:
    """Recall of the canonical forms found against the solver's full set.

    Raises:
        ValueError: The solver knows no solution, or a found one is not among its own: then the two
            do not speak of the same problem or canonical form.
    """
    forms, known = set(found), set(solver)
    if not known:
        raise ValueError("the solver's set is empty: an unsolvable problem has no recall")
    strange = sorted(forms - known)
    if strange:
        raise ValueError(f"found solution {strange[0]!r} is not in the solver's set")
    return SolutionRecall(len(forms), len(known), len(forms) / len(known))
