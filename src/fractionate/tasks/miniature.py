"""A few rows of data in the public layouts, written by us: they show whether a study runs."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from fractionate.config import DataTask, MedReasonTask, ScienceTask

ROWS: Final = 16
HELD_OUT: Final = 4
_LETTERS: Final = ("A", "B", "C", "D")
_UNLABELLED: Final = "no miniature rows are written for tasks of this kind"


def write_rows(task: DataTask, folder: Path) -> dict[str, Any]:
    """Write rows for a task, and say what its fields become.

    Args:
        task: Science, MedReason, math or GSM8K; its columns and conditions are kept.
        folder: Made if it does not exist.

    Returns:
        Fields of the task to replace: its sources and the sizes of its splits.

    Raises:
        ValueError: The kind of task has no public layout.
    """
    kind = str(dict(task)["kind"])
    if kind not in _WRITERS:
        raise ValueError(_UNLABELLED)
    rows, held = _WRITERS[kind](task)
    sizes = {"train": None, "selection": 0, "test": HELD_OUT, "exclude": ()}
    sources = {"source": _written(folder / f"{kind}.jsonl", rows), "test_source": ()}
    if held:
        sources["test_source"] = _written(folder / f"{kind}-test.jsonl", held)
    return {**sources, **sizes}


def _written(path: Path, rows: list[dict[str, Any]]) -> tuple[dict[str, str], ...]:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    return ({"path": str(path.resolve())},)


Rows = tuple[list[dict[str, Any]], list[dict[str, Any]]]


def _science(task: ScienceTask) -> Rows:
    rows: list[dict[str, Any]] = []
    for i in range(ROWS):
        gold = i % len(_LETTERS)
        row = {
            "question": f"How many moles are in {18 * (i + 2)} g of water?",
            "choices": {"text": [str(i + 2 + j - gold) for j in range(4)], "label": _LETTERS},
            "answerKey": _LETTERS[gold],
            "type": "mcq-4-choices",
            "domain": task.domain,
            "details": {"level": task.level, "task": "calculation", "subtask": "moles"},
            "prompt": {"default": "Choose one option."},
            "answer": "",
        }
        if task.reasoning is not None:
            row[task.reasoning] = f"A mole of water is 18 g: {18 * (i + 2)} / 18 = {i + 2}."
        rows.append(row)
    return rows, []


def _medreason(task: MedReasonTask) -> Rows:
    rows: list[dict[str, Any]] = []
    for i in range(ROWS):
        doses = [50 * (i + j + 1) for j in range(4)]
        options = "\n".join(f"{a}. {dose} mg" for a, dose in zip(_LETTERS, doses, strict=True))
        rows.append(
            {
                "dataset_name": "medmcqa",
                "id_in_dataset": i,
                "question": f"How much is {i + 2} tablets of 50 mg?",
                "answer": f"{doses[1]} mg. Explanation: Doses add up.",
                task.reasoning or "reasoning": f"{i + 2} times 50 mg is {doses[1]} mg.",
                "options": f"Answer Choices:\n{options}",
            }
        )
    return rows, []


def _math(_: DataTask) -> Rows:
    def row(i: int, **more: Any) -> dict[str, Any]:
        solution = f"We add: ${i}+{i + 1}={2 * i + 1}$. It is $\\boxed{{{2 * i + 1}}}$."
        return {"problem": f"What is ${i}+{i + 1}$?", "solution": solution, **more}

    held = range(100, 100 + HELD_OUT)
    public = {"subject": "Prealgebra", "level": 1}
    return (
        [row(i, source="synthetic_math") for i in range(ROWS)],
        [
            row(i, answer=str(2 * i + 1), **public, unique_id=f"test/prealgebra/{i}.json")
            for i in held
        ],
    )


def _gsm8k(_: DataTask) -> Rows:
    def row(i: int, what: str) -> dict[str, str]:
        return {
            "question": f"A box holds {i} {what}. How many {what} do 3 boxes hold?",
            "answer": f"They hold 3*{i} = <<3*{i}={3 * i}>>{3 * i} {what}.\n#### {3 * i}",
        }

    return [row(i + 2, "pens") for i in range(ROWS)], [row(i + 2, "cups") for i in range(HELD_OUT)]


_WRITERS: Final[Mapping[str, Callable[[Any], Rows]]] = {
    "science": _science,
    "medreason": _medreason,
    "math": _math,
    "gsm8k": _gsm8k,
}
