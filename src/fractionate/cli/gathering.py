"""Where records come from: study files, stores, and folders of exported records, in any mixture."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fractionate.cli.errors import BadInputError

if TYPE_CHECKING:
    from fractionate.analysis.archive import Archive

REPORTS = Path("reports")


@dataclass(frozen=True)
class Gathered:
    """The records of one study, and where its report goes if nobody says otherwise.

    Attributes:
        archive: The study with its records.
        reports: Folder.
    """

    archive: "Archive"
    reports: Path


def gathered(
    sources: Sequence[Path], store: Path, overrides: list[str] | None = None
) -> list[Gathered]:
    """The studies of all sources, in their order.

    A source is a study file, a store that holds one study, a folder of exported records, or a
    folder of such folders.

    Raises:
        BadInputError: Nothing of a study is finished, or a study is named twice.
        ArchiveError: Exported records cannot be read.
        StudyFileError: A study file is impossible.
        StoreError: A store holds no study, or several.
    """
    found = [each for source in sources for each in _of(source, store, overrides)]
    names = [each.archive.study.name for each in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInputError(f"the study '{twice}' comes from two sources. Name one of them")
    return found


def _by_number(folder: Path) -> list[tuple[int, str]]:
    """As people sort names: e2 before e10."""
    parts = re.split(r"(\d+)", folder.name)
    return [(int(part), "") if part.isdigit() else (0, part) for part in parts]


def _of(source: Path, store: Path, overrides: list[str] | None) -> list[Gathered]:
    from fractionate.analysis.archive import is_archive, read_archive
    from fractionate.cli.results import opened

    if source.is_dir():
        within = sorted(filter(is_archive, source.iterdir()), key=_by_number)
        folders = [source] if is_archive(source) else within
        if folders:
            return [Gathered(read_archive(folder), REPORTS) for folder in folders]
    results = opened(source, store, overrides)
    return [Gathered(results.archive(), results.store.root / "reports")]
