"""One good run from a few flags: a study of one cell."""

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fractionate.cli.errors import BadInputError, require_writable
from fractionate.cli.measures import interval, plain, shown
from fractionate.cli.printing import emit_json, say, table
from fractionate.cli.running import checked, run_plan
from fractionate.cli.sources import is_path, located, table_fields

if TYPE_CHECKING:
    from fractionate.analysis.measure import Value
    from fractionate.api import Results
    from fractionate.config import Study

_DRIFT_ITEMS = 64
_FLAGS: Mapping[str, str] = {
    "models.student": "--student",
    "models.teacher": "--teacher",
    "method.rollout": "--rollout",
    "method.divergence": "--kl",
    "optimizer.lr": "--lr",
    "budget.steps": "--steps",
    "budget.prompts_per_step": "--prompts",
    "lengths.completion": "--max-tokens",
    "task.operands": "--operands",
    "task.test": "--test",
    "task.grade": "--grade",
    "task.answer": "--answer",
    "task": "--task",
}
"""Which flag sets a field."""


@dataclass(frozen=True)
class Flags:
    """What the flags of `distill` say.

    Attributes:
        student: Model to train.
        teacher: Model to learn from.
        task: "countdown", or a data file.
        columns: Column names by field of a table task, and its grade.
        operands: Numbers of a Countdown problem.
        test: Problems held out for the table before and after.
        rollout: Kind of rollout.
        divergence: Kind of divergence.
        lr: Learning rate.
        steps: Optimizer steps.
        prompts: Prompts per step.
        max_tokens: Longest completion in training and evaluation.
        seed: The one seed.
    """

    student: str
    teacher: str
    task: str
    columns: dict[str, str | None]
    operands: int
    test: int
    rollout: str
    divergence: str
    lr: float
    steps: int
    prompts: int
    max_tokens: int
    seed: int


def study_of(flags: Flags, overrides: Sequence[str]) -> "Study":
    """The study that the flags mean; `overrides` have the last word.

    Raises:
        BadInputError: The task is neither known nor a file.
        StudyFileError: A flag or an override says something impossible; names the field.
    """
    from fractionate.config import StudyFileError, read_study

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "distill.yaml"
        path.write_text(json.dumps(_tree(flags)), encoding="utf-8")  # JSON is YAML
        try:
            study = read_study(path, overrides)
        except StudyFileError as error:
            faults = [line.removeprefix(f"{path}: ") for line in str(error).splitlines()]
            lines = [_said_of_flags(fault, overrides) for fault in faults]
            raise BadInputError("\n".join(lines)) from None
    return one_cell(study, seed=None)


def _said_of_flags(fault: str, overrides: Sequence[str]) -> str:
    """A fault of a field, with the flag that set the field in front of it."""
    from fractionate.config import resolve

    field = fault.partition(":")[0]
    set_by_hand = [resolve(override.partition("=")[0].strip()) for override in overrides]
    if any(_within(field, path) for path in set_by_hand):
        return fault
    flag = next((flag for path, flag in _FLAGS.items() if _within(field, path)), None)
    return fault if flag is None else f"{flag}: {fault}"


def _within(path: str, ancestor: str) -> bool:
    return path == ancestor or path.startswith(f"{ancestor}.")


def one_cell(study: "Study", *, seed: int | None) -> "Study":
    """The study with one seed; its first one unless `seed` is given.

    Raises:
        BadInputError: It varies something.
    """
    if study.vary:
        raise BadInputError(
            f"distill makes one run, but '{study.name}' varies {', '.join(study.vary)}. Remove "
            "'vary', or use fractionate run"
        )
    return study.model_copy(update={"seeds": (study.seeds[0] if seed is None else seed,)})


