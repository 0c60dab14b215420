"""Evaluation: a model, a suite of tasks and the measurements of the study, to one record per item.

Every condition (a suite at a temperature) draws from its own random stream, which depends on the
evaluation seed only. Arms evaluated with one seed thus share their random numbers, so that the
differences between them are paired by item.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fractionate.config import Accuracy, Coverage, Drift, Evaluate, Harder, Lengths, Temperature
from fractionate.metrics.drift import completion_kl
from fractionate.metrics.forgetting import SKILL_PREFIX
from fractionate.metrics.verdicts import count_verdicts, read_answers
from fractionate.models.load import LanguageModel
from fractionate.models.prompts import check_length, render
from fractionate.records import EvalRecord, StopReason
from fractionate.rng import derive_seed
from fractionate.rollouts.decode import Speaker
from fractionate.rollouts.draw import sample
from fractionate.tasks.base import Problem, Task

Messages = Sequence[Mapping[str, str]]
Report = Callable[[dict[str, Any]], None]


def _own_messages(problem: Problem) -> Messages:
    return problem.messages


@dataclass(frozen=True)
class Suite:
    """What a model is evaluated on.

    Attributes:
        task: The task of the study; its test split is measured.
        harder: The harder task, where the study has one.
        skills: Prior skills, one task each.
        chat_template_kwargs: Passed to the chat template.
    """

    task: Task
    harder: Task | None = None
    skills: Sequence[Task] = ()
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reference:
    """A model that others are compared with, and what it sees of a problem.

    Attributes:
        model: The model.
        messages_of: Its prompt for a problem; a teacher may see more than the student does.
    """

    model: LanguageModel
    messages_of: Callable[[Problem], Messages] = _own_messages


@dataclass(frozen=True)
class _Condition:
    """One set of samples: a task at a temperature."""

    suite: str
    task: Task
    problems: Sequence[Problem]
    samples: int
    temperature: float
    max_new_tokens: int


@dataclass(frozen=True)
class _Session:
    """What all conditions of one evaluation share."""

    subject: Reference
    lengths: Lengths
    seed: int
    chat_template_kwargs: Mapping[str, Any]

    def prompts(self, reference: Reference, problems: Sequence[Problem]) -> list[list[int]]:
        """Token ids of the prompts, none over the limit."""
        ids = [
            render(
                reference.model.tokenizer,
                reference.messages_of(problem),
                self.chat_template_kwargs,
            )
            for problem in problems
        ]
        for problem, prompt in zip(problems, ids, strict=True):
            check_length(prompt, self.lengths.prompt, field="lengths.prompt", key=problem.key)
        return ids


def evaluate(  # noqa: PLR0913 - one argument per thing that is compared or held fixed
    model: LanguageModel | Reference,
    *,
    config: Evaluate,
    suite: Suite,
    lengths: Lengths,
    base: LanguageModel | None = None,
    teacher: Reference | None = None,
    temperature: Temperature,
    seed: int,
    report: Report | None = None,
) -> list[EvalRecord]:
    """Take every measurement that needs the model to write or to score.

    Conditions stay separate: accuracy is sampled anew even where coverage has its temperature.
    Prior skills are decoded greedily, all in one batch, each completion up to twice the longest
    right answer, beyond which it cannot become right.

    Args:
        model: The model measured; a `Reference` where it sees more of a problem than the prompt.
        config: Which measurements; those that are none are left out.
        suite: The tasks.
        lengths: Limits of prompts and completions, in tokens.
        base: The untrained student, for the drift from it.
        teacher: The teacher in its own context, for the distance to it.
        temperature: The method's temperatures, for the distance to the teacher.
        seed: The evaluation seed, shared by all arms of a study.
        report: Called before each measurement with {"measure": name, "done": i, "of": n}.

    Returns:
        One record per item and condition, in a fixed order.

    Raises:
        ValueError: The config asks for something that `suite`, `base` or `teacher` does not have,
            for more items than there are, or a prompt exceeds `lengths.prompt`.
    """
    subject = model if isinstance(model, Reference) else Reference(model)
    session = _Session(subject, lengths, seed, suite.chat_template_kwargs)
    measures: list[tuple[str, Callable[[], list[EvalRecord]]]] = [
        (condition.suite, lambda condition=condition: _measure(session, condition))
        for condition in _conditions(config, suite, lengths)
    ]
    if config.forgetting == "skills":
        asked = _asked(suite.skills, config.skill_items)
        measures.append(("skills", lambda: _skills(session, asked)))
    if config.drift is not None:
        measures += _drifts(session, config.drift, suite.task, base, teacher, temperature)
    records: list[EvalRecord] = []
    for done, (name, measure) in enumerate(measures):
        if report is not None:
            report({"measure": name, "done": done, "of": len(measures)})
        records += measure()
    return records


def _conditions(config: Evaluate, suite: Suite, lengths: Lengths) -> list[_Condition]:
    conditions = []
    if config.accuracy is not None:
        conditions.append(_accuracy(config.accuracy, suite.task, lengths))
    if config.coverage is not None:
        conditions += _coverage(config.coverage, suite.task, lengths)
    if config.harder is not None:
        if suite.harder is None:
            raise ValueError(
                "evaluate.harder asks for the harder task, but the suite has none. Build it, or "
                "set evaluate.harder: null"
            )
        conditions.append(_harder(config.harder, suite.harder, lengths))
    return conditions


def _accuracy(config: Accuracy, task: Task, lengths: Lengths) -> _Condition:
    problems = task.problems("test", config.items)
    return _Condition("accuracy", task, problems, 1, config.temperature, lengths.evaluation)


def _coverage(config: Coverage, task: Task, lengths: Lengths) -> list[_Condition]:
    problems = task.problems("test", config.items)
    return [
        _Condition("coverage", task, problems, config.samples, temperature, lengths.evaluation)
        for temperature in config.temperatures
    ]


def _harder(config: Harder, task: Task, lengths: Lengths) -> _Condition:
    problems = task.problems("test", config.items)
    return _Condition("harder", task, problems, config.samples, config.temperature, lengths.harder)


# ---------------------------------------------------------------- sampling and grading


def _measure(session: _Session, condition: _Condition) -> list[EvalRecord]:
    """Sample a condition and count its verdicts, one record per problem."""
    prompts = session.prompts(session.subject, condition.problems)
    sampled = sample(
        session.subject.model,
        prompts,
        samples=condition.samples,
        temperature=condition.temperature,
        max_new_tokens=condition.max_new_tokens,
        seed=_stream(session.seed, condition.suite, condition.temperature),
        entropy=True,
    )
    answers = read_answers(session.subject.model, sampled.completions, sampled.entropy)
    return [
        count_verdicts(
            condition.task,
            problem,
            answers[i * condition.samples : (i + 1) * condition.samples],
            suite=condition.suite,
            temperature=condition.temperature,
        )
        for i, problem in enumerate(condition.problems)
    ]


def _asked(skills: Sequence[Task], items: int) -> list[tuple[Task, Problem]]:
    """The first problems of every skill; a skill with fewer than `items` gives all it has."""
    if not skills:
        raise ValueError(
            "evaluate.forgetting 'skills' asks for prior skills, but the suite has none. Build "
            "them, or set evaluate.forgetting: null"
        )
    return [(skill, problem) for skill in skills for problem in skill.problems("test")[:items]]


def _skills(session: _Session, asked: Sequence[tuple[Task, Problem]]) -> list[EvalRecord]:
    """All prior skills in one greedy batch."""
    sampled = sample(
        session.subject.model,
        session.prompts(session.subject, [problem for _, problem in asked]),
        temperature=0.0,
        max_new_tokens=min(
            _longest_answer(session.subject.model, asked), session.lengths.evaluation
        ),
        seed=_stream(session.seed, "skills", 0.0),
    )
    answers = read_answers(session.subject.model, sampled.completions)
    return [
        count_verdicts(skill, problem, [answer], suite=SKILL_PREFIX + skill.name, temperature=0.0)
        for (skill, problem), answer in zip(asked, answers, strict=True)
    ]


def _longest_answer(model: LanguageModel, asked: Sequence[tuple[Task, Problem]]) -> int:
    """Twice the tokens of the longest right answer, and a stop token."""
    answers = [skill.demonstration(problem, seed=0) for skill, problem in asked]
    encoded = model.tokenizer(answers, add_special_tokens=False)["input_ids"]
    return 2 * max(map(len, encoded)) + 1


def _stream(seed: int, suite: str, temperature: float) -> int:
    return derive_seed(seed, "evaluation", suite, f"{temperature:g}")


# ---------------------------------------------------------------- drift


@dataclass(frozen=True)
class _Pair:
    """Two laws to compare on completions of the first."""

    suite: str
    reference: Reference
    sampling_temperature: float
    top_p: float
    reference_temperature: float
    model_temperature: float


def _drifts(
    session: _Session,
    config: Drift,
    task: Task,
    base: LanguageModel | None,
    teacher: Reference | None,
    temperature: Temperature,
) -> list[tuple[str, Callable[[], list[EvalRecord]]]]:
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


def _drift(session: _Session, pair: _Pair, problems: Sequence[Problem]) -> list[EvalRecord]:
    """KL(reference || model) per problem, on one completion of the reference."""
    prompts = session.prompts(pair.reference, problems)
    completions = sample(
        pair.reference.model,
        prompts,
        temperature=pair.sampling_temperature,
        top_p=pair.top_p,
        max_new_tokens=session.lengths.completion,
        seed=_stream(session.seed, pair.suite, pair.sampling_temperature),
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
