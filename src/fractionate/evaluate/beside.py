"""Measurements with another model beside: drift, both entropies, gradients of the basic arms."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fractionate.config import Drift, Gradients, Resampling, Temperature
from fractionate.distill.arms import ArmSettings, measure_arms
from fractionate.distill.prompts import Prompt
from fractionate.evaluate.session import Measure, Reference, Session, stream_seed
from fractionate.metrics.drift import completion_kl
from fractionate.metrics.teacher_entropy import completion_entropy
from fractionate.metrics.verdicts import count_verdicts, read_answers
from fractionate.models.load import LanguageModel
from fractionate.records import EvalRecord, StopReason
from fractionate.rollouts.decode import Speaker
from fractionate.rollouts.draw import sample
from fractionate.tasks.base import Problem, Task


def needed(teacher: Reference | None, field: str) -> Reference:
    """The teacher, or an error that names the field which asks for it.

    Raises:
        ValueError: There is none.
    """
    if teacher is None:
        raise ValueError(
            f"evaluate.{field} needs the teacher, but none was given. Pass it, or set "
            f"evaluate.{field}: null"
        )
    return teacher


@dataclass(frozen=True)
class _Pair:
    """Two laws to compare on completions of the first."""

    suite: str
    reference: Reference
    sampling_temperature: float
    top_p: float
    reference_temperature: float
    model_temperature: float


def drifts(
    session: Session,
    config: Drift,
    task: Task,
    base: LanguageModel | None,
    teacher: Reference | None,
    temperature: Temperature,
) -> list[Measure]:
    """The distances that the config asks for.

    Raises:
        ValueError: A model that one of them needs was not given.
    """
    pairs = []
    if config.to_base:
        if base is None:
            raise ValueError(
                "evaluate.drift.to_base needs the base model, but none was given. Pass it, or set "
                "evaluate.drift.to_base: false"
            )
        pairs.append(_Pair("kl_to_base", Reference(base), 1.0, 1.0, 1.0, 1.0))
    if config.to_teacher:
        if teacher is None:
            raise ValueError(
                "evaluate.drift.to_teacher needs the teacher, but none was given. Pass it, or set "
                "evaluate.drift.to_teacher: false"
            )
        pairs.append(
            _Pair(
                "kl_to_teacher",
                teacher,
                temperature.teacher_rollout,
                temperature.top_p,
                temperature.teacher_loss,
                temperature.student_loss,
            )
        )
    problems = task.problems("test", config.items)
    return [(pair.suite, lambda pair=pair: _drift(session, pair, problems)) for pair in pairs]


def _drift(session: Session, pair: _Pair, problems: Sequence[Problem]) -> list[EvalRecord]:
    """KL(reference || model) per problem, on one completion of the reference."""
    prompts = session.prompts(pair.reference, problems)
    completions = sample(
        pair.reference.model,
        prompts,
        temperature=pair.sampling_temperature,
        top_p=pair.top_p,
        max_new_tokens=session.lengths.completion,
        seed=stream_seed(session.seed, pair.suite, pair.sampling_temperature),
    ).completions
    values = completion_kl(
        Speaker(pair.reference.model, prompts),
        Speaker(session.subject.model, session.prompts(session.subject, problems)),
        completions,
        reference_temperature=pair.reference_temperature,
        model_temperature=pair.model_temperature,
    )
    return [
        EvalRecord(
            suite=pair.suite,
            item=problem.key,
            temperature=pair.sampling_temperature,
            samples=1,
            correct=0,
            distinct=0,
            unanswered=0,
            truncated=int(completions.stop[i] is StopReason.LENGTH),
            tokens=int(completions.lengths[i]),
            value=values[i],
        )
        for i, problem in enumerate(problems)
    ]


def resamplings(
    session: Session, config: Resampling, task: Task, teacher: Reference
) -> list[Measure]:
    """The same prompts at every temperature: verdict, entropy, and the teacher's entropy there."""
    problems = task.problems("test", config.items)

    def measure(temperature: float) -> list[EvalRecord]:
        prompts = session.prompts(session.subject, problems)
        sampled = sample(
            session.subject.model,
            prompts,
            temperature=temperature,
            max_new_tokens=session.lengths.evaluation,
            seed=stream_seed(session.seed, "resampled", temperature),
            entropy=True,
        )
        entropies = completion_entropy(
            Speaker(teacher.model, session.prompts(teacher, problems)),
            Speaker(session.subject.model, prompts),
            sampled.completions,
        )
        answers = read_answers(session.subject.model, sampled.completions, sampled.entropy)
        rows = zip(problems, answers, entropies, strict=True)
        return [
            replace(
                count_verdicts(task, problem, [answer], suite="resampled", temperature=temperature),
                value=entropy,
            )
            for problem, answer, entropy in rows
        ]

    return [
        (f"resampled at {temperature:g}", lambda temperature=temperature: measure(temperature))
        for temperature in config.temperatures
    ]


def gradients(
    session: Session,
    config: Gradients,
    task: Task,
    teacher: Reference,
    temperature: Temperature,
) -> Measure:
    """Gradients of the four basic arms on prompts of the training split."""
    problems = task.problems("train", config.prompts * config.batches)
    settings = ArmSettings(
        prompts=config.prompts,
        buckets=config.buckets,
        temperature=temperature,
        max_new_tokens=config.max_new_tokens or session.lengths.completion,
        seed=session.seed,
    )

    def measure() -> list[EvalRecord]:
        own = session.prompts(session.subject, problems)
        others = session.prompts(teacher, problems)
        prompts = [
            Prompt(problem, tuple(mine), tuple(yours))
            for problem, mine, yours in zip(problems, own, others, strict=True)
        ]
        return measure_arms(session.subject.model, teacher.model, prompts, settings)

    return "gradients", measure
