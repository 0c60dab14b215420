"""The records that ship are those of the studies that ship, and the results page is theirs."""

from pathlib import Path

import pytest

import fractionate
from fractionate.analysis.archive import read_archive
from fractionate.analysis.course import course_table, rlvr_table
from fractionate.analysis.results_page import results_page
from fractionate.cli.gathering import gathered

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "studies" / "sandbox" / "records"
STUDIES = sorted(
    path for path in (ROOT / "studies/sandbox").glob("*.yaml") if path.stem not in ("demo", "smoke")
)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_sandbox_study_has_records_of_all_its_cells(path: Path):
    archive = read_archive(RECORDS / path.stem)
    plan = fractionate.plan(path)
    assert archive.study == plan.study
    assert [cell.cell for cell in archive.cells] == [cell.name for cell in plan.cells]
    assert archive.expected == tuple(cell.name for cell in plan.cells)


def test_every_step_evaluated_has_a_column():
    table = course_table(read_archive(RECORDS / "e1_main").runs())
    assert [column.label for column in table.columns[1:4]] == [
        "accuracy, % · 0",
        "accuracy, % · 50",
        "accuracy, % · 150",
    ]
    assert len({row.cells[1] for row in table.rows}) == 1  # all arms start from the same students


def test_without_a_step_between_the_ends_there_is_no_course():
    assert course_table(read_archive(RECORDS / "e16_precision").runs()) is None


def test_rlvr_begins_at_the_accuracy_that_distillation_ended_with():
    runs = read_archive(RECORDS / "e9_rlvr").runs()
    ended = [
        f"{100 * sum(r.final['accuracy'].value for r in runs.of(arm)) / len(runs.of(arm)):.1f}"
        for arm in runs.arms
    ]
    assert [row.cells[2] for row in rlvr_table(runs).rows] == ended


def test_without_rlvr_there_is_no_table_of_it():
    assert rlvr_table(read_archive(RECORDS / "e16_precision").runs()) is None


@pytest.mark.slow
def test_the_results_page_is_made_from_the_records():
    studies = [each.archive for each in gathered([RECORDS], ROOT / "runs")]
    assert results_page(studies) == (ROOT / "docs/results.md").read_text(encoding="utf-8")
