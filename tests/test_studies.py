"""Every study file that ships is valid, and the sandbox's can be planned as they are."""

from pathlib import Path

import pytest

import fractionate

STUDIES = Path(__file__).parent.parent / "studies"
FILES = sorted(STUDIES.rglob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(STUDIES).as_posix())
def test_a_shipped_study_is_valid(path: Path):
    assert fractionate.load_study(path).name == path.stem


@pytest.mark.parametrize("path", sorted((STUDIES / "sandbox").glob("*.yaml")), ids=lambda p: p.stem)
def test_a_sandbox_study_plans_each_cell_once(path: Path):
    plan = fractionate.plan(path)
    levels = [len(levels) for levels in plan.study.vary.values()]
    cells = len(plan.study.seeds)
    for count in levels:
        cells *= count
    assert len({cell.name for cell in plan.cells}) == len(plan.cells) == cells
    assert len({stage.key for stage in plan.stages}) == len(plan.stages)
