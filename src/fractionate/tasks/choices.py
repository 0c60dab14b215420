"""What the multiple-choice tasks share: how options are shown, read and judged."""

import string
from collections.abc import Sequence

from fractionate.tasks.base import Grade, Problem
from fractionate.tasks.collection import content_key, folded
from fractionate.tasks.multiple_choice import extract_choice

USER_PROMPT = (
    "Answer the question below by choosing the one right option out of {count}. Write your "
    "reasoning inside <think> </think> tags. Then write the letter of the option, {letters}, "
    "inside <answer> </answer> tags: the letter only, without the text of the option.\n"
    "Example of the form: <think>your reasoning</think><answer>B</answer>\n\n"
    "Question: {question}\n"
    "{options}"
)
"""The user turn; the substance is that of arXiv 2609.35259, the wording is ours."""

_NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def choice_problem(
    question: str, options: Sequence[str], gold: str, *, system: str, demonstration: str | None
) -> Problem:
    """A question with lettered options.

    Its key is what it says: the question and the options in any order, without case and white
    space, so that a question asked again with its options shuffled is a repeat.

    Args:
        question: The question.
        options: Texts of the options, 2 to 26.
        gold: Letter of the right one.
        system: The system turn.
        demonstration: The completion of a demonstration.
    """
    letters = string.ascii_uppercase[: len(options)]
    named = f"{', '.join(letters[:-1])} or {letters[-1]}"
    count = _NUMBERS[len(options) - 2] if len(options) - 2 < len(_NUMBERS) else str(len(options))
    user = USER_PROMPT.format(
        count=count,
        letters=named,
        question=question.strip(),
        options="\n".join(f"{a}. {b.strip()}" for a, b in zip(letters, options, strict=True)),
    )
    return Problem(
        key=content_key(folded(question), sorted(map(folded, options))),
        messages=(
            {"role": "system", "content": system},
            {"role": "user", "content": user},
        ),
        reference={"answer": gold, "options": len(options), "completion": demonstration},
    )


def grade_choice(problem: Problem, completion: str) -> Grade:
    """Judge the letter of a completion, strictly; never raises on text.

    An answer that only the lenient reading finds ("B. text") counts as wrong and unanswered; its
    reason says what the lenient reading would have said: "lenient_ok" or "lenient_wrong".
    """
    gold, n_options = problem.reference["answer"], problem.reference["options"]
    strict = extract_choice(completion, n_options)
    if strict is not None:
        correct = strict == gold
        reason = "ok" if correct else "wrong"
        return Grade(correct, reason, answered=True, solution=gold if correct else None)
    lenient = extract_choice(completion, n_options, lenient=True)
    if lenient is None:
        return Grade(correct=False, reason="no_answer", answered=False)
    reason = "lenient_ok" if lenient == gold else "lenient_wrong"
    return Grade(correct=False, reason=reason, answered=False)


def demonstration_of(reasoning: str, answer: str) -> str:
    """A completion in the form that the prompts ask for."""
    return f"<think>\n{reasoning.strip()}\n</think>\n<answer>{answer}</answer>"


def reasoning_of(value: object) -> str | None:
    """A worked solution that can stand between think tags, or None."""
    if not isinstance(value, str) or not value.strip():
        return None
    tags = ("<think>", "</think>", "<answer>", "</answer>")
    return None if any(tag in value for tag in tags) else value
