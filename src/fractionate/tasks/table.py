"""A file of your own as a task: one problem a row, with or without a gold answer."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import final

from fractionate.config import TableTask
from fractionate.rng import derive_seed
from fractionate.tasks import grading
from fractionate.tasks.base import Grade, Problem, Split
from fractionate.tasks.table_files import Row, TableError, read_rows


@final
class Table:
    """Problems from a JSONL, CSV or Parquet file.

    The split of a row is decided by a seeded hash of its key, so neither the order of the file nor
    rows added later for training move a row between the reported split and the others, except at
    their edge. How answers are found and compared: `fractionate.tasks.grading`.

    Attributes:
        name: The file's name without its ending.

    Raises:
        TableError: The file or a row cannot be used; names the field of the task, the row, and the
            mend.
    """

    def __init__(self, config: TableTask) -> None:
        self.name = config.path.stem
        self._config = config
        rows = read_rows(config.path)
        _check_columns(config, rows)
        problems = _unique([(row, _problem(config, row)) for row in rows])
        _check_size(config, len(problems))
        problems.sort(key=lambda problem: derive_seed(config.split_seed, "table", problem.key))
        held_out = config.test + config.selection
        self._splits: Mapping[Split, Sequence[Problem]] = {
            "test": problems[: config.test],
            "selection": problems[config.test : held_out],
            "train": problems[held_out:],
        }

    def problems(self, split: Split, n: int | None = None) -> Sequence[Problem]:
        """The first `n` problems of a split in its fixed order; None: all of them.

        Raises:
            ValueError: The split holds fewer than `n` problems.
        """
        items = self._splits[split]
        if n is not None and not 0 <= n <= len(items):
            mend = "add rows" if split == "train" else f"change task.{split}"
            raise ValueError(f"{self.name}: {split} holds {len(items)} problems, not {n}: {mend}")
        return items[:n]

    def grade(self, problem: Problem, completion: str) -> Grade:
        """Judge the text of a completion by the task's rule; never raises on text."""
        return grading.grade(self._config.grade, completion, problem.reference["answer"])

    def demonstration(self, problem: Problem, *, seed: int) -> str:  # noqa: ARG002 - the file has one
        """The completion of the row.

        Raises:
            TableError: The task names no column with completions.
        """
        if self._config.completion is None:
            raise TableError(
                "task.completion names no column, so the table has no demonstrations. "
                "Name the column that holds them"
            )
        return str(problem.reference["completion"])


def _check_columns(config: TableTask, rows: Sequence[Row]) -> None:
    fields = ("prompt", "messages", "completion", "answer", "key")
    named = {field: getattr(config, field) for field in fields if getattr(config, field)}
    for row in rows:
        for field, column in named.items():
            if column not in row.values:
                there = ", ".join(sorted(row.values)) or "none"
                raise TableError(
                    f"task.{field}: {config.path}, {row.place} has no column '{column}'. "
                    f"Columns there: {there}"
                )


def _check_size(config: TableTask, rows: int) -> None:
    needed = config.test + config.selection + 1
    if rows < needed:
        raise TableError(
            f"task.path: {config.path} holds {rows} rows, but task.test {config.test} and "
            f"task.selection {config.selection} leave none to train on below {needed}. Lower "
            "task.test or task.selection, or add rows"
        )


def _problem(config: TableTask, row: Row) -> Problem:
    messages = _messages(config, row)
    reference = {
        "answer": _answer(config, row),
        "completion": _text(config, row, "completion") if config.completion else None,
    }
    if config.key is not None:
        return Problem(_scalar(config, row, "key"), messages, reference)
    own = messages[1:] if config.system else messages  # a system turn of the study is no identity
    spelled = json.dumps([dict(message) for message in own], sort_keys=True)
    return Problem(hashlib.sha256(spelled.encode()).hexdigest()[:16], messages, reference)


def _messages(config: TableTask, row: Row) -> tuple[Mapping[str, str], ...]:
    if config.messages is None:
        system = [{"role": "system", "content": config.system}] if config.system else []
        return (*system, {"role": "user", "content": _text(config, row, "prompt")})
    if config.system:
        raise TableError(
            "task.system stands before task.prompt; with task.messages put the system turn into "
            "the messages, and remove task.system"
        )
    given = row.values[config.messages]
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except json.JSONDecodeError as error:
            raise _fault(config, row, "messages", f"is not valid JSON ({error})") from error
    if not isinstance(given, list) or not given or not all(map(_is_message, given)):
        shape = 'is not a list of {"role": ..., "content": ...} with text in both'
        raise _fault(config, row, "messages", shape)
    if given[-1]["role"] == "assistant":
        shape = "ends with an assistant turn, which is the answer and not the prompt; drop it"
        raise _fault(config, row, "messages", shape)
    return tuple({"role": turn["role"], "content": turn["content"]} for turn in given)


def _is_message(turn: object) -> bool:
    return isinstance(turn, Mapping) and all(
        isinstance(turn.get(field), str) and turn[field] for field in ("role", "content")
    )


def _answer(config: TableTask, row: Row) -> str:
    if config.grade == "none":
        return ""
    gold = _scalar(config, row, "answer")
    fault = grading.gold_fault(config.grade, gold)
    if fault:
        mend = "correct the row, or choose another task.grade"
        raise _fault(config, row, "answer", f"{fault} to grade by '{config.grade}'; {mend}")
    return gold


def _text(config: TableTask, row: Row, field: str) -> str:
    value = row.values[getattr(config, field)]
    if not isinstance(value, str) or not value.strip():
        raise _fault(config, row, field, "is not a text")
    return value


def _scalar(config: TableTask, row: Row, field: str) -> str:
    value = row.values[getattr(config, field)]
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        raise _fault(config, row, field, "is neither text nor a number")
    return str(value)


def _fault(config: TableTask, row: Row, field: str, fault: str) -> TableError:
    column = getattr(config, field)
    shown = repr(row.values[column])
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return TableError(
        f"task.{field}: {config.path}, {row.place}, column '{column}' {fault} (given: {shown})"
    )


def _unique(placed: Sequence[tuple[Row, Problem]]) -> list[Problem]:
    first: dict[str, Row] = {}
    for row, problem in placed:
        other = first.setdefault(problem.key, row)
        if other is not row:
            raise TableError(
                f"task.key: {other.place} and {row.place} are the same problem ('{problem.key}'), "
                "so one could be trained on and the other reported. Remove one, or name a column "
                "that tells them apart in task.key"
            )
    return [problem for _, problem in placed]