def _tree(flags: Flags) -> dict[str, Any]:
    return {
        "name": _name(flags.student),
        "models": {"student": _absolute(flags.student), "teacher": _absolute(flags.teacher)},
        "task": _task(flags),
        "method": {
            "rollout": {"kind": flags.rollout},
            "divergence": {"kind": flags.divergence},
        },
        "optimizer": {"lr": flags.lr},
        "budget": {"steps": flags.steps, "prompts_per_step": flags.prompts},
        "lengths": {"completion": flags.max_tokens, "evaluation": flags.max_tokens},
        "seeds": [flags.seed],
        "evaluate": {
            "at": [0, "last"],
            "accuracy": {"items": flags.test},
            "drift": {"items": min(flags.test, _DRIFT_ITEMS)},
        },
    }


def _name(student: str) -> str:
    last = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(student).name).strip("-.")
    return f"distill-{last}"[:80]


def _absolute(model: str) -> str:
    place = located(model)
    return str(Path(place).resolve()) if is_path(place) else place


def _task(flags: Flags) -> dict[str, Any]:
    if flags.task == "countdown":
        return {"kind": "countdown", "operands": flags.operands, "test": flags.test}
    path = Path(flags.task)
    if not path.is_file():
        raise BadInputError(f"--task {flags.task}: neither 'countdown' nor a file")
    return {**table_fields(path, flags.columns), "test": flags.test}


# ---------------------------------------------------------------- what came of it


@dataclass(frozen=True)
class Target:
    """Where a run goes.

    Attributes:
        store: Folder of the results.
        executor: As in `fractionate run`.
        out: Where to copy the trained student; none leaves it in the store.
        as_json: Print one JSON document.
    """

    store: Path
    executor: str
    out: Path | None
    as_json: bool


def run(study: "Study", target: Target) -> None:
    """Run the one cell, and say what it did to the student and where the student is.

    Raises:
        BadInputError: `target.out` is taken.
        typer.Exit: A stage failed.
    """
    from fractionate import api
    from fractionate.cli.exporting import export

    if target.out is not None:
        if target.out.exists():
            raise BadInputError(f"--out {target.out} exists. Name a new folder")
        require_writable(target.out, "--out")
    plan = api.plan(checked(study))
    results, tally = run_plan(plan, target.store, target.executor, as_json=target.as_json)
    folder = trained_folder(results, plan.cells[0].name)
    if target.out is not None:
        training = plan.cell_stages[plan.cells[0].name].training
        export([results.store.path(training)], target.out, step=None)
        folder = target.out
    before, after = before_and_after(results)
    if target.as_json:
        document = {"before": plain(before), "after": plain(after), "student": folder}
        emit_json({"study": study.name, "store": target.store, **document, **tally.to_dict()})
        return
    say(comparison(before, after))
    say(f"trained student: {folder}")


def before_and_after(results: "Results") -> tuple[list["Value"], list["Value"]]:
    """The measurements of the only cell at step 0 and at its last step."""
    from fractionate.analysis.measure import evaluation_values, weight_values

    cell = results.outcomes.cells[0]
    base = cell.evaluations.get(0, ())
    last = max(cell.evaluations)
    before = list(evaluation_values(base, None)) if base else []
    after = list(evaluation_values(cell.evaluations[last], base or None))
    if last in cell.weights:
        after += weight_values(cell.weights[last])
    return before, after


def comparison(before: "Sequence[Value]", after: "Sequence[Value]") -> str:
    """A table of both, one line per metric."""
    old: Mapping[str, Value] = {value.metric: value for value in before}
    rows = [
        (
            value.metric,
            shown(value.metric, old[value.metric].value) if value.metric in old else "",
            interval(old[value.metric]) if value.metric in old else "",
            shown(value.metric, value.value),
            interval(value),
            str(value.n),
        )
        for value in after
    ]
    return table(("metric", "before", "95 %", "after", "95 %", "n"), rows)


def trained_folder(results: "Results", cell: str) -> Path:
    """The Hugging Face folder of a cell's last weights."""
    from fractionate.cli.exporting import weights_of

    training = results.plan.cell_stages[cell].training
    return weights_of(results.store.path(training))[-1]
