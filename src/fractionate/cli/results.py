"""Verbs that look at results: report, figures, two cells against each other, advice."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fractionate.cli.errors import BadInputError, writing
from fractionate.cli.options import (
    DEFAULT_STORE,
    AllowMissing,
    Overrides,
    StoreFolder,
)
from fractionate.cli.printing import note, say
from fractionate.cli.running import write_report

if TYPE_CHECKING:
    from fractionate.api import Results

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
    from fractionate.study.kept import only_study
    from fractionate.study.store import Store

    if source.is_dir():
        place = Store(source)
        plan = api.plan(only_study(place))
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


def report(
    source: Source,
    *,
    store: StoreFolder = DEFAULT_STORE,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="A .html file, or a folder.")
    ] = None,
    allow_missing: AllowMissing = False,
    overrides: Overrides = None,
) -> None:
    """Write the report of a study: one HTML file that needs nothing else."""
    results = opened(source, store, overrides)
    say(f"report: {write_report(results, out, allow_missing=allow_missing)}")


def figures(
    source: Source,
    *,
    store: StoreFolder = DEFAULT_STORE,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the figures.")] = Path(
        "figures"
    ),
    overrides: Overrides = None,
) -> None:
    """Draw the figures of a study for a paper."""
    results = opened(source, store, overrides)
    _say_missing(results)
    from fractionate.analysis.figures import save_figures

    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for path in save_figures(results.outcomes.cells, out):
            say(str(path))


def _say_missing(results: "Results") -> None:
    missing = results.outcomes.missing
    if missing:
        note(f"note: {len(missing)} cells are missing: {', '.join(missing)}")
