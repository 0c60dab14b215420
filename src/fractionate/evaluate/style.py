"""Whose style a model's responses have: the teacher's, under its own prompt."""

from collections.abc import Sequence

from fractionate.config import Style
from fractionate.evaluate.session import Measure, Session, stream_seed
from fractionate.metrics.style import STYLES
from fractionate.metrics.verdicts import read_answers
from fractionate.records import EvalRecord
from fractionate.rollouts.draw import sample
from fractionate.tasks.base import Problem, Task


def styles(session: Session, config: Style, task: Task) -> list[Measure]:
    """One response to each of some test problems; `correct` counts those in the style."""
    problems = task.problems("test", config.items)
    return [("style", lambda: _measure(session, config, problems))]


def _measure(session: Session, config: Style, problems: Sequence[Problem]) -> list[EvalRecord]:
    model = session.subject.model
    completions = sample(
        model,
        session.prompts(session.subject, problems),
        temperature=config.temperature,
        max_new_tokens=session.lengths.evaluation,
        seed=stream_seed(session.seed, "style", config.temperature),
    ).completions
    found = [STYLES[config.kind](answer.text) for answer in read_answers(model, completions)]
    lengths = completions.lengths.tolist()
    return [
        EvalRecord(
            suite="style",
            item=problem.key,
            temperature=config.temperature,
            samples=1,
            correct=int(has_it is True),
            distinct=0,
            unanswered=int(has_it is None),
            truncated=0,
            tokens=length,
        )
        for problem, has_it, length in zip(problems, found, lengths, strict=True)
    ]
