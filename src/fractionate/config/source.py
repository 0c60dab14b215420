"""Where rows of data are: a file, a folder, or a dataset on the hub."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from fractionate.config.base import Config

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_Value = str | int | bool


class LongestText(Config):
    """Leave out rows whose text in one column is long.

    Attributes:
        column: The column.
        tokens: Most tokens, special ones not counted.
        tokenizer: Which tokenizer counts: hub id, folder or `tokenizer.json` file.
        revision: Commit or tag of the tokenizer on the hub.
    """

    column: str
    tokens: PositiveInt
    tokenizer: str
    revision: str | None = None


class Source(Config):
    """Rows of a dataset: of a local path, or of the hub.

    Attributes:
        path: A .jsonl, .csv, .parquet or .json file, or a folder: one written by `save_to_disk`, or
            one with such files.
        hub: Dataset on the hub, owner/name.
        subset: Its configuration, where it has several.
        split: Its split; none takes the only one there is.
        revision: Commit or tag on the hub.
        where: Only rows with these values, by column; a dotted name reaches into nested columns,
            and a list of values admits each of them.
        longest: Only rows whose text is short enough.
        limit: At most so many rows, chosen by `split_seed` among those that can be used.
    """

    path: Path | None = None
    hub: str | None = None
    subset: str | None = None
    split: str | None = None
    revision: str | None = None
    where: Mapping[str, _Value | tuple[_Value, ...]] = Field(default_factory=dict)
    longest: LongestText | None = None
    limit: PositiveInt | None = None

    @model_validator(mode="after")
    def _one_place(self) -> "Source":
        if (self.path is None) == (self.hub is None):
            raise ValueError(
                "a source takes exactly one of 'path' (a file or folder) and 'hub' (owner/name)"
            )
        if self.hub is not None and not _HUB_ID.fullmatch(self.hub):
            raise ValueError(f"hub '{self.hub}' is no id of a dataset: write owner/name, or 'path'")
        if self.path is not None and self.revision is not None:
            raise ValueError("revision belongs to a dataset on the hub: remove it, or set 'hub'")
        return self

    @property
    def location(self) -> str:
        """The path or the hub id, for messages."""
        return self.hub if self.hub is not None else str(self.path)


def _several(given: Any) -> Any:
    """One source stands for a list of one, and a text for its path."""
    if isinstance(given, str | Path | Mapping | Source):
        return _several([given])
    if not isinstance(given, list | tuple):
        return given
    items = cast(Sequence[Any], given)
    return tuple({"path": item} if isinstance(item, str | Path) else item for item in items)


Sources = Annotated[tuple[Source, ...], BeforeValidator(_several)]
"""One source or a list of them; a plain text is a path."""
