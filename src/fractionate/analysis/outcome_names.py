"""Declared outcomes must be ones that the study will measure: a frozen hypothesis is not mended."""

from collections.abc import Callable, Mapping

from fractionate.analysis.metrics_table import describe
from fractionate.config import Evaluate, Study, StudyFileError

_MEASURED: Mapping[str, Callable[[Evaluate], bool]] = {
    "accuracy": lambda evaluate: evaluate.accuracy is not None,
    "completion_rate": lambda evaluate: evaluate.accuracy is not None,
    "parse_rate": lambda evaluate: evaluate.accuracy is not None,
    "mean_length": lambda evaluate: evaluate.accuracy is not None,
    "entropy": lambda evaluate: evaluate.accuracy is not None,
    "pass": lambda evaluate: evaluate.coverage is not None,
    "distinct": lambda evaluate: evaluate.coverage is not None,
    "skill": lambda evaluate: evaluate.forgetting is not None,
    "skills": lambda evaluate: evaluate.forgetting is not None,
    "skills_drop": lambda evaluate: evaluate.forgetting is not None,
    "harder": lambda evaluate: evaluate.harder is not None,
    "sparsity": lambda evaluate: evaluate.sparsity is not None,
    "kl_to_base": lambda evaluate: evaluate.drift is not None and evaluate.drift.to_base,
    "kl_to_teacher": lambda evaluate: evaluate.drift is not None and evaluate.drift.to_teacher,
}
"""By the name of a metric up to its first "@" or ":"; others are always recorded."""


def refuse_unmeasured(study: Study) -> None:
    """Check the outcomes of all hypotheses before anything runs.

    Raises:
        StudyFileError: An outcome is no metric, or one that `evaluate` leaves out.
    """
    for i, hypothesis in enumerate(study.hypotheses):
        outcome = hypothesis.outcome
        try:
            describe(outcome)
        except ValueError as error:
            raise StudyFileError(f"hypotheses[{i}].outcome: {error}") from None
        known = _MEASURED.get(outcome.partition("@")[0].partition(":")[0])
        if known is not None and not known(study.evaluate):
            raise StudyFileError(
                f"hypotheses[{i}].outcome: '{outcome}' is not measured by this study. Add its "
                "measurement to evaluate, or leave the hypothesis out"
            )
