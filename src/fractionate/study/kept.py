"""The studies that a store was made for: `<root>/studies/<name>.json`, resolved, one each."""

import contextlib
import json
from collections.abc import Collection, Generator
from pathlib import Path
from typing import Any, cast

from fractionate.config import Study
from fractionate.config.files import parse_study
from fractionate.study.store import Store, StoreError
from fractionate.study.workspace import write_whole

_PATHS = ("path", "checkpoints", "include", "tokenizer")
"""Fields that hold a path wherever they stand; `models` holds others."""


def keep_study(study: Study, store: Store) -> Path:
    """Leave a copy of a study in its store; a later study of the same name takes its place.

    Local paths become absolute, so that the copy can be read from anywhere on this machine.

    Raises:
        StoreError: The store cannot be written to.
    """
    store.prepare()
    path = store.root / "studies" / f"{study.name}.json"
    try:
        path.parent.mkdir(exist_ok=True)
        write_whole(path, json.dumps(_anchored(study.model_dump(mode="json")), indent=2))
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error.strerror})") from error
    return path


@contextlib.contextmanager
def keeping(study: Study, store: Store) -> Generator[None]:
    """Keep a copy of a study while it runs, and after; a run that is refused leaves none.

    Raises:
        StoreError: The store cannot be written to.
    """
    path = store.root / "studies" / f"{study.name}.json"
    before = None
    with contextlib.suppress(OSError, ValueError):
        before = path.read_text(encoding="utf-8")
    keep_study(study, store)
    try:
        yield
    except Exception:  # an interruption is none: its work stays, and so does the copy
        if before is None:
            path.unlink(missing_ok=True)
        else:
            write_whole(path, before)
        raise


def kept_studies(store: Store) -> dict[str, Study]:
    """The studies of a store by name; a copy that cannot be read is left out."""
    return {study.name: study for study in _copies(store).values() if isinstance(study, Study)}


def unreadable_copies(store: Store) -> tuple[str, ...]:
    """Files of the copies that cannot be read."""
    return tuple(str(path) for path, study in _copies(store).items() if study is None)


def _copies(store: Store) -> dict[Path, Study | None]:
    """Every copy; of one that cannot be read, nothing."""
    found: dict[Path, Study | None] = {}
    for path in sorted((store.root / "studies").glob("*.json")):
        found[path] = None
        with contextlib.suppress(OSError, ValueError):
            found[path] = parse_study(json.loads(path.read_text(encoding="utf-8")))
    return found


def only_study(store: Store) -> Study:
    """The study of a store that holds exactly one.

    Raises:
        StoreError: It holds none, or several; lists them.
    """
    studies = kept_studies(store)
    if len(studies) == 1:
        return next(iter(studies.values()))
    if not studies:
        broken = unreadable_copies(store)
        which = f" that can be read ({', '.join(broken)})" if broken else ""
        raise StoreError(
            f"{store.root} holds no copy of a study{which}. Name the study file, and the store "
            "with --store"
        )
    raise StoreError(
        f"{store.root} holds several studies: {', '.join(studies)}. Name the study file, and the "
        "store with --store"
    )


def forget_studies(store: Store, keep: Collection[str]) -> tuple[str, ...]:
    """Remove the copies of all studies but those named; the names removed."""
    gone = [path for path in (store.root / "studies").glob("*.json") if path.stem not in keep]
    for path in gone:
        path.unlink()
    return tuple(sorted(path.stem for path in gone))


def _anchored(branch: Any, *, fields: Collection[str] = _PATHS) -> Any:
    """The same values, with local paths made absolute."""
    if isinstance(branch, list):
        return [_anchored(each) for each in cast("list[Any]", branch)]
    if not isinstance(branch, dict):
        return branch
    found: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", branch).items():
        if name in fields and isinstance(value, str) and Path(value).exists():
            found[name] = str(Path(value).resolve())
        else:
            within = ("student", "teacher") if name == "models" else _PATHS
            found[name] = _anchored(value, fields=within)
    return found
