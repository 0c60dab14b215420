"""A study file that says only how it differs from another one."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from fractionate.config.vary import Plain

EXTENDS = "extends"
_WHOLE = ("vary", "hypotheses")
"""Fields that a file replaces as a whole: a factor of the other file is none of this one."""


def extended(
    tree: Mapping[str, Any], path: Path, read: Callable[[Path], dict[str, Any]]
) -> dict[str, Any]:
    """A study file's tree with the one it extends underneath.

    Mappings are merged field by field; a part of another `kind`, `vary` and `hypotheses` are
    replaced as a whole. Relative paths inside the extended file count from its own folder.

    Args:
        tree: The file as written; `extends` names the other one, relative to `path`'s folder.
        path: The file.
        read: Reads the other file, whatever that one extends included.

    Raises:
        ValueError: `extends` is not the name of a file.
    """
    own = dict(tree)
    if EXTENDS not in own:
        return own
    other = own.pop(EXTENDS)
    if not isinstance(other, str):
        raise ValueError(  # noqa: TRY004 - a wrong value of the file
            f"{path}: extends: name one study file, relative to this one's folder"
        )
    under = read(path.parent / other)
    kept = {name: value for name, value in under.items() if not (name in _WHOLE and name in own)}
    return _merged(kept, own)


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    return {**under, **{name: _over(under.get(name), value) for name, value in over.items()}}


def _over(below: Plain, value: Plain) -> Plain:
    """A value on top of another: a mapping of the same part adds to it, else it takes its place."""
    if not (isinstance(below, dict) and isinstance(value, dict)):
        return value
    lower, upper = cast(dict[str, Any], below), cast(dict[str, Any], value)
    same = "kind" not in upper or upper["kind"] == lower.get("kind")
    return _merged(lower, upper) if same else upper
