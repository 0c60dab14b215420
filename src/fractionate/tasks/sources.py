"""Rows of a source, wherever it is: a file, a folder, or a dataset on the hub.

Files are read here, so that a fault has a line. Folders and hub datasets are read by `datasets`,
which keeps what it fetched in its own cache; with HF_HUB_OFFLINE=1 it takes the cached copy only.
Whatever a source leaves out by its own conditions is counted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fractionate.config.source import LongestText, Source
from fractionate.tasks.table_files import Row, TableError, read_rows

_SAVED = ("state.json", "dataset_dict.json")  # written by save_to_disk
_PACKAGES = "Install it with: pip install 'fractionate[data]'"


def source_rows(source: Source, *, field: str, left_out: Counter[str]) -> Iterator[Row]:
    """The rows of a source that meet its conditions, in its order.

    Args:
        source: Where they are, and which are wanted.
        field: What names it in a study, e.g. "task.source", for messages.
        left_out: Takes how many rows a condition leaves out.

    Raises:
        TableError: The source cannot be reached or read, or has no such column.
    """
    counted = None if source.longest is None else _token_counter(source.longest, field=field)
    for row in _all_rows(source, field=field):
        if not all(
            _value(row, column, source, f"{field}.where") in _admitted(wanted)
            for column, wanted in source.where.items()
        ):
            left_out["other_rows"] += 1
        elif (
            counted is not None
            and source.longest is not None
            and _too_long(
                _value(row, source.longest.column, source, f"{field}.longest.column"),
                source.longest,
                counted,
            )
        ):
            left_out["too_long"] += 1
        else:
            yield row


def no_column(row: Row, column: str, source: Source, field: str) -> TableError:
    """That a row lacks a column, and which it has."""
    there = ", ".join(sorted(map(str, row.values))) or "none"
    return TableError(
        f"{field}: {source.location}, {row.place} has no column '{column}'. Columns there: {there}"
    )


def _admitted(wanted: object) -> tuple[object, ...]:
    return wanted if isinstance(wanted, tuple) else (wanted,)


def _value(row: Row, column: str, source: Source, field: str) -> Any:
    there, value = row.find(column)
    if not there:
        raise no_column(row, column, source, field)
    return value


def _all_rows(source: Source, *, field: str) -> Iterable[Row]:
    path = source.path
    if path is None:
        return _numbered(_from_hub(source, field), source)
    if path.is_dir():
        if source.subset is not None and any((path / name).is_file() for name in _SAVED):
            raise TableError(
                f"{field}.subset: {path} was written by save_to_disk and has no subsets. Remove it"
            )
        return _numbered(_from_folder(source, path, field), source)
    if source.split is not None or source.subset is not None:
        raise TableError(
            f"{field}: {path} is a file, which has neither split nor subset. Remove them, or name "
            "a folder"
        )
    return read_rows(path, field=field)


def _numbered(rows: Iterable[Mapping[str, Any]], source: Source) -> Iterator[Row]:
    which = f"row {{}} of {source.split}" if source.split else "row {}"
    return (Row(which.format(number), row) for number, row in enumerate(rows, start=1))


# ---------------------------------------------------------------- through the datasets library


def _from_hub(source: Source, field: str) -> Iterable[Mapping[str, Any]]:
    return _loaded(
        lambda library: library.load_dataset(
            source.hub, source.subset, revision=source.revision, split=source.split
        ),
        source,
        field,
        f"the dataset {source.hub} cannot be loaded from the hub or its cache",
        "Fetch it once with a connection (log in first if it is gated), or save it and name the "
        "folder: {path: ...}",
    )


def _from_folder(source: Source, folder: Path, field: str) -> Iterable[Mapping[str, Any]]:
    saved = any((folder / name).is_file() for name in _SAVED)

    def load(library: Any) -> Any:
        if not saved:  # a stream writes no copy into a cache
            return library.load_dataset(
                str(folder), source.subset, split=source.split, streaming=True
            )
        found = library.load_from_disk(str(folder))
        if source.split is None or not isinstance(found, Mapping):
            return found
        if source.split not in found:
            raise ValueError(f"its splits are {', '.join(found)}")
        return found[source.split]

    wanted = "one written by save_to_disk, or one with .parquet, .jsonl or .csv files"
    return _loaded(
        load,
        source,
        field,
        f"the folder {folder} cannot be read as a dataset",
        f"Name a folder that can: {wanted}",
    )


def _loaded(
    load: Callable[[Any], Any], source: Source, field: str, fault: str, mend: str
) -> Iterable[Mapping[str, Any]]:
    """What `load` gives, as the one split that is meant.

    Raises:
        TableError: It gives nothing; with the library's own reason in one line.
    """
    try:
        import datasets
        from datasets.exceptions import DatasetsError
    except ImportError:
        raise TableError(
            f"{field}: {source.location} is read by the package 'datasets', which is not "
            f"installed. {_PACKAGES}"
        ) from None
    try:
        found = load(datasets)
    except (OSError, ValueError, DatasetsError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise TableError(f"{field}: {fault} ({reason}). {mend}") from error
    if not isinstance(found, Mapping):
        return found
    if len(found) != 1:
        raise TableError(
            f"{field}.split: {source.location} has the splits {', '.join(found)}. Name one"
        )
    return next(iter(found.values()))


# ---------------------------------------------------------------- length in tokens


def _too_long(text: object, longest: LongestText, counted: Callable[[str], int]) -> bool:
    return isinstance(text, str) and counted(text) > longest.tokens


def _token_counter(longest: LongestText, *, field: str) -> Callable[[str], int]:
    """Counts the tokens of a text.

    Raises:
        TableError: The tokenizer cannot be loaded.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(longest.tokenizer, revision=longest.revision)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise TableError(
            f"{field}.longest.tokenizer: {longest.tokenizer} cannot be loaded ({reason}). Fetch it "
            "once with a connection, name a folder with a tokenizer.json, or remove 'longest'"
        ) from error
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))
