"""What a study reads from outside: where it is, and what it is by content.

A local model or data file is known by the SHA-256 of its bytes, so that a copy elsewhere is the
same input and an edited one is another; a model on the hub is known by its id and revision.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import fractionate
from fractionate.config import Harness, Models, SandboxWorld, Study, StudyFileError
from fractionate.config import Source as DataSource

BUILD_COMMAND = "fractionate sandbox build"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_DESCRIPTIVE = frozenset(
    {"README.md", "origin.json", "evaluation.json", "provenance.json", "timing.jsonl"}
)
_MEASURED_ON_BENCHMARKS = frozenset(
    {"preflight", "base_evaluation", "teacher_evaluation", "cell_evaluation"}
)
_hashes: dict[tuple[str, int, int], str] = {}


@dataclass(frozen=True)
class Source:
    """An input from outside the store.

    Attributes:
        location: Path or hub id, for loading; no part of any key.
        identity: What it is: `{"sha256": ...}`, or `{"hub": id, "revision": ...}`.
    """

    location: str
    identity: Mapping[str, str | None]


def shipped_checkpoints() -> Path:
    """Folder of the sandbox models that come with the package."""
    return Path(fractionate.__file__).parent / "models" / "sandbox_checkpoints"


def student_source(study: Study, base: int = 0) -> str:
    """Path or hub id of a student base.

    Raises:
        StudyFileError: A sandbox checkpoint is missing; says how to build it.
    """
    if study.world is not None:
        return str(_sandbox_checkpoint(study.world, "students", base))
    return _models(study).student


def teacher_source(study: Study) -> str:
    """Path or hub id of the teacher; the student's own if `models.teacher` is "student".

    Raises:
        StudyFileError: A sandbox checkpoint is missing; says how to build it.
    """
    if study.world is not None:
        return str(_sandbox_checkpoint(study.world, "teacher", 0))
    models = _models(study)
    return models.student if models.teacher == "student" else models.teacher


def student_input(study: Study, base: int = 0) -> Source:
    """A student base by content.

    Raises:
        StudyFileError: It is missing or no model; names the field.
    """
    revision = study.models.student_revision if study.models is not None else None
    field = "models.student" if study.models is not None else "world.checkpoints"
    return identify_model(student_source(study, base), revision, field=field)


def teacher_input(study: Study) -> Source:
    """The teacher by content.

    Raises:
        StudyFileError: It is missing or no model; names the field.
    """
    field, revision = "world.checkpoints", None
    if study.models is not None:
        own = study.models.teacher == "student"
        field = "models.student" if own else "models.teacher"
        revision = study.models.student_revision if own else study.models.teacher_revision
    return identify_model(teacher_source(study), revision, field=field)


def data_inputs(study: Study, *, role: str = "data", field: str = "task") -> dict[str, Source]:
    """The data of the task, by role and field: `data.path`, `data.source.1`; none if generated.

    Local data is known by its content, a dataset on the hub by its id and revision.

    Args:
        study: Whose task.
        role: First part of the names.
        field: What names the task in the study file, for messages.

    Raises:
        StudyFileError: A file or folder is missing.
    """
    if study.task.kind == "countdown":
        return {}
    return {
        f"{role}.{name}": _identify_data(source, field=f"{field}.{name}")
        for name, source in study.task.inputs.items()
    }


def _identify_data(source: DataSource, *, field: str) -> Source:
    path = source.path
    if path is None:
        return Source(source.location, {"hub": source.hub, "revision": source.revision})
    if path.is_file():
        return Source(str(path), {"sha256": hash_file(path, field=field)})
    if not path.is_dir():
        raise StudyFileError(
            f"{field}: no such file: {path}. Relative paths count from the study file's folder; a "
            "dataset on the hub is written as {hub: owner/name}"
        )
    identity: dict[str, str | None] = {"sha256": hash_folder(path, field=field)}
    card = path / "README.md"  # it may say which files are which split
    if card.is_file():
        identity["card"] = hash_file(card, field=field)
    return Source(str(path), identity)


def benchmark_inputs(study: Study, kind: str) -> dict[str, Source]:
    """The folder of benchmark tasks of one's own, by content, for stages that measure models.

    Raises:
        StudyFileError: The folder is missing.
    """
    forgetting, measures = study.evaluate.forgetting, kind in _MEASURED_ON_BENCHMARKS
    if not (measures and isinstance(forgetting, Harness) and forgetting.include is not None):
        return {}
    field, folder = "evaluate.forgetting.include", forgetting.include
    if not folder.is_dir():
        raise StudyFileError(f"{field}: no such folder: {folder}")
    return {"benchmarks": Source(str(folder), {"sha256": hash_folder(folder, field=field)})}


def identify_model(source: str, revision: str | None, *, field: str) -> Source:
    """A model by content, or by id and revision if it is on the hub.

    Raises:
        StudyFileError: `source` is neither a model folder, a .gguf file nor a possible hub id.
    """
    path = Path(source)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise StudyFileError(
                f"{field}: {path} has no config.json, so it is no model folder. Save the model "
                "with save_pretrained, or name another folder"
            )
        return Source(source, {"sha256": hash_folder(path, field=field)})
    if path.is_file():
        if path.suffix != ".gguf":
            raise StudyFileError(
                f"{field}: {path} is a file of a kind that cannot be loaded. Name a model folder, "
                "a .gguf file or a hub id"
            )
        return Source(source, {"sha256": hash_file(path, field=field)})
    if path.suffix == ".gguf" or not _HUB_ID.fullmatch(source):
        raise StudyFileError(
            f"{field}: no such file or folder: {source}. Relative paths count from the study "
            "file's folder; a hub id reads owner/name"
        )
    return Source(source, {"hub": source, "revision": revision})


def hash_file(path: Path, *, field: str) -> str:
    """SHA-256 of a file; remembered in this process while size and time stay the same.

    Raises:
        StudyFileError: The file cannot be read; names the field.
    """
    try:
        stat = path.stat()
        known = (str(path.resolve()), stat.st_size, stat.st_mtime_ns)
        if known not in _hashes:
            with path.open("rb") as file:
                _hashes[known] = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StudyFileError(f"{field}: {path} cannot be read ({error.strerror})") from None
    return _hashes[known]


def hash_folder(folder: Path, *, field: str) -> str:
    """SHA-256 over names and contents of all files below a folder.

    Hidden files and descriptions (README, provenance, evaluation) do not count.

    Raises:
        StudyFileError: A file cannot be read, or there is none; names the field.
    """
    digest = hashlib.sha256()
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in _DESCRIPTIVE
    )
    kept = [name for name in names if not any(part.startswith(".") for part in name.split("/"))]
    if not kept:
        raise StudyFileError(f"{field}: the folder {folder} is empty")
    for name in kept:
        digest.update(f"{name}\0{hash_file(folder / name, field=field)}\n".encode())
    return digest.hexdigest()


def _models(study: Study) -> Models:
    if study.models is None:
        raise ValueError("a study without a world has models")
    return study.models


def _sandbox_checkpoint(
    world: SandboxWorld, role: Literal["teacher", "students"], number: int
) -> Path:
    folder = world.checkpoints if world.checkpoints is not None else shipped_checkpoints()
    kind = world.teacher if role == "teacher" else world.students
    name = kind if world.family == "llama" else f"{world.family}-{kind}"
    path = folder / f"{name}-{number}"
    if path.is_dir():
        return path
    field = "world.checkpoints" if world.checkpoints is not None else f"world.{role}"
    others = sorted(child.name for child in folder.glob(f"{name}-*") if child.is_dir())
    mend = f"Build it with `{BUILD_COMMAND} {name}`"
    if others and role == "students":
        mend += f", or set world.bases: {len(others)} (there: {', '.join(others)})"
    raise StudyFileError(f"{field}: there is no sandbox model '{path.name}' in {folder}. {mend}")
