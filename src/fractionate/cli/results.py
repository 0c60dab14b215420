"""Verbs that look at results: report, figures, two cells against each other, advice."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fractionate.cli.errors import BadInputError, from_the_user, writing
from fractionate.cli.options import (
    DEFAULT_STORE,
    AllowMissing,
    AsJson,
    Overrides,
    StoreFolder,
)
from fractionate.cli.printing import emit_json, note, say
from fractionate.cli.running import report_path

if TYPE_CHECKING:
    from fractionate.api import Results
    from fractionate.cli.gathering import Gathered

FORMATS = ("pdf", "svg", "png")

Source = Annotated[
    Path,
    typer.Argument(metavar="FILE|STORE", help="Study file, or a store that holds one study."),
]


def opened(source: Path, store: Path, overrides: list[str] | None) -> "Results":
    """The results of a study file, or of a store that holds exactly one study.

    Raises:
        StudyFileError: The study is impossible.
        StoreError: The store holds no study, or several.
        BadInputError: Nothing of the study is finished.
    """
    from fractionate import api
    from fractionate.study.kept import only_study, unreadable_copies
    from fractionate.study.store import Store

    if source.is_dir():
        place = Store(source)
        plan = api.plan(only_study(place))
        for copy in unreadable_copies(place):
            note(f"note: {copy} cannot be read as a study. Remove it")
    else:
        place = Store(store)
        plan = api.plan(api.load_study(source, overrides or ()))
    results = api.Results(plan, place)
    if not results.outcomes.cells:
        raise BadInputError(
            f"no cell of '{plan.study.name}' is finished in {place.root}. Run the study first, or "
            "name its store with --store"
        )
    return results


@contextlib.contextmanager
def complete() -> Iterator[None]:
    """Around what needs every cell.

    Raises:
        BadInputError: Cells are missing; names the option that does without them.
    """
    from fractionate.analysis.runs import IncompleteStudyError

    try:
        yield
    except IncompleteStudyError as error:
        n = len(error.missing)
        cells = "1 cell is" if n == 1 else f"{n} cells are"
        raise BadInputError(
            f"{cells} missing: {', '.join(error.missing)}. Run the study again to finish "
            f"{'it' if n == 1 else 'them'}, or give --allow-missing to use the seeds that are "
            "complete"
        ) from None


Sources = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE|STORE|RECORDS...",
        help="Study files, stores that hold one study, or folders of exported records.",
    ),
]


def report(
    sources: Sources,
    *,
    store: StoreFolder = DEFAULT_STORE,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="A .html file, or a folder.")
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option("--markdown", help="Write one Markdown page on all of them instead."),
    ] = None,
    allow_missing: AllowMissing = False,
    overrides: Overrides = None,
) -> None:
    """Write the report of a study: one HTML file that needs nothing else.

    Of several studies each gets its file, and the paper's claims are judged on all of them.
    """
    from fractionate.cli.gathering import gathered

    studies = gathered(sources, store, overrides)
    if markdown is not None:
        _write_page(studies, markdown, allow_missing=allow_missing)
        return
    with complete():
        for path in write_reports(studies, out, allow_missing=allow_missing):
            say(f"report: {path}")


def write_reports(
    studies: "Sequence[Gathered]", out: Path | None, *, allow_missing: bool
) -> Iterator[Path]:
    """One HTML file per study.

    Raises:
        BadInputError: One file is named for several studies, or a place cannot be written to.
        IncompleteStudyError: Cells are missing.
    """
    from fractionate import api
    from fractionate.analysis.claims import judge_claims

    several = len(studies) > 1
    if several and out is not None and out.suffix.lower() in (".html", ".htm"):
        raise BadInputError(f"-o {out} is one file for {len(studies)} studies. Name a folder")
    gathered = [each.archive.runs(allow_missing=allow_missing) for each in studies]
    claims = judge_claims(gathered) if several else None
    for each in studies:
        path = report_path(out, each.reports.parent, each.archive.study.name)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            api.report(each.archive, path, allow_missing=allow_missing, claims=claims)
        yield path


def _write_page(studies: "Sequence[Gathered]", path: Path, *, allow_missing: bool) -> None:
    from fractionate.analysis.results_page import results_page

    with complete():
        text = results_page([each.archive for each in studies], allow_missing=allow_missing)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    say(f"results: {path}")


def figures(
    sources: Sources,
    *,
    store: StoreFolder = DEFAULT_STORE,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the figures.")] = Path(
        "figures"
    ),
    formats: Annotated[
        list[str] | None, typer.Option("--format", help="pdf, svg or png; repeatable.")
    ] = None,
    allow_missing: AllowMissing = False,
    overrides: Overrides = None,
) -> None:
    """Draw the paper's figures from the records of one or several studies."""
    from fractionate.analysis.figures_print import save_figures
    from fractionate.cli.gathering import gathered

    endings = tuple(formats or ("pdf",))
    for ending in endings:
        if ending not in FORMATS:
            raise BadInputError(f"--format {ending}: there are {', '.join(FORMATS)}")
    studies = gathered(sources, store, overrides)
    with complete():
        runs = [each.archive.runs(allow_missing=allow_missing) for each in studies]
    with writing(out):
        saved = save_figures(runs, out, formats=endings)
    for path in saved.paths:
        say(str(path))
    for name, why in saved.absent.items():
        note(f"not drawn: {name}: {why}")


def compare(  # noqa: PLR0913 - one argument per option
    file: Source,
    first: Annotated[str, typer.Argument(metavar="A", help="Name of a cell, or its key.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Name of another cell.")],
    *,
    metric: Annotated[list[str] | None, typer.Option(help="Only this metric; repeatable.")] = None,
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
    overrides: Overrides = None,
) -> None:
    """Compare two cells, paired by item."""
    import dataclasses

    from fractionate.analysis.compare import compare_cells
    from fractionate.cli.comparing import cell_result, comparison_text, only

    results = opened(file, store, overrides)
    with from_the_user():
        cells = cell_result(results, first), cell_result(results, second)
        found = only(compare_cells(*cells), metric)
    if as_json:
        emit_json(dataclasses.asdict(found))
    else:
        say(comparison_text(found))


def advise(
    source: Source,
    *,
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
    allow_missing: AllowMissing = False,
    overrides: Overrides = None,
) -> None:
    """Read a pilot study: what to spend the rest of the budget on, and how sure that is."""
    import dataclasses

    from fractionate.analysis import advice

    results = opened(source, store, overrides)
    with complete(), from_the_user():
        found = advice.advise(results.runs(allow_missing=allow_missing))
    if as_json:
        emit_json(dataclasses.asdict(found))
        return
    for line in found.lines:
        say(f"- {line}")
