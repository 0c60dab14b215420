"""Verbs about the store: look at it, prove it, take things out, clean it up."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fractionate.cli.errors import BadInputError, complain, fail
from fractionate.cli.options import DEFAULT_STORE, AllowMissing, AsJson, StoreFolder
from fractionate.cli.printing import emit_json, note, say

if TYPE_CHECKING:
    from fractionate.study.store import Store

Key = Annotated[str, typer.Argument(metavar="KEY", help="Key of a stage; its first digits do.")]
OfStudy = Annotated[
    Path | None,
    typer.Option("--study", help="Study file; by default the studies that the store knows."),
]


def opened(folder: Path) -> "Store":
    """A store that is there.

    Raises:
        StoreError: It is a file, or of a newer version.
        BadInputError: It does not exist.
    """
    from fractionate.study.store import Store

    store = Store(folder)
    if not folder.is_dir():
        raise BadInputError(f"there is no store {folder}. Name it with --store")
    return store


def show(key: Key, *, store: StoreFolder = DEFAULT_STORE) -> None:
    """Print the manifest of a finished stage: configuration, parents, checksums, provenance."""
    emit_json(opened(store).show(key))


def replay(key: Key, *, store: StoreFolder = DEFAULT_STORE, study: OfStudy = None) -> None:
    """Compute a finished stage again, and compare its files byte for byte with the stored ones."""
    from fractionate.cli import replaying

    place = opened(store)
    stage = replaying.find_stage(key, place, study)
    from fractionate.study.stages import run_stage

    note(f"computing again: {stage.name}")
    found = replaying.replay(stage, place, run_stage, lambda info: None)  # noqa: ARG005 - quiet
    if found.differs:
        complain(f"different: {stage.kind}/{stage.short}: {found.differs}")
        raise fail()
    from fractionate.study.units import counted

    files = counted(found.files, "file")
    say(f"identical: {stage.kind}/{stage.short}, {files} ({stage.name})")


def verify(*, store: StoreFolder = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Compare every file of the store with its checksum."""
    place = opened(store)
    problems = {name: place.verify(name) for name in _unreadable(place)}
    keys = place.keys()
    problems |= {key[:16]: place.verify(key) for key in keys}
    wrong = {name: problem for name, problem in problems.items() if problem}
    if as_json:
        emit_json({"stages": len(problems), "corrupt": wrong})
    else:
        for problem in wrong.values():
            complain(problem)
        from fractionate.study.units import counted

        say(f"{len(problems) - len(wrong)} of {counted(len(problems), 'stage')} whole")
    if wrong:
        note("run the study again: what is corrupt is set aside and computed again, nothing else")
        raise fail()


def _unreadable(store: "Store") -> list[str]:
    """Folders of finished stages whose manifest cannot be read."""
    from fractionate.study.keys import STAGE_VERSIONS

    finished = store.keys()
    known = {key[:16] for key in finished}
    folders = [path for kind in STAGE_VERSIONS for path in sorted((store.root / kind).glob("*"))]
    return [
        path.name
        for path in folders
        if path.is_dir() and not path.suffix and path.name not in known
    ]


def export(
    what: Annotated[
        str,
        typer.Argument(
            metavar="KEY|CELL|FILE", help="A key, the name of a cell, or a study file (YAML)."
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    *,
    store: StoreFolder = DEFAULT_STORE,
    study: OfStudy = None,
    step: Annotated[
        int | None, typer.Option(help="Which kept weights; the last by default.")
    ] = None,
    allow_missing: AllowMissing = False,
) -> None:
    """Copy a cell's weights and records, or the records of a whole study without weights.

    Of a cell: its trained weights as a Hugging Face folder, and its records as Parquet. Of a study:
    a small folder from which `report` and `figures` work as from the store.
    """
    from fractionate.cli import exporting

    place = opened(store)
    if what.endswith((".yaml", ".yml")):
        if step is not None or study is not None:
            raise BadInputError("--step and --study go with a cell: a study is exported whole")
        for path in exporting.export_study(Path(what), store, out, allow_missing=allow_missing):
            say(str(path))
        return
    plans, passed_over = exporting.plans_of(place, study)
    cell = exporting.find_cell(what, plans)
    if cell is None:
        with exporting.mentioning(passed_over):
            folders = [Path(place.show(what)["folder"])]
    else:
        keys = (cell.training, *cell.evaluations.values())
        if not place.is_done(cell.training):
            raise BadInputError(f"the cell '{cell.cell.name}' is not finished. Run the study first")
        folders = [place.path(key) for key in keys if place.is_done(key)]
    for path in exporting.export(folders, out, step=step):
        say(str(path))


def gc(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Studies to keep.")],
    *,
    store: StoreFolder = DEFAULT_STORE,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this only say what.")] = False,
) -> None:
    """Remove from the store what none of these studies needs."""
    from fractionate import api
    from fractionate.study.kept import forget_studies
    from fractionate.study.units import counted, human_bytes

    place = opened(store)
    plans = [api.plan(api.load_study(file)) for file in files]
    keep = {stage.key for plan in plans for stage in plan.stages}
    if not yes:
        names, size = _removable(place, {key[:16] for key in keep})
        for name in names:
            say(name)
        found = f"{counted(len(names), 'result')}, {human_bytes(size)}"
        say(f"{found}, would go. Give --yes to remove them")
        return
    removed = place.gc(keep)
    forget_studies(place, {plan.study.name for plan in plans})
    say(f"removed {counted(len(removed.names), 'result')}, {human_bytes(removed.bytes)}")


def _removable(store: "Store", kept: set[str]) -> tuple[list[str], int]:
    """What `Store.gc` would remove, and its size in bytes."""
    from fractionate.study.cleaning import bytes_of, is_held, lock_path
    from fractionate.study.keys import STAGE_VERSIONS

    paths = [
        path
        for kind in (*STAGE_VERSIONS, "corrupt")
        for path in sorted((store.root / kind).glob("*"))
        if (short := path.name.partition(".")[0]) not in kept
        and not is_held(lock_path(store.root, kind, short))
    ]
    names = [path.relative_to(store.root).as_posix() for path in paths]
    return names, sum(bytes_of(path) for path in paths)
