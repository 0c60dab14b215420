"""Data of your own as a task: one problem a row, with or without a gold answer."""

import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

from fractionate.config.task import TableTask, template_columns
from fractionate.tasks import grading
from fractionate.tasks.base import Problem
from fractionate.tasks.collection import Collection, Layout, Where, content_key
from fractionate.tasks.math_answers import check_installed

_Messages = Sequence[Mapping[str, str]]


def table_task(config: TableTask) -> Collection:
    """Problems from a file, a folder or a dataset on the hub, by the columns that `config` names.

    How answers are found and compared: `fractionate.tasks.grading`.

    Raises:
        TableError: The data or a row cannot be used; names the field of the task, the row, and the
            mend.
    """
    if config.grade == "math":
        check_installed("task.grade 'math'")
    first = next(iter(config.inputs.values()))
    name = first.path.stem if first.path is not None else str(first.hub).rpartition("/")[2]
    layout = Layout(
        name=name,
        read=lambda where: _problem(config, where),
        grade=lambda problem, completion: grading.grade(
            config.grade, completion, str(problem.reference["answer"])
        ),
        duplicates=config.duplicates,
        no_demonstrations=_no_demonstrations(config),
    )
    return Collection(config, layout)


def _no_demonstrations(config: TableTask) -> str:
    if config.completion is None and config.messages is not None:
        return (
            f"task.messages: the chat in '{config.messages}' does not end with an assistant turn, "
            "so there is no demonstration. Add the turn, or name a column in task.completion"
        )
    return (
        "task.completion names no column, so the table has no demonstrations. Name the column that "
        "holds them"
    )


# ---------------------------------------------------------------- one row


def _problem(config: TableTask, where: Where) -> Problem:
    prompt, last = _prompt(config, where)
    if config.completion is not None:
        if last is not None:
            raise where.fault(
                str(config.messages),
                "ends with an assistant turn, which is the demonstration; remove task.completion, "
                "or drop the turn",
                field="task.messages",
            )
        last = _completion(config.completion, where)
    system = [{"role": "system", "content": config.system}] if config.system else []
    reference = {"answer": _answer(config, where), "completion": last}
    if config.key is not None:
        key = _scalar(config.key, where, "task.key")
    else:  # a system turn of the study is no identity
        key = content_key([dict(turn) for turn in prompt])
    return Problem(key, (*system, *prompt), reference)


def _prompt(config: TableTask, where: Where) -> tuple[_Messages, str | None]:
    """The prompt without the study's system turn, and the demonstration that follows it."""
    if config.template is not None:
        return [_user(_filled(config.template, where))], None
    if config.prompt is not None:
        value = where.value(config.prompt, field="task.prompt")
        if isinstance(value, list):
            return _chat(config, value, config.prompt, where, "task.prompt")
        return [_user(_text(config.prompt, where, "task.prompt"))], None
    column = str(config.messages)
    value = where.value(column, field="task.messages")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            fault = f"is not valid JSON ({error})"
            raise where.fault(column, fault, field="task.messages") from error
    return _chat(config, value, column, where, "task.messages")


def _chat(
    config: TableTask, turns: Any, column: str, where: Where, field: str
) -> tuple[_Messages, str | None]:
    if config.system:
        raise where.fault(
            column,
            "is a chat, which brings its own system turn; put it there, and remove task.system",
            field="task.system",
        )
    if not isinstance(turns, list) or not turns or not all(map(_is_message, turns)):
        shape = 'is not a list of {"role": ..., "content": ...} with text in both'
        raise where.fault(column, shape, field=field)
    plain = [{"role": turn["role"], "content": turn["content"]} for turn in turns]
    if plain[-1]["role"] != "assistant":
        return plain, None
    if len(plain) == 1 or field == "task.prompt":
        shape = "ends with an assistant turn, which is the answer and not the prompt; drop it"
        raise where.fault(column, shape, field=field)
    return plain[:-1], plain[-1]["content"]


def _is_message(turn: object) -> bool:
    return isinstance(turn, Mapping) and all(
        isinstance(turn.get(field), str) and turn[field] for field in ("role", "content")
    )


def _user(content: str) -> Mapping[str, str]:
    return {"role": "user", "content": content}


def _filled(template: str, where: Where) -> str:
    values = {
        name: _scalar(name, where, "task.template", empty=True)
        for name in template_columns(template)
    }
    parts = string.Formatter().parse(template)
    return "".join(text + (values[name] if name is not None else "") for text, name, _, _ in parts)


def _completion(column: str, where: Where) -> str:
    """A demonstration: a text, or a chat of one assistant turn."""
    value = where.value(column, field="task.completion")
    if isinstance(value, list):
        if len(value) == 1 and _is_message(value[0]) and value[0]["role"] == "assistant":
            return str(value[0]["content"])
        shape = 'is not one message {"role": "assistant", "content": ...}'
        raise where.fault(column, shape, field="task.completion")
    return _text(column, where, "task.completion")


def _answer(config: TableTask, where: Where) -> str:
    if config.grade == "none":
        return ""
    column = str(config.answer)
    gold = _scalar(column, where, "task.answer")
    fault = grading.gold_fault(config.grade, gold)
    if fault:
        mend = "correct the row, or choose another task.grade"
        fault = f"{fault} to grade by '{config.grade}'; {mend}"
        raise where.fault(column, fault, field="task.answer")
    return gold


def _text(column: str, where: Where, field: str) -> str:
    value = where.value(column, field=field)
    if not isinstance(value, str) or not value.strip():
        raise where.fault(column, "is not a text", field=field)
    return value


def _scalar(column: str, where: Where, field: str, *, empty: bool = False) -> str:
    value = where.value(column, field=field)
    wrong = isinstance(value, bool) or not isinstance(value, str | int | float)
    if wrong or (value == "" and not empty):
        raise where.fault(column, "is neither text nor a number", field=field)
    return str(value)
