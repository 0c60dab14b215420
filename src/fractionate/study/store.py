"""The store: results in folders named by their key, each written whole or not at all.

A stage works in `<root>/<kind>/<key>.partial`, which survives an interruption, so that the stage
can go on from its own checkpoints. When it ends well, a manifest with the checksum of every file is
added and the folder renamed to `<root>/<kind>/<key>`. A lock that the operating system releases on
death lets several processes share a store and compute a stage once.
"""

import contextlib
import json
import os
import time
import traceback
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from filelock import FileLock, Timeout

from fractionate.study.cleaning import Removed, is_held, lock_path, remove_unkept
from fractionate.study.errors import StoreError, StoreFullError, StoreVersionError, is_full
from fractionate.study.keys import STAGE_VERSIONS, Stage, canonical_json
from fractionate.study.provenance import provenance
from fractionate.study.workspace import Workspace, clear_transient, hash_of, write_whole

SCHEMA_VERSION = 1
CHECKED_IN_FULL = 256 * 2**20
"""Bytes up to which `inspect` checks contents; of a larger result it checks the sizes."""

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
_UPGRADES: Mapping[int, Upgrade] = {}
"""By schema version: how a manifest of that version becomes one of the next."""

State = Literal["done", "missing", "corrupt"]


class Store:
    """Results of stages by key. Making one touches no disk.

    Args:
        root: Folder of the store; it is made when the first stage is written.

    Raises:
        StoreError: `root` is a file, or a store of a newer version.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        if self.root.exists() and not self.root.is_dir():
            raise StoreError(f"store {self.root} is a file. Name a folder")
        self._check_schema()

    def _check_schema(self) -> None:
        path = self.root / "store.json"
        if not path.is_file():
            return
        try:
            version = json.loads(path.read_text(encoding="utf-8"))["schema_version"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} cannot be read ({error}). Restore it, or remove it") from None
        _refuse_newer(version, path)

    # ------------------------------------------------------------ reading

    def path(self, key: str) -> Path:
        """Folder of a finished stage.

        Raises:
            KeyError: No stage with this key is finished.
        """
        for kind in STAGE_VERSIONS:
            folder = self.root / kind / key[:16]
            if folder.is_dir():
                return folder
        raise KeyError(f"no finished stage {key[:16]} in {self.root}")

    def folder(self, stage: Stage) -> Path:
        """Where the result of a stage is, or will be."""
        return self.root / stage.kind / stage.short

    def partial(self, stage: Stage) -> Path:
        """Where a stage works."""
        return self.root / stage.kind / f"{stage.short}.partial"

    def error_path(self, stage: Stage) -> Path:
        """Where the error of a failed stage is kept."""
        return self.root / stage.kind / f"{stage.short}.error.txt"

    def is_done(self, key: str) -> bool:
        """Whether a stage is finished, all its files there and of the right size."""
        return self._problem(key, contents=False) == ""

    def inspect(self, key: str) -> State:
        """Whether a stage is finished and whole; large results are checked by size only."""
        try:
            folder = self.path(key)
        except KeyError:
            return "missing"
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        return "corrupt" if self._problem(key, contents=size <= CHECKED_IN_FULL) else "done"

    def verify(self, key: str) -> str:
        """Compare every file of a finished stage with its checksum.

        Returns:
            What is wrong, naming the file; empty if all is well.

        Raises:
            KeyError: No stage with this key is finished.
        """
        self.path(key)
        return self._problem(key, contents=True)

    def manifest(self, key: str) -> dict[str, Any]:
        """The manifest of a finished stage, of whatever schema version.

        Raises:
            KeyError: No stage with this key is finished.
            StoreError: The manifest is unreadable, or of a newer version.
        """
        path = self.path(key) / "manifest.json"
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} cannot be read ({error})") from None
        manifest = cast("dict[str, Any]", read) if isinstance(read, dict) else {}
        if "schema_version" not in manifest:
            raise StoreError(f"{path} is no manifest")
        _refuse_newer(manifest["schema_version"], path)
        while manifest["schema_version"] < SCHEMA_VERSION:
            manifest = _UPGRADES[manifest["schema_version"]](manifest)
        return manifest

    def _problem(self, key: str, *, contents: bool) -> str:
        """What is wrong with a stage, or nothing."""
        try:
            folder, manifest = self.path(key), self.manifest(key)
        except KeyError as error:
            return str(error)
        except StoreVersionError:
            raise
        except StoreError as error:
            return str(error)
        if manifest["key"] != key:
            return f"{folder} holds another stage, {manifest['key']}"
        found = (
            _file_problem(folder / name, entry, contents=contents)
            for name, entry in manifest["files"].items()
        )
        return next((problem for problem in found if problem), "")

    def read_error(self, stage: Stage) -> str | None:
        """The traceback of the last failed attempt; none if there was none since its success."""
        path = self.error_path(stage)
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def seconds(self, key: str) -> float:
        """Wall time of a finished stage, in seconds; 0 if nobody wrote it down."""
        path = self.path(key) / "provenance.json"
        if not path.is_file():
            return 0.0
        return float(json.loads(path.read_text(encoding="utf-8")).get("seconds", 0.0))

    def keys(self) -> tuple[str, ...]:
        """Keys of all finished stages with a readable manifest."""
        found: list[str] = []
        for folder in self._folders():
            with contextlib.suppress(StoreError):
                found.append(self.manifest(folder.name)["key"])
        return tuple(found)

    def show(self, prefix: str) -> dict[str, Any]:
        """Manifest, provenance and folder of the finished stage whose key starts with `prefix`.

        Raises:
            StoreError: No stage or several stages match.
        """
        matches = [folder for folder in self._folders() if folder.name.startswith(prefix[:16])]
        if len(matches) != 1:
            names = ", ".join(f"{folder.parent.name}/{folder.name}" for folder in matches)
            raise StoreError(
                f"'{prefix}' fits several stages: {names}. Give more digits"
                if matches
                else f"no finished stage in {self.root} has a key that starts with '{prefix}'"
            )
        folder = matches[0]
        path = folder / "provenance.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        return {**self.manifest(folder.name), "provenance": known, "folder": str(folder)}

    def _folders(self) -> Iterator[Path]:
        for kind in STAGE_VERSIONS:
            for folder in sorted((self.root / kind).glob("*")):
                if folder.is_dir() and not folder.suffix:
                    yield folder

    # ------------------------------------------------------------ writing

    def prepare(self) -> None:
        """Make the store if need be, and see that it can be written to.

        Raises:
            StoreError: It cannot.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            (self.root / "locks").mkdir(exist_ok=True)
            path = self.root / "store.json"
            if path.is_file():
                probe = self.root / f".probe-{os.getpid()}"
                probe.touch()
                probe.unlink()
            else:
                write_whole(path, canonical_json({"schema_version": SCHEMA_VERSION}))
        except OSError as error:
            if is_full(error):
                raise self._full() from error
            raise StoreError(
                f"store {self.root} cannot be written to ({error.strerror}). Name another folder"
            ) from error

    @contextlib.contextmanager
    def open_stage(
        self, stage: Stage, waiting: Callable[[], None] | None = None
    ) -> Generator[Workspace]:
        """Work on a stage: everything written to the workspace becomes its result.

        Another process at work on the stage is waited for; if it finished it, the workspace says
        `done` and there is nothing to do. A stage that raises keeps its folder, with the traceback
        beside it.

        Args:
            stage: What is computed.
            waiting: Called once before waiting for another process.

        Raises:
            StoreError: The store cannot be written to.
            StoreFullError: The disk is full.
        """
        self.prepare()
        with self._lock(stage, waiting):
            self._move_if_corrupt(stage)
            if self.is_done(stage.key):
                clear_transient(self.folder(stage))
                yield Workspace(self.folder(stage), done=True)
                return
            started = time.monotonic()
            workspace = Workspace(self.partial(stage), done=False)
            try:
                workspace.path.mkdir(parents=True, exist_ok=True)
                yield workspace
                self._commit(stage, workspace, time.monotonic() - started)
            except Exception as error:
                self._record_failure(stage, error)
                if is_full(error):
                    raise self._full() from error
                raise

    @contextlib.contextmanager
    def _lock(self, stage: Stage, waiting: Callable[[], None] | None) -> Generator[None]:
        lock = FileLock(lock_path(self.root, stage.kind, stage.short))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if waiting is not None:
                waiting()
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def is_locked(self, stage: Stage) -> bool:
        """Whether some process is at work on a stage now."""
        return is_held(lock_path(self.root, stage.kind, stage.short))

    def _commit(self, stage: Stage, workspace: Workspace, seconds: float) -> None:
        files = {
            path.relative_to(workspace.path).as_posix(): {
                "sha256": hash_of(path),
                "size": path.stat().st_size,
            }
            for path in workspace.files()
        }
        manifest = {"schema_version": SCHEMA_VERSION, "key": stage.key, "files": files}
        write_whole(
            workspace.path / "provenance.json", json.dumps(provenance(stage, seconds), indent=2)
        )
        write_whole(
            workspace.path / "manifest.json",
            json.dumps({**manifest, **stage.identity()}, indent=2, sort_keys=True),
        )
        workspace.path.rename(self.folder(stage))
        self.error_path(stage).unlink(missing_ok=True)
        clear_transient(self.folder(stage))

    def _record_failure(self, stage: Stage, error: Exception) -> None:
        text = "".join(traceback.format_exception(error))
        with contextlib.suppress(OSError):  # a full disk may refuse this, too
            self.error_path(stage).write_text(text, encoding="utf-8")

    def _full(self) -> StoreFullError:
        return StoreFullError(
            f"the disk of store {self.root} is full. Finished stages are whole; make room (for "
            "example with `fractionate gc`) and run again: it goes on where it stopped"
        )

    def set_aside(self, stage: Stage) -> Mapping[str, str]:
        """Move a corrupt result out of the way, so that the stage is computed again.

        Returns:
            `problem` (what is wrong) and `moved_to`: nothing is deleted. Empty if all is well.
        """
        self.prepare()
        with self._lock(stage, None):
            return self._move_if_corrupt(stage)

    def _move_if_corrupt(self, stage: Stage) -> Mapping[str, str]:
        if self.inspect(stage.key) != "corrupt":
            return {}
        problem = self._problem(stage.key, contents=True)
        folder = self.root / "corrupt"
        folder.mkdir(exist_ok=True)
        number = 0
        while (target := folder / f"{stage.kind}-{stage.short}-{number}").exists():
            number += 1
        self.folder(stage).rename(target)
        return {"problem": problem, "moved_to": str(target)}

    def gc(self, keep: Collection[str]) -> Removed:
        """Remove every result, unfinished work and corrupt folder whose key is not in `keep`.

        Work that some process holds now stays.
        """
        return remove_unkept(self.root, (*STAGE_VERSIONS, "corrupt"), keep)


def _file_problem(path: Path, entry: Mapping[str, Any], *, contents: bool) -> str:
    if not path.is_file():
        return f"{path} is missing"
    if path.stat().st_size != entry["size"]:
        return f"{path} has {path.stat().st_size} bytes instead of {entry['size']}"
    if contents and hash_of(path) != entry["sha256"]:
        return f"{path} has changed: its checksum differs"
    return ""


def _refuse_newer(version: object, path: Path) -> None:
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise StoreVersionError(
            f"{path} has schema version {version}, and this Fractionate reads up to "
            f"{SCHEMA_VERSION}. Update Fractionate, or name another store"
        )
