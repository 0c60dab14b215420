"""Measurements of what the model writes: accuracy, coverage, the harder task, prior skills."""

from collections.abc import Sequence
from dataclasses import dataclass

from fractionate.config import Accuracy, Coverage, Evaluate, Harder, Harness, Lengths
from fractionate.evaluate.session import Measure, Session, Suite, stream_seed
from fractionate.metrics.forgetting import SKILL_PREFIX
from fractionate.metrics.verdicts import count_verdicts, read_answers
from fractionate.models.load import LanguageModel
from fractionate.records import EvalRecord
from fractionate.rollouts.draw import sample
from fractionate.tasks.base import Problem, Task


@dataclass(frozen=True)
class _Condition:
    """One set of samples: a task at a temperature."""

    suite: str
    task: Task
    problems: Sequence[Problem]
    samples: int
    temperature: float
    max_new_tokens: int


def answers(session: Session, config: Evaluate, suite: Suite) -> list[Measure]:
    """One measurement per suite and temperature.

    Raises:
        ValueError: The config asks for a task that the suite does not have, or for too many items.
    """
    return [
        (condition.suite, lambda condition=condition: _measure(session, condition))
        for condition in _conditions(config, suite, session.lengths)
    ]


def forgetting(session: Session, config: Evaluate, suite: Suite) -> list[Measure]:
    """Prior skills of the sandbox, or benchmarks for real models.

    Raises:
        ValueError: The suite does not have what the config asks for.
    """
    if config.forgetting == "skills":
        asked = _asked(suite.skills, config.skill_items)
        return [("skills", lambda: _skills(session, asked))]
    if not isinstance(config.forgetting, Harness):
        return []
    benchmarks = suite.benchmarks
    if benchmarks is None:
        raise ValueError(
            "evaluate.forgetting asks for benchmarks, but the suite has none. Load them with "
            "metrics.harness.load_benchmarks, or set evaluate.forgetting: null"
        )
    return [
        (
            "benchmarks",
            lambda: benchmarks.measure(
                session.subject.model,
                seed=session.seed,
                chat_template_kwargs=session.chat_template_kwargs,
            ),
        )
    ]


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


def _measure(session: Session, condition: _Condition) -> list[EvalRecord]:
    """Sample a condition and count its verdicts, one record per problem."""
    prompts = session.prompts(session.subject, condition.problems)
    sampled = sample(
        session.subject.model,
        prompts,
        samples=condition.samples,
        temperature=condition.temperature,
        max_new_tokens=condition.max_new_tokens,
        seed=stream_seed(session.seed, condition.suite, condition.temperature),
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


def _skills(session: Session, asked: Sequence[tuple[Task, Problem]]) -> list[EvalRecord]:
    """All prior skills in one greedy batch."""
    sampled = sample(
        session.subject.model,
        session.prompts(session.subject, [problem for _, problem in asked]),
        temperature=0.0,
        max_new_tokens=min(
            _longest_answer(session.subject.model, asked), session.lengths.evaluation
        ),
        seed=stream_seed(session.seed, "skills", 0.0),
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
