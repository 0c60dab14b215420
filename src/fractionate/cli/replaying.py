"""Computing a finished stage again, and comparing the bytes."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fractionate.cli.errors import BadInputError

if TYPE_CHECKING:
    from fractionate.study.keys import Stage
    from fractionate.study.store import Store

Report = Callable[[Mapping[str, Any]], None]
RunStage = Callable[["Stage", "Store", Report], None]


@dataclass(frozen=True)
class Replay:
    """How a recomputed stage compares with the stored one.

    Attributes:
        key: Of the stage.
        name: Of the stage.
        files: Files compared.
        differs: The first file that differs, and how; empty if all are identical.
    """

    key: str
    name: str
    files: int
    differs: str


def find_stage(key: str, store: "Store", file: Path | None) -> "Stage":
    """The stage of a key, from the studies of the store or from a study file.

    Raises:
        BadInputError: No study knows it.
        StoreError: It is not finished, or the key is ambiguous.
    """
    from fractionate.cli.exporting import mentioning, plans_of

    full = str(store.show(key)["key"])
    plans, passed_over = plans_of(store, file)
    for plan in plans:
        if full in plan.by_key:
            return plan.stage(full)
    with mentioning(passed_over):
        raise BadInputError(
            f"no study of {store.root} has the stage {full[:16]}: its configuration or its inputs "
            "have changed since. Name the study file with --study"
        )


def replay(stage: "Stage", store: "Store", run_stage: RunStage, report: Report) -> Replay:
    """Compute a stage again beside the results it reads, and compare every file.

    Args:
        stage: Finished in `store`.
        store: Left as it is.
        run_stage: What runs a stage.
        report: Told of its progress.

    Raises:
        StoreError: A result that the stage reads is missing.
    """
    from fractionate.study.store import Store, StoreError

    with tempfile.TemporaryDirectory(prefix="fractionate-replay-") as folder:
        other = Store(folder)
        for key in stage.needs:
            try:
                source = store.path(key)
            except KeyError as error:
                raise StoreError(f"{error.args[0]}: run the study again first") from None
            link = other.root / source.parent.name / source.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(source.resolve(), target_is_directory=True)
        run_stage(stage, other, report)
        stored, again = store.manifest(stage.key)["files"], other.manifest(stage.key)["files"]
    return Replay(stage.key, stage.name, len(stored), _difference(stored, again))


def _difference(stored: Mapping[str, Any], again: Mapping[str, Any]) -> str:
    for name in sorted(stored.keys() | again.keys()):
        if name not in again:
            return f"{name} was not written again"
        if name not in stored:
            return f"{name} was not there before"
        if stored[name] != again[name]:
            return f"{name} ({stored[name]['size']} bytes stored, {again[name]['size']} again)"
    return ""
