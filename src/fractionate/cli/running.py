"""From a study file to results, with what is shown on the way."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fractionate.cli.errors import BadInputError, fail, from_the_user, require_writable, writing
from fractionate.cli.options import DEFAULT_STORE
from fractionate.cli.printing import emit_json, note
from fractionate.cli.progress import RunDisplay, Tally

if TYPE_CHECKING:
    from fractionate.api import Results
    from fractionate.config import Study
    from fractionate.study.plan import Plan
    from fractionate.study.store import Store


def planned(file: Path, overrides: Sequence[str] | None, *, device: str | None = None) -> "Plan":
    """The plan of a study file, its data file looked into.

    Args:
        file: The study file.
        overrides: `field=value`.
        device: On which stages run; none takes that of the environment.

    Raises:
        StudyFileError: The file, a field or an input is impossible.
        TableError: The data file lacks a column, rows or more.
    """
    from fractionate import api

    return api.plan(checked(api.load_study(file, overrides or ())), device=device)


def dry_store(store: Path) -> Path:
    """The store of a run in miniature: apart from results, unless another one is named."""
    from fractionate import api

    return Path(api.DRY_STORE) if store == DEFAULT_STORE else store


def planned_in_miniature(file: Path, overrides: Sequence[str] | None, store: Path) -> "Plan":
    """The plan of a study file in miniature, its models and data written into the store.

    Raises:
        StudyFileError: The file, a field or an input is impossible, or has no miniature.
        BadInputError: The store cannot be written to.
    """
    from fractionate import api

    study = api.load_study(file, overrides or ())
    with writing(store):
        made = api.dry_plan(study, store)
    note("note: in miniature, on random models and made-up rows: its numbers mean nothing")
    return made


def on_gpu(plan: "Plan", store: "Store", kind: str) -> dict[str, float | str]:
    """Hours of an accelerator for a plan, all of it and what is left.

    Raises:
        BadInputError: The accelerator is unknown.
    """
    from fractionate.study.hardware import UTILISATION, gpu_hours

    cost = plan.cost(store)
    with from_the_user():
        return {
            "kind": kind,
            "utilisation": UTILISATION,
            "hours": gpu_hours(cost.flops, kind),
            "hours_left": gpu_hours(cost.flops_left, kind),
        }


def hours_text(hours: Mapping[str, float | str]) -> str:
    """The hours in a line, with the assumption behind them."""
    return (
        f"on one {hours['kind']}: about {hours['hours']:.3g} hours, {hours['hours_left']:.3g} to "
        f"do, at {hours['utilisation']:.0%} of its bfloat16 peak (an assumption)"
    )


def checked(study: "Study") -> "Study":
    """A study whose task can be built from its data, where all of that is on this disk.

    Raises:
        ValueError: It cannot; names the field of the task.
    """
    task = study.task
    if task.kind == "countdown" or any(source.hub for source in task.inputs.values()):
        return study
    from fractionate.tasks.build import build_task, check_rows
    from fractionate.tasks.collection import Collection

    with from_the_user():
        built = build_task(task, None)
        check_rows(built, study)
    if isinstance(built, Collection) and built.left_out:
        note(f"note: {built.summary()}")
    return study


def run_plan(
    plan: "Plan", store: Path, executor: str, *, as_json: bool = False
) -> tuple["Results", Tally]:
    """Run a plan with progress; a copy of the study stays in the store.

    Args:
        plan: What to run.
        store: Folder of the results.
        executor: "serial" or "process:N".
        as_json: Print the one JSON document of the command also if a stage failed.

    Raises:
        typer.Exit: A stage failed; what there is to say has been said.
        BadInputError: The executor is unknown.
        StoreError: The store cannot be used.
        KeyboardInterrupt: Stopped from outside; the message says how to go on.
    """
    from fractionate import api
    from fractionate.study.executors import parse_executor

    with from_the_user():
        parse_executor(executor)
    for text in plan.notes:
        note(f"note: {text}")
    with RunDisplay(len(plan.stages), store, fancy=sys.stderr.isatty()) as display:
        try:
            results = api.run(plan, store, executor, display)
        except api.StageFailedError:
            display.__exit__(None, None, None)
            note(failures(display.tally, store))
            if as_json:
                emit_json({"study": plan.study.name, "store": store, **display.tally.to_dict()})
            raise fail() from None
        except KeyboardInterrupt:
            raise KeyboardInterrupt(interruption(display.tally, store)) from None
    return results, display.tally


def failures(tally: Tally, store: Path) -> str:
    """What failed, why, and how to go on."""
    from fractionate.study.units import counted

    counts = (
        f"{counted(tally.done, 'stage')} computed, {tally.cached} were there, "
        f"{len(tally.failed)} failed, {len(tally.not_run)} not run because of them"
    )
    lines = [counts]
    for name, (error, file) in tally.failed.items():
        lines += [f"failed: {name}", f"  {error}"]
        lines += [f"  traceback: {file}"] if file.is_file() else []
    lines.append(
        f"What is finished stays in {store}. First mend the cause; after the mend, give the same "
        "command again: it goes on where it stopped"
    )
    return "\n".join(lines)


def interruption(tally: Tally, store: Path) -> str:
    """That a run was interrupted, and how to go on."""
    return (
        f"interrupted with {tally.cached + tally.done} of {tally.total} stages done. They stay in "
        f"{store}, unfinished ones keep their last checkpoint. Give the same command again: it "
        "goes on where it stopped"
    )


def success(plan: "Plan", tally: Tally, store: Path) -> str:
    """That a run went well, in one line."""
    from fractionate.study.units import counted

    cells = "1 cell" if len(plan.cells) == 1 else f"all {len(plan.cells)} cells"
    return (
        f"{plan.study.name}: {cells} done, {counted(tally.done, 'stage')} computed, "
        f"{tally.cached} were there. Store: {store}"
    )


def write_report(results: "Results", out: Path | None, *, allow_missing: bool = False) -> Path:
    """Write the report of a study.

    Args:
        results: What there is.
        out: A file ending in .html, or a folder; none takes the folder `reports` of the store.
        allow_missing: Use what is finished.

    Returns:
        Where it is.

    Raises:
        BadInputError: The place cannot be written to.
        IncompleteStudyError: Cells are missing.
    """
    from fractionate import api

    path = report_path(out, results.store.root, results.plan.study.name)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        api.report(results, path, allow_missing=allow_missing)
    return path


def require_report_place(
    out: Path | None, store: Path, name: str, option: str, *, several: bool = False
) -> None:
    """Refuse a place for a report that cannot be written to, before the run.

    Raises:
        BadInputError: It cannot, or is one file for several reports; names the option.
    """
    if out is not None:
        path = report_path(out, store, name, option)
        if several and path == out:
            raise BadInputError(f"{option} {out} is one file for several reports. Name a folder")
        if path.is_dir():
            raise BadInputError(f"{option} {path} is a folder. Name another file")
        require_writable(path, option)


def report_path(out: Path | None, store: Path, name: str, option: str = "-o") -> Path:
    """The file that a report goes to.

    Raises:
        BadInputError: `out` is a file that is no HTML file.
    """
    if out is None:
        return store / "reports" / f"{name}.html"
    if out.suffix.lower() in (".html", ".htm"):
        return out
    if out.is_file():
        raise BadInputError(
            f"{option} {out} is a file. Name a folder, or a file that ends in .html"
        )
    return out / f"{name}.html"
