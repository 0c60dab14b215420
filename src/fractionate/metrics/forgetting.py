"""Forgetting: what the student could do before and cannot do after."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fractionate.metrics.accuracy import accuracy
from fractionate.records import EvalRecord
from fractionate.statistics import Forgetting, forgetting

SKILL_PREFIX = "skill:"
"""How the suites of prior skills are named."""

BENCHMARK_PREFIX = "benchmark:"
"""How the suites of lm-evaluation-harness are named."""

GOLD = "gold "
"""How a reason begins that names the right choice of a multiple-choice item."""


def skill_scores(records: Sequence[EvalRecord]) -> dict[str, float]:
    """Accuracy in points (0 to 100) per prior skill, over the records named "skill:...".

    Raises:
        ValueError: No record of a skill, or a skill of which nothing was scored.
    """
    suites = sorted({r.suite for r in records if r.suite.startswith(SKILL_PREFIX)})
    if not suites:
        raise ValueError("there is no record of a skill: set evaluate.forgetting: skills")
    scores: dict[str, float] = {}
    for suite in suites:
        rate = accuracy([record for record in records if record.suite == suite]).rate
        if rate is None:
            raise ValueError(f"no completion of '{suite}' was scored")
        scores[suite.removeprefix(SKILL_PREFIX)] = 100 * rate
    return scores


def skill_forgetting(base: Sequence[EvalRecord], final: Sequence[EvalRecord]) -> Forgetting:
    """Every definition of forgetting over the prior skills; a gain is negative.

    Raises:
        ValueError: The two were not measured on the same skills.
    """
    return forgetting(skill_scores(base), skill_scores(final))


def benchmark_scores(records: Sequence[EvalRecord]) -> dict[str, float]:
    """Score in points per benchmark, over the records named "benchmark:...".

    Raises:
        ValueError: No record of a benchmark.
    """
    return {name: 100 * values.mean() for name, values in _by_benchmark(records).items()}


def benchmark_forgetting(base: Sequence[EvalRecord], final: Sequence[EvalRecord]) -> Forgetting:
    """Every definition of forgetting over the benchmarks; a gain is negative.

    Raises:
        ValueError: The two were not measured on the same benchmarks.
    """
    return forgetting(benchmark_scores(base), benchmark_scores(final))


def benchmark_table(records: Sequence[EvalRecord]) -> dict[str, dict[str, float | int | None]]:
    """Per benchmark: score in points with its standard error, n, and what was lost on the way.

    Raises:
        ValueError: No record of a benchmark.
    """
    table: dict[str, dict[str, float | int | None]] = {}
    for name, values in _by_benchmark(records).items():
        own = [record for record in records if record.suite == BENCHMARK_PREFIX + name]
        n = values.size
        table[name] = {
            "score": 100 * float(values.mean()),
            "standard_error": 100 * float(values.std(ddof=1)) / n**0.5 if n > 1 else None,
            "n": n,
            "unanswered": sum(record.unanswered for record in own),
            "truncated": sum(record.truncated for record in own),
            "prompts_cut": sum(record.reasons.get("prompt_cut", 0) for record in own),
            "balanced": balanced_score(own),
        }
    return table


def balanced_score(records: Sequence[EvalRecord]) -> float | None:
    """Mean over gold labels of the score on their items, points; None without labels.

    Where labels are unbalanced (ToxiGen), a constant answer raises accuracy but not this.
    """
    by_label: dict[str, list[float]] = {}
    for record in records:
        for reason in record.reasons:
            if reason.startswith(GOLD) and record.value is not None:
                by_label.setdefault(reason, []).append(record.value)
    means = [sum(values) / len(values) for values in by_label.values()]
    return 100 * sum(means) / len(means) if means else None


def _by_benchmark(records: Sequence[EvalRecord]) -> dict[str, NDArray[np.float64]]:
    scores: dict[str, list[float]] = {}
    for record in records:
        if record.suite.startswith(BENCHMARK_PREFIX) and record.value is not None:
            scores.setdefault(record.suite.removeprefix(BENCHMARK_PREFIX), []).append(record.value)
    if not scores:
        raise ValueError("there is no record of a benchmark: set evaluate.forgetting")
    return {name: np.array(values) for name, values in scores.items()}


def corrected_scores(scores: Mapping[str, float], chance: Mapping[str, float]) -> dict[str, float]:
    """Scores on the scale where guessing is 0 and perfection 100: (a - c) / (1 - c).

    Args:
        scores: Points per skill.
        chance: Accuracy of guessing per skill, a rate.

    Raises:
        ValueError: A skill without a chance level, or one at which guessing is always right.
    """
    for skill in scores:
        if skill not in chance:
            raise ValueError(f"no chance level for the skill '{skill}'")
        if not 0 <= chance[skill] < 1:
            raise ValueError(f"chance of '{skill}' must lie in [0, 1), got {chance[skill]!r}")
    return {
        skill: 100 * (score / 100 - chance[skill]) / (1 - chance[skill])
        for skill, score in scores.items()
    }
