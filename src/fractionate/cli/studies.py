"""Verbs that make, check, plan and run studies."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fractionate.cli.errors import BadInputError, writing
from fractionate.cli.options import (
    DEFAULT_STORE,
    AsJson,
    Executor,
    Overrides,
    StoreFolder,
    StudyFile,
    StudyFiles,
)
from fractionate.cli.places import shipped_study, template
from fractionate.cli.printing import emit_json, emit_one_or_all, note, say
from fractionate.cli.running import (
    dry_store,
    hours_text,
    on_gpu,
    planned,
    planned_in_miniature,
    require_report_place,
    run_plan,
    success,
    write_report,
)

if TYPE_CHECKING:
    from fractionate.study.plan import Plan
    from fractionate.study.status import Status

_WATCH_SECONDS = 2.0


def demo(
    *,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="The small variant: does everything work?")
    ] = False,
    store: StoreFolder = DEFAULT_STORE,
    executor: Executor = "process:2",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Report: a .html file, or a folder.")
    ] = None,
) -> None:
    """Run the sandbox study end to end and write its report."""
    plan = planned(shipped_study("smoke" if smoke else "demo"), None)
    require_report_place(out, store, plan.study.name, "-o")
    results, tally = run_plan(plan, store, executor)
    say(success(plan, tally, store))
    say(f"report: {write_report(results, out)}")


def init(
    path: Annotated[Path, typer.Argument(help="Where to write the study file.")] = Path(
        "study.yaml"
    ),
    *,
    models: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="STUDENT TEACHER", help="Your own pair: hub ids, folders or .gguf files."
        ),
    ] = None,
) -> None:
    """Write a commented starter study."""
    if path.exists():
        raise BadInputError(f"{path} exists. Name another file, or remove it")
    text = template("sandbox") if models is None else _with_models(template("models"), *models)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    say(f"wrote {path}. Next: fractionate check {path}; fractionate run {path}")


def _with_models(text: str, student: str, teacher: str) -> str:
    """The template with the models in it; local paths become absolute, so that they stay right."""
    import json

    placed = [
        str(Path(name).resolve()) if Path(name).exists() else name for name in (student, teacher)
    ]
    quoted = [json.dumps(name) for name in placed]  # a JSON string is a YAML string
    filled = text.replace("teacher: TEACHER", f"teacher: {quoted[1]}")
    return filled.replace("student: STUDENT", f"student: {quoted[0]}")


def check(files: StudyFiles, *, overrides: Overrides = None) -> None:
    """Check study files without running anything: fields, levels, cells and input files."""
    from fractionate.study.units import counted

    for file in files:
        plan = planned(file, overrides)
        cells, stages = counted(len(plan.cells), "cell"), counted(len(plan.stages), "stage")
        say(f"ok: {file}: {cells}, {stages}")


def plan(
    files: StudyFiles,
    *,
    as_json: AsJson = False,
    store: StoreFolder = DEFAULT_STORE,
    overrides: Overrides = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="KIND", help="Plan for a GPU, e.g. h100, with its hours."),
    ] = None,
) -> None:
    """Say what a study will do: cells, shared stages, cost, and what is done already."""
    from fractionate.study.store import Store

    documents: list[dict[str, Any]] = []
    for file in files:
        made = planned(file, overrides, device=None if gpu is None else "cuda")
        hours = None if gpu is None else on_gpu(made, Store(store), gpu)
        documents.append({**made.to_dict(Store(store)), "gpu": hours})
        if as_json:
            continue
        say(made.describe(Store(store)))
        if hours is not None:
            say(hours_text(hours))
    if as_json:
        emit_one_or_all(documents)


def run(  # noqa: PLR0913 - an option is an argument
    files: StudyFiles,
    *,
    store: StoreFolder = DEFAULT_STORE,
    executor: Executor = "serial",
    overrides: Overrides = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", help="Also write the report there: a .html file, or a folder."),
    ] = None,
    as_json: AsJson = False,
    dry_scale: Annotated[
        bool,
        typer.Option(
            "--dry-scale",
            help="In miniature: every stage, on tiny random models. Shows that it runs.",
        ),
    ] = False,
) -> None:
    """Run studies, or go on with them: only what the store lacks is computed."""
    if dry_scale:
        store = dry_store(store)
        plans = [planned_in_miniature(file, overrides, store) for file in files]
    else:
        plans = [planned(file, overrides) for file in files]
    for made in plans:  # nothing runs before all can
        require_report_place(report, store, made.study.name, "--report", several=len(plans) > 1)
    documents: list[dict[str, Any]] = []
    for made in plans:
        results, tally = run_plan(made, store, executor, as_json=as_json)
        written = None if report is None else write_report(results, report)
        documents.append(
            {"study": made.study.name, "store": store, "report": written, **tally.to_dict()}
        )
        if as_json:
            continue
        say(success(made, tally, store))
        if written is not None:
            say(f"report: {written}")
    if as_json:
        emit_one_or_all(documents)


def status(
    file: StudyFile,
    *,
    store: StoreFolder = DEFAULT_STORE,
    watch: Annotated[
        bool, typer.Option("--watch", help="Again and again until all is done.")
    ] = False,
    as_json: AsJson = False,
    overrides: Overrides = None,
) -> None:
    """Say how far a study is."""
    from fractionate import api

    made = api.plan(api.load_study(file, overrides or ()))
    if watch and as_json:
        raise BadInputError("--watch prints again and again, --json once. Choose one")
    if not store.exists():
        note(f"note: there is no store {store}. Name it with --store, or run the study first")
    if watch:
        _watch(made, store)
        return
    now = _status(made, store)
    if as_json:
        emit_json(now.to_dict())
    else:
        say(now.describe())


def _status(made: "Plan", store: Path) -> "Status":
    from fractionate.study.status import status
    from fractionate.study.store import Store

    return status(made, Store(store))


def _watch(made: "Plan", store: Path) -> None:
    """Print the status whenever it changes; on a terminal, in place."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console, last = Console(), ""
    with Live(console=console, auto_refresh=False) as live:
        while True:
            now = _status(made, store)
            text = now.describe()
            if console.is_terminal:
                live.update(Text(text), refresh=True)
            elif text != last:
                say(text)
            if now.complete:
                return
            last = text
            time.sleep(_WATCH_SECONDS)
