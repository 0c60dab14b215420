"""Declared outcomes must be ones that the study will measure: a frozen hypothesis is not mended."""

from collections.abc import Iterator

from fractionate.analysis.metrics_table import CHANCE, FAMILIES, METRICS, describe, ks
from fractionate.config import Evaluate, Study, StudyFileError

_GENERATION = ("completion_rate", "parse_rate", "mean_length", "entropy")
_SKILLS = ("skills", "skills_drop", "skills_chance_corrected")
_HARDER = ("harder", "harder_completion_rate", "harder_parse_rate")
_WEIGHTS = ("sparsity_relative", "rounding_bound", "delta_l2", "relative_l1")
_DRIFT = ("kl_to_base", "kl_to_teacher")
_EVALUATED = {"accuracy", *_GENERATION, *_SKILLS, *_HARDER, *_WEIGHTS, *_DRIFT}


def measured_names(evaluate: Evaluate) -> Iterator[str]:
    """The metrics that a study with these measurements leaves behind, costs included.

    Accuracy is read off the coverage samples where it has no samples of its own; pass@k is known
    for the k of `ks`, whatever the plan lists.
    """
    if evaluate.accuracy is not None or evaluate.coverage is not None:
        yield from ("accuracy", *_GENERATION)
    if evaluate.coverage is not None:
        for temperature in evaluate.coverage.temperatures:
            at = f"{temperature:g}"
            yield from (f"pass@{k}@{at}" for k in ks(evaluate.coverage.samples))
            yield from (f"{name}@{at}" for name in ("distinct", *_GENERATION))
    if evaluate.forgetting is not None:
        yield from (*_SKILLS, *(f"skill:{name}" for name in CHANCE))
    if evaluate.harder is not None:
        yield from _HARDER
        yield from (f"harder_pass@{k}" for k in ks(evaluate.harder.samples)[1:])
    if evaluate.sparsity is not None:
        families = ("sparsity", "rounding_null", "sparsity_excess")
        for tau in evaluate.sparsity.thresholds:
            yield from (f"{family}@{tau:g}" for family in families)
        yield from _WEIGHTS
    drift = evaluate.drift
    yield from ("kl_to_base",) if drift is not None and drift.to_base else ()
    yield from ("kl_to_teacher",) if drift is not None and drift.to_teacher else ()
    yield from (name for name in METRICS if name not in _EVALUATED)


def refuse_unmeasured(study: Study) -> None:
    """Check the outcomes of all hypotheses before anything runs.

    Raises:
        StudyFileError: An outcome is no metric, or one that `evaluate` leaves out.
    """
    measured = list(dict.fromkeys(measured_names(study.evaluate)))
    for i, hypothesis in enumerate(study.hypotheses):
        outcome = hypothesis.outcome
        try:
            describe(outcome)
        except ValueError as error:
            raise StudyFileError(f"hypotheses[{i}].outcome: {error}") from None
        if outcome in measured:
            continue
        family = next((prefix for prefix in FAMILIES if outcome.startswith(prefix)), None)
        kin = [name for name in measured if family and name.startswith(family)]
        there = f" It measures {', '.join(kin)}." if kin else ""
        raise StudyFileError(
            f"hypotheses[{i}].outcome: '{outcome}' is not measured by this study.{there} Add its "
            "measurement to evaluate, or leave the hypothesis out"
        )
