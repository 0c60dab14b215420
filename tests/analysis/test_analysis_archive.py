import json
from dataclasses import replace
from pathlib import Path

import pytest
from planted import RATE, planted, study

from fractionate.analysis.archive import (
    Archive,
    ArchiveError,
    is_archive,
    read_archive,
    write_archive,
)
from fractionate.analysis.background import Background, Example
from fractionate.analysis.report import render_report
from fractionate.analysis.results_page import results_page
from fractionate.analysis.runs import IncompleteStudyError
from fractionate.records import CellResult, EvalRecord, RlvrRecord

UPDATE = RlvrRecord(
    step=1, lr=1e-3, loss=0.1, grad_norm=1 / 3, completions=4, reward=None, reward_sd=None,
    correct=0, unanswered=0, truncated=0, silent_groups=None, mean_length=None,
    tokens_generated=0, prompt_tokens=0, entropy=0.5, clipped=0.0,
)  # fmt: skip
HELD_OUT = EvalRecord("accuracy", "a", 0.5, 1, 1, 1, 0, 0, 9, reasons={"right": 1})


@pytest.fixture(scope="module")
def archive() -> Archive:
    cells = list(planted(seeds=(42, 43), items=20, steps=3, accuracy={RATE: 0.2}))
    profiled = replace(cells[0].steps[0], profile={"forward_kl": [0.1, 1 / 3]})
    cells[0] = replace(
        cells[0],
        steps=(profiled, *cells[0].steps[1:]),
        rlvr=(UPDATE,),
        rlvr_evaluations={0: (HELD_OUT,)},
    )
    background = Background(
        plan_key="01" * 32,
        confounds=("One thing also changes another.",),
        teacher=cells[0].evaluations[150],
        examples=(Example("a cell", "1 2 : 3", "1 + 2", "right"),),
        provenance={
            "runs": [{"packages": {"torch": "2.13"}, "python": "3.11", "commit": "abc"}],
            "finished": {"first": "2026-01-01T00:00:00", "last": "2026-01-01T01:00:00"},
            "seconds": 90.0,
        },
    )
    return Archive(study(seeds=[42, 43]), tuple(cells), tuple(c.cell for c in cells), background)


def test_reading_gives_back_what_was_written(archive: Archive, tmp_path: Path):
    write_archive(archive, tmp_path / "records")
    assert is_archive(tmp_path / "records")
    assert read_archive(tmp_path / "records") == archive


def test_a_second_export_takes_the_place_of_the_first(archive: Archive, tmp_path: Path):
    write_archive(archive, tmp_path)
    bare = tuple(replace(cell, rlvr=(), rlvr_evaluations={}) for cell in archive.cells)
    write_archive(replace(archive, cells=bare), tmp_path)
    assert read_archive(tmp_path).cells == bare
    assert not (tmp_path / "rlvr.parquet").exists()


def test_the_untrained_student_is_stored_once_per_base(archive: Archive, tmp_path: Path):
    def starting(cell: CellResult) -> CellResult:
        return replace(cell, evaluations={**cell.evaluations, 0: archive.cells[0].evaluations[0]})

    equal = replace(archive, cells=tuple(starting(cell) for cell in archive.cells))
    sizes = []
    for name, one in (("own", archive), ("equal", equal)):
        write_archive(one, tmp_path / name)
        sizes.append((tmp_path / name / "items.parquet").stat().st_size)
    assert sizes[1] < 0.8 * sizes[0]
    assert read_archive(tmp_path / "equal") == equal


def test_reports_from_exported_records_are_the_same(archive: Archive, tmp_path: Path):
    write_archive(archive, tmp_path)
    again = read_archive(tmp_path)
    assert results_page([again]) == results_page([archive])
    first, second = (render_report(one.runs(), one.background) for one in (archive, again))
    assert first == second


def test_missing_cells_are_noticed(archive: Archive):
    with pytest.raises(IncompleteStudyError, match="another"):
        replace(archive, expected=(*archive.expected, "another")).runs()


def test_broken_records_are_named(archive: Archive, tmp_path: Path):
    write_archive(archive, tmp_path)
    (tmp_path / "steps.parquet").write_bytes(b"no table")
    with pytest.raises(ArchiveError, match=r"steps\.parquet cannot be read"):
        read_archive(tmp_path)
    head = json.loads((tmp_path / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps({**head, "schema": 99}))
    with pytest.raises(ArchiveError, match="newer"):
        read_archive(tmp_path)


def test_the_page_says_what_was_run_and_what_came_of_it(archive: Archive):
    page = results_page([archive])
    for part in (
        "## The paper's claims",
        "of 40 claims are decided",
        "| C40 |",
        "## planted",
        "Run: 16 cells (2 rollout policy × 2 KL direction × 2 learning rate), seeds 42, 43",
        "When: 2026-01-01T00:00:00 to 2026-01-01T01:00:00",
        "Versions: torch 2.13, Python 3.11, commit abc",
        "### Sparsity beside rounding alone",
        "## Teachers",
    ):
        assert part in page, part
