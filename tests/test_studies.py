"""Every study file that ships is valid and can be planned, the paper's without hub and GPU."""

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


@pytest.mark.parametrize("path", sorted((STUDIES / "paper").glob("*.yaml")), ids=lambda p: p.stem)
def test_a_paper_study_plans_with_the_sizes_of_its_models(path: Path):
    plan = fractionate.plan(fractionate.load_study(path), device="cuda")
    cost = plan.cost()
    assert cost.unknown == ()
    assert 1e18 < cost.flops < 1e21
    assert 8 * 2**30 < cost.memory < 180 * 2**30
    assert cost.disk > 2 * 1.2e9 * len(plan.cells)


def test_studies_that_speak_of_the_same_students_share_their_cells():
    def cells(name: str) -> set[str]:
        plan = fractionate.plan(STUDIES / "paper" / f"{name}.yaml")
        return {stage.key for stage in plan.of_kind("cell")}

    main = cells("e1_countdown")
    assert cells("e2_rates") > main
    assert cells("e9_rlvr") == cells("e14_thresholds") == main
    assert cells("e7_coverage") == cells("e8_harder") == cells("e3_spectrum")
