"""Taking things out of a store: weights as a Hugging Face folder, records as Parquet."""

import contextlib
import shutil
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fractionate.cli.errors import BadInputError, writing
from fractionate.cli.printing import note

if TYPE_CHECKING:
    from fractionate.study.plan import CellStages, Plan
    from fractionate.study.store import Store

RECORDS = ("steps.jsonl", "items.jsonl")


def plans_of(store: "Store", file: Path | None) -> tuple[list["Plan"], list[str]]:
    """The plan of a study file, or of every study that the store was made for.

    Returns:
        The plans, and the studies of the store that can no longer be read or planned.

    Raises:
        StudyFileError: The file, or an input that it names, is impossible.
    """
    from fractionate import api
    from fractionate.config import StudyFileError
    from fractionate.study.kept import kept_studies, unreadable_copies

    if file is not None:
        return [api.plan(api.load_study(file))], []
    plans: list[Plan] = []
    passed_over = [Path(copy).stem for copy in unreadable_copies(store)]
    for name, study in kept_studies(store).items():
        try:
            plans.append(api.plan(study))
        except StudyFileError:
            passed_over.append(name)
    return plans, passed_over


@contextlib.contextmanager
def mentioning(passed_over: Sequence[str]) -> Generator[None]:
    """Around a look-up: if it finds nothing, say which studies were not looked into."""
    from fractionate.study.errors import StoreError

    try:
        yield
    except (BadInputError, StoreError):
        if passed_over:
            note(f"note: not looked into, for they cannot be planned: {', '.join(passed_over)}")
        raise


def find_cell(name: str, plans: "Sequence[Plan]") -> "CellStages | None":
    """The cell of a name, or whose training stage has a key that starts with it.

    Raises:
        BadInputError: Several cells fit.
    """
    found = {
        stages.training: stages
        for plan in plans
        for stages in plan.cell_stages.values()
        if stages.cell.name == name or (len(name) >= 4 and stages.training.startswith(name))
    }
    if len(found) > 1:
        keys = ", ".join(key[:16] for key in found)
        raise BadInputError(f"'{name}' fits several cells ({keys}). Give the key of one")
    return next(iter(found.values()), None)


def export_study(file: Path, store: Path, out: Path, *, allow_missing: bool) -> list[Path]:
    """Write the records of a study, without weights: reports can be remade from them.

    Args:
        file: Study file.
        store: Folder of the results.
        out: Folder of the records; an earlier export of the same study is replaced.
        allow_missing: Export what is finished.

    Returns:
        What was written.

    Raises:
        BadInputError: Cells are missing, or `out` holds something else or cannot be written.
    """
    from fractionate.analysis.archive import is_archive, write_archive
    from fractionate.cli.results import complete, opened

    taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
    if taken and not (out.is_dir() and is_archive(out)):
        raise BadInputError(f"{out} is not empty, and no earlier export. Name a new folder")
    archive = opened(file, store, None).archive()
    with complete():
        archive.runs(allow_missing=allow_missing)
    with writing(out):
        return write_archive(archive, out)


def weights_of(folder: Path) -> list[Path]:
    """The Hugging Face folders of a finished training run, earliest step first."""
    return sorted(path for path in (folder / "weights").glob("step-*") if path.is_dir())


def export(sources: "Sequence[Path]", out: Path, *, step: int | None) -> list[Path]:
    """Copy weights and records of finished stages into a new folder.

    Args:
        sources: Folders of finished stages.
        out: Made; must not hold anything.
        step: Which kept weights; none takes the last.

    Returns:
        What was written: the model folder is `out` itself.

    Raises:
        BadInputError: `out` is taken or cannot be written, the step was not kept, or there is
            nothing to export.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInputError(f"{out} is not empty. Name a new folder")
    chosen = [_chosen(folder, step) for folder in sources]
    written: list[Path] = []
    with writing(out):
        for folder, weights in zip(sources, chosen, strict=True):
            if weights is not None:
                shutil.copytree(weights, out, dirs_exist_ok=True)
                written.append(out)
            written += _records(folder, out)
    if not written:
        raise BadInputError("this stage holds neither weights nor records to export")
    return written


def _chosen(folder: Path, step: int | None) -> Path | None:
    kept = weights_of(folder)
    if step is None or not kept:
        return kept[-1] if kept else None
    steps = {int(path.name.removeprefix("step-")): path for path in kept}
    if step not in steps:
        raise BadInputError(f"--step {step} was not kept. Kept: {', '.join(map(str, steps))}")
    return steps[step]


def _records(folder: Path, out: Path) -> list[Path]:
    """Step and item records as Parquet; items carry the stage in their file name if need be."""
    import pandas as pd

    from fractionate.records import read_dicts

    written: list[Path] = []
    for name in RECORDS:
        if (folder / name).is_file():
            out.mkdir(parents=True, exist_ok=True)
            records = [_flat(record) for record in read_dicts(folder / name)]
            target = out / f"{name.partition('.')[0]}-{folder.name}.parquet"
            pd.DataFrame(records).to_parquet(target, index=False)
            written.append(target)
    return written


def _flat(record: dict[str, object]) -> dict[str, object]:
    """A mapping inside a record becomes text: Parquet would merge the keys of all rows."""
    import json

    return {
        name: json.dumps(value, sort_keys=True) if isinstance(value, dict) else value
        for name, value in record.items()
    }
