"""Declared outcomes must be ones that the study will measure: a frozen hypothesis is not mended."""

import itertools
from collections.abc import Iterator

from fractionate.analysis.metrics_table import CHANCE, FAMILIES, METRICS, describe, ks
from fractionate.config import Evaluate, Harness, Study, StudyFileError

_WRITERS = ("student", "teacher")
_GENERATION = ("completion_rate", "parse_rate", "mean_length", "entropy")
_DEFINITIONS = ("drop", "relative_drop", "mean_relative_drop", "loss_only")
_SKILLS = ("skills", "skills_chance_corrected", *(f"skills_{how}" for how in _DEFINITIONS))
_OOD = ("ood", "ood_parse_rate", *(f"ood_{how}" for how in _DEFINITIONS))
_HARDER = ("harder", "harder_completion_rate", "harder_parse_rate")
_WEIGHTS = ("sparsity_relative", "rounding_bound", "delta_l2", "relative_l1")
_DRIFT = ("kl_to_base", "kl_to_teacher")
_EVALUATED = {"accuracy", *_GENERATION, *_SKILLS, *_OOD, *_HARDER, *_WEIGHTS, *_DRIFT}


SANDBOX_VOCABULARY = 128
"""Words of the sandbox's tokenizers: entropies there cannot exceed ln 128 = 4.85 nats."""

DROPS = ("skills_drop", "ood_drop")
"""What forgetting is, by preference: prior skills of the sandbox, benchmarks of real models."""

STYLE_SHARE = "style_share"
"""Share of responses in the teacher's style."""

HARDER, COVERAGE_TEMPERATURE = "harder", 1.0
"""The harder task; the temperature at which the paper samples coverage."""


def pass_at(k: int, temperature: float) -> str:
    """pass@k at a sampling temperature."""
    return f"pass@{k}@{temperature:g}"


def harder_pass(k: int) -> str:
    """pass@k on the harder task."""
    return f"harder_pass@{k}"


def benchmark(task: str) -> str:
    """Score on one benchmark, by its task name in lm-evaluation-harness."""
    return f"benchmark:{task}"


def resampled_accuracy(temperature: float) -> str:
    """Accuracy of the prompts that are sampled again at several temperatures."""
    return f"resampled_accuracy@{temperature:g}"


def resampled_entropies(temperature: float) -> tuple[str, str]:
    """Entropies of student and teacher on the same completions."""
    at = f"{temperature:g}"
    return f"resampled_entropy@{at}", f"resampled_teacher_entropy@{at}"


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
    if isinstance(evaluate.forgetting, Harness):
        yield from (*_OOD, *(benchmark(name) for name in evaluate.forgetting.names))
        yield from (f"benchmark_balanced:{name}" for name in evaluate.forgetting.names)
    elif evaluate.forgetting is not None:
        yield from (*_SKILLS, *(f"skill:{name}" for name in CHANCE))
    if evaluate.harder is not None:
        yield from _HARDER
        yield from (f"harder_pass@{k}" for k in ks(evaluate.harder.samples)[1:])
    if evaluate.sparsity is not None:
        families = ("sparsity", "rounding_null", "sparsity_excess")
        for tau in evaluate.sparsity.thresholds:
            yield from (f"{family}@{tau:g}" for family in families)
        yield from _WEIGHTS
    yield from _beside_teacher(evaluate)
    drift = evaluate.drift
    yield from ("kl_to_base",) if drift is not None and drift.to_base else ()
    yield from ("kl_to_teacher",) if drift is not None and drift.to_teacher else ()
    yield from (name for name in METRICS if name not in _EVALUATED)


def _beside_teacher(evaluate: Evaluate) -> Iterator[str]:
    if evaluate.resampling is not None:
        for temperature in evaluate.resampling.temperatures:
            yield resampled_accuracy(temperature)
            yield from resampled_entropies(temperature)
    if evaluate.gradients is not None:
        arms = [f"{kl}/{writer}" for writer in _WRITERS for kl in ("forward", "reverse")]
        for family in ("norm", "signal", "noise", "snr"):
            yield from (f"gradient_{family}:{arm}" for arm in arms)
        for one, other in itertools.combinations(arms, 2):
            for family in ("cosine", "cosine_debiased"):
                yield f"gradient_{family}:{one} ~ {other}"
        yield from (f"{kind}:{w}" for kind in ("policy_tv", "policy_tv_token") for w in _WRITERS)


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
