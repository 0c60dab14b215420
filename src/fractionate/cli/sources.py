"""What the user calls a model or a task, in the terms of the library."""

import re
from pathlib import Path
from typing import Any

from fractionate.cli.errors import BadInputError

_SANDBOX_NAME = re.compile(r"((?:qwen-)?(?:teacher|components)|bilingual|latent|naive)(-\d+)?")


def sandbox_folder(name: str) -> Path | None:
    """The folder of a sandbox model called `teacher` or `components-1`; none for other names.

    Raises:
        BadInputError: It is such a name, but the checkpoint did not come with the package.
    """
    match = _SANDBOX_NAME.fullmatch(name)
    if match is None or Path(name).exists():
        return None
    from fractionate.study.identity import BUILD_COMMAND, shipped_checkpoints

    folder = shipped_checkpoints() / f"{match[1]}{match[2] or '-0'}"
    if not (folder / "config.json").is_file():
        raise BadInputError(
            f"the sandbox model '{name}' did not come with this installation. Build it with "
            f"`{BUILD_COMMAND} {match[1]}`, and name its folder"
        )
    return folder


def located(name: str) -> str:
    """A model as the library takes it: a folder, a .gguf file or a hub id.

    Raises:
        BadInputError: It is spelt as a path, and nothing is there.
    """
    if not is_path(name) and (name.startswith((".", "/", "~")) or name.endswith(("/", ".gguf"))):
        raise BadInputError(
            f"there is no folder or file {name}. Name a model folder, a .gguf file or a hub id "
            "(owner/name)"
        )
    folder = sandbox_folder(name)
    return str(folder if folder is not None else Path(name).expanduser() if is_path(name) else name)


def is_path(name: str) -> bool:
    """Whether a name means something on this disk."""
    return Path(name).expanduser().exists()


def table_fields(path: Path, columns: dict[str, str | None]) -> dict[str, Any]:
    """The fields of a table task.

    Args:
        path: The data file.
        columns: Column names by field, and the grade; none where the user did not say.

    Raises:
        BadInputError: No column holds the prompts.
    """
    given = {field: value for field, value in columns.items() if value is not None}
    if "prompt" not in given and "messages" not in given:
        raise BadInputError(
            f"--task {path} is a data file: name the column of the prompts with --prompt, or of "
            "chat messages with --messages"
        )
    given.setdefault("grade", "exact" if "answer" in given else "none")
    return {"kind": "table", "path": str(path.resolve()), **given}
