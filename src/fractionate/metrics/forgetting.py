"""Forgetting: what the student could do before and cannot do after."""

from collections.abc import Mapping, Sequence

from fractionate.metrics.accuracy import accuracy
from fractionate.records import EvalRecord
from fractionate.statistics import Forgetting, forgetting

SKILL_PREFIX = "skill:"
"""How the suites of prior skills are named."""


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
