"""GSM8K: word problems whose answer is one number.

Public columns: question, and answer, whose last line is "#### " and the number. The worked answer
before it is the demonstration, without the calculator's notes in double angle brackets.
"""

import re

from fractionate.config.task import Gsm8kTask
from fractionate.tasks import grading
from fractionate.tasks.base import Problem
from fractionate.tasks.choices import demonstration_of, reasoning_of
from fractionate.tasks.collection import Collection, Layout, Where, content_key, folded

SYSTEM_PROMPT = "You are a careful solver of word problems. You check every calculation."
"""The system turn."""

USER_PROMPT = (
    "Solve the problem below. Write your working inside <think> </think> tags. Then write the "
    "answer inside <answer> </answer> tags: one number and nothing else.\n"
    "Example of the form: <think>your working</think><answer>12</answer>\n\n"
    "Problem: {question}"
)
"""The user turn, in the form of the other tasks."""

_NOTE = re.compile(r"<<[^<>]*>>")


def gsm8k_task(config: Gsm8kTask) -> Collection:
    """The problems whose answer holds one number after the mark.

    Raises:
        TableError: The data cannot be used; names the field of the task and the mend.
    """
    layout = Layout(
        name="gsm8k",
        read=_problem,
        grade=lambda problem, completion: grading.grade(
            "number", completion, str(problem.reference["answer"])
        ),
        duplicates="drop",
        no_demonstrations="task.source: the answer of the problem has no working",
    )
    return Collection(config, layout)


def _problem(where: Where) -> Problem | str:
    question, answer = where.value("question"), where.value("answer")
    if not isinstance(question, str) or not question.strip():
        return "no_question"
    working, mark, gold = str(answer or "").rpartition("####")
    if not mark or grading.gold_fault("number", gold) is not None:
        return "no_number"
    reasoning = reasoning_of(_NOTE.sub("", working))
    return Problem(
        key=content_key(folded(question)),
        messages=(
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": USER_PROMPT.format(question=question.strip())},
        ),
        reference={
            "answer": gold.strip(),
            "completion": None if reasoning is None else demonstration_of(reasoning, gold.strip()),
        },
    )
