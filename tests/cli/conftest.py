"""Folders with a small pair of models, a data file and a study, before and after its run."""

from pathlib import Path

import pytest
from small_study import invoke, write_rows, write_study

import tiny


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pair, the data and the study; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("workplace")
    tiny.save_pair(folder)
    write_rows(folder / "rows.jsonl")
    write_study(folder)
    return folder


@pytest.fixture(scope="session")
def finished(workplace: Path) -> Path:
    """The store of the finished study; tests leave it as it is."""
    result = invoke("run", workplace / "study.yaml", "--store", workplace / "runs")
    assert result.exit_code == 0, result.stderr
    return workplace / "runs"


@pytest.fixture
def place(workplace: Path, tmp_path: Path) -> Path:
    """A folder of a test's own, with the same pair and data."""
    for name in ("student", "teacher", "rows.jsonl"):
        (tmp_path / name).symlink_to(workplace / name)
    return tmp_path
