r"""Competition mathematics: problems whose solution ends in a \boxed{} answer.

Public columns: problem and solution (NuminaMath-CoT, MATH), and answer where there is one
(MATH-500). Recipe of arXiv 2609.35259 for its long traces: the problem as user turn, one system
sentence, no demonstration in the prompt.
"""

from fractionate.config.task import MathTask
from fractionate.tasks.answers import last_boxed
from fractionate.tasks.base import Problem
from fractionate.tasks.collection import Collection, Layout, Where, content_key, folded
from fractionate.tasks.math_answers import check_installed, gold_fault, grade_math

SYSTEM_PROMPT = "Reason step by step, and put the final answer of the problem in \\boxed{}."
"""The system turn; the substance is the study's, the wording is ours."""


def math_task(config: MathTask) -> Collection:
    """Problems with a readable final answer, those of the test never trained on.

    Two problems are one if their texts are, without case and white space.

    Raises:
        TableError: The data cannot be used; names the field of the task and the mend.
    """
    check_installed("task.kind 'math'")
    layout = Layout(
        name="math",
        read=_problem,
        grade=lambda problem, completion: grade_math(
            completion, str(problem.reference["answer"]), seconds=config.seconds
        ),
        duplicates="drop",
        no_demonstrations="task.source: the problem has no solution with a boxed answer",
    )
    return Collection(config, layout)


def _problem(where: Where) -> Problem | str:
    problem = where.value("problem")
    if not isinstance(problem, str) or not problem.strip():
        return "no_problem"
    there, solution = where.row.find("solution")
    boxed = last_boxed(solution) if there and isinstance(solution, str) else None
    there, answer = where.row.find("answer")
    gold = str(answer) if there and answer is not None else boxed
    if gold is None:
        return "no_boxed_answer"
    if gold_fault(gold) is not None:
        return "unreadable_answer"
    return Problem(
        key=content_key(folded(problem)),
        messages=(
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": problem.strip()},
        ),
        reference={"answer": gold, "completion": None if boxed is None else str(solution).strip()},
    )
