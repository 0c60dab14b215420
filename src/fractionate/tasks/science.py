"""Science: four options, from SciKnowEval (arXiv 2406.09098), by default Chemistry at level L3.

Public columns: question, choices {text, label}, answerKey, type, domain, details {level, ...}.
"""

from typing import Any

from fractionate.config.task import ScienceTask
from fractionate.tasks.base import Problem
from fractionate.tasks.choices import choice_problem, demonstration_of, grade_choice, reasoning_of
from fractionate.tasks.collection import Collection, Layout, Where

SYSTEM_PROMPT = (
    "You are a careful solver of multiple-choice questions in the sciences. You think before you "
    "answer."
)
"""The system turn; the substance is the study's, the wording is ours."""

_TYPE = "mcq-4-choices"
_LETTERS = ("A", "B", "C", "D")


def science_task(config: ScienceTask) -> Collection:
    """The questions with four options of one domain and level.

    Rows that are no such question are left out and counted: another type, domain or level, options
    that repeat, a key that names none of them.

    Raises:
        TableError: The data cannot be used; names the field of the task and the mend.
    """
    layout = Layout(
        name="science",
        read=lambda where: _problem(config, where),
        grade=grade_choice,
        duplicates="drop",
        no_demonstrations=(
            "task.reasoning names no column, so the science task has no demonstrations. Name the "
            "column that holds worked solutions"
        ),
    )
    return Collection(config, layout)


def _problem(config: ScienceTask, where: Where) -> Problem | str:
    wanted = {"type": _TYPE, "domain": config.domain, "details.level": config.level}
    for column, value in wanted.items():
        if where.value(column) != value:
            return f"other_{column.rpartition('.')[2]}"
    question, gold = where.value("question"), str(where.value("answerKey")).strip()
    options = _options(where.value("choices"))
    if options is None or not isinstance(question, str) or not question.strip():
        return "no_options"
    if gold not in _LETTERS:
        return "no_key"
    reasoning = None
    if config.reasoning is not None:
        reasoning = reasoning_of(where.value(config.reasoning, field="task.reasoning"))
        if reasoning is None:
            return "no_reasoning"
    shown = None if reasoning is None else demonstration_of(reasoning, gold)
    return choice_problem(question, options, gold, system=SYSTEM_PROMPT, demonstration=shown)


def _options(choices: Any) -> list[str] | None:
    """The four texts in the order of their letters, or None."""
    texts, labels = choices["text"], choices["label"]
    if tuple(labels) != _LETTERS or len(texts) != len(_LETTERS):
        return None
    options = [str(text).strip() for text in texts]
    return options if all(options) and len(set(options)) == len(options) else None
