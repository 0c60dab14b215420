"""MedReason: medical multiple choice with reasoning (arXiv 2504.00993).

Public columns: dataset_name, id_in_dataset, question, answer, reasoning, options. The options are
one text in several encodings, and the answer is a text, so the gold letter is the option that the
answer matches. Where it matches none or several the row is left out and counted: a letter is never
guessed.
"""

import ast
import json
import re
import string
from collections.abc import Mapping
from typing import Any

from fractionate.config.task import MedReasonTask
from fractionate.tasks.base import Problem
from fractionate.tasks.choices import choice_problem, demonstration_of, grade_choice, reasoning_of
from fractionate.tasks.collection import Collection, Layout, Where, folded

SYSTEM_PROMPT = (
    "You are a careful assistant for medical reasoning. You think through the facts of a case "
    "before you answer."
)
"""The system turn; the substance is the study's, the wording is ours."""

_EXPLANATION = re.compile(r"\.?\s*Explanation:", re.IGNORECASE)
_LETTERED = re.compile(r"(?:^|\s)\(?([A-Z])(?:[.:]|\))(?=\s)")
_LETTERED_LINE = re.compile(r"^\s*\(?([A-Z])(?:[.:]|\))(?=\s)", re.MULTILINE)
_HEADING = re.compile(r"^\s*(?:answer\s+)?(?:choices|options)\s*:\s*", re.IGNORECASE)


def medreason_task(config: MedReasonTask) -> Collection:
    """The questions with options whose answer is exactly one of them.

    Raises:
        TableError: The data cannot be used; names the field of the task and the mend.
    """
    layout = Layout(
        name="medreason",
        read=lambda where: _problem(config, where),
        grade=grade_choice,
        duplicates="drop",
        no_demonstrations=(
            "task.reasoning names no column, so there are no demonstrations. Name the column that "
            "holds the reasoning"
        ),
    )
    return Collection(config, layout)


def _problem(config: MedReasonTask, where: Where) -> Problem | str:
    question, answer = where.value("question"), where.value("answer")
    options = parse_options(where.value("options"))
    if options is None or not isinstance(question, str) or not question.strip():
        return "no_options"
    if len({folded(option) for option in options}) != len(options):
        return "options_repeat"
    matches = matching_options(str(answer or ""), options)
    if len(matches) != 1:
        return "several_matches" if matches else "no_match"
    reasoning = None
    if config.reasoning is not None:
        reasoning = reasoning_of(where.value(config.reasoning, field="task.reasoning"))
        if reasoning is None:
            return "no_reasoning"
    gold = matches[0]
    shown = None if reasoning is None else demonstration_of(reasoning, gold)
    return choice_problem(question, options, gold, system=SYSTEM_PROMPT, demonstration=shown)


def matching_options(answer: str, options: list[str]) -> list[str]:
    """The letters of the options that an answer text is equal to.

    What comes before "Explanation:" counts, without case, white space and a full stop at the end;
    a letter in front of the text ("B. text") is dropped where the options are texts.

    Args:
        answer: Text of the answer.
        options: Texts of the options.
    """
    stated = _EXPLANATION.split(answer, maxsplit=1)[0]
    wanted = {_bare(stated), _bare(re.sub(r"^\s*\(?[A-Z][.):]\s+", "", stated))} - {""}
    letters = zip(string.ascii_uppercase, options, strict=False)
    return [letter for letter, option in letters if _bare(option) in wanted]


def _bare(text: str) -> str:
    return folded(text).rstrip(". ")


def parse_options(given: Any) -> list[str] | None:
    """Two to 26 option texts in the order of their letters, or None.

    Understood are a list, a mapping of letters, either of them as JSON or as Python writes it, and
    lettered options in a text, on lines of their own or in one line.
    """
    value = _decoded(given) if isinstance(given, str) else given
    if isinstance(value, Mapping):
        letters = string.ascii_uppercase[: len(value)]
        value = [value.get(letter) for letter in letters]
    if not isinstance(value, list) or not 2 <= len(value) <= len(string.ascii_uppercase):
        return None
    texts = [option.strip() if isinstance(option, str) else "" for option in value]
    return texts if all(texts) else None


def _decoded(text: str) -> Any:
    if text.lstrip()[:1] in ("[", "{"):
        for read in (json.loads, ast.literal_eval):
            try:
                return read(text)
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
        return None
    return _lettered(_HEADING.sub("", text))


def _lettered(text: str) -> list[str] | None:
    """The texts behind `A.`, `B.`, ... in this order and without a gap; or None.

    Letters that begin a line count before letters anywhere.
    """
    for pattern in (_LETTERED_LINE, _LETTERED):
        starts: list[re.Match[str]] = []
        for match in pattern.finditer(text):
            if match[1] == string.ascii_uppercase[len(starts) : len(starts) + 1]:
                starts.append(match)
        if len(starts) >= 2 and not text[: starts[0].start()].strip():
            ends = [match.start() for match in starts[1:]] + [len(text)]
            pairs = zip(starts, ends, strict=True)
            return [text[match.end() : end].strip() for match, end in pairs]
    return None
