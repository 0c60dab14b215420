"""Status: read from the store alone."""

import os

import pytest
from fakes import make_study, write_result

from fractionate.study.plan import make_plan
from fractionate.study.status import status
from fractionate.study.store import Store


@pytest.fixture
def plan(tmp_path):
    return make_plan(make_study(tmp_path / "models", seeds=[42]))


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs")


def silent(info):
    pass


def break_off(store, stage, error, *, steps=()):
    with store.open_stage(stage) as work:
        for step in steps:
            work.progress(step, 10)
            os.utime(work.path / "progress.json", (0, 0))  # as if more than a second passed
        raise error


def state_of(plan, store, stage):
    (found,) = [item for item in status(plan, store).stages if item.stage.key == stage.key]
    return found


def test_nothing_is_done_in_a_store_that_is_not_there(plan, store):
    found = status(plan, store)
    assert found.counts == {"missing": len(plan.stages)}
    assert not found.complete
    assert found.seconds_left is None
    assert not store.root.exists()


def test_finished_stages_are_counted(plan, store):
    (teacher,) = plan.of_kind("teacher")
    write_result(teacher, store, silent)
    assert state_of(plan, store, teacher).state == "done"
    assert f"1 of {len(plan.stages)} stages done" in status(plan, store).describe()


def test_a_failed_stage_shows_its_error(plan, store):
    cell = plan.of_kind("cell")[0]
    with pytest.raises(ValueError, match="NaN"):
        break_off(store, cell, ValueError("loss is NaN at step 3"))
    found = state_of(plan, store, cell)
    assert found.state == "failed"
    assert "loss is NaN at step 3" in (found.error or "")
    assert "ValueError: loss is NaN at step 3" in status(plan, store).describe()


def test_an_interrupted_stage_shows_its_step(plan, store):
    cell = plan.of_kind("cell")[0]
    with pytest.raises(KeyboardInterrupt):
        break_off(store, cell, KeyboardInterrupt(), steps=[1, 3])
    found = state_of(plan, store, cell)
    assert (found.state, found.step, found.steps) == ("partial", 3, 10)
    assert found.seconds_left is not None


def test_a_stage_that_some_process_holds_is_running(plan, store):
    cell = plan.of_kind("cell")[0]
    with store.open_stage(cell):
        assert state_of(plan, store, cell).state == "running"


def test_a_damaged_stage_is_corrupt(plan, store):
    (teacher,) = plan.of_kind("teacher")
    write_result(teacher, store, silent)
    (store.path(teacher.key) / "result.txt").write_text("other")
    assert state_of(plan, store, teacher).state == "corrupt"


def test_the_time_left_follows_stages_of_the_same_kind(plan, store, monkeypatch):
    monkeypatch.setattr(Store, "seconds", lambda *_: 8.0)
    for stage in plan.stages[:-3]:
        write_result(stage, store, silent)
    alone, together = status(plan, store), status(plan, store, workers=2)
    assert alone.seconds_left is not None
    assert together.seconds_left == alone.seconds_left / 2
    assert "s to go" in alone.describe()


def test_a_complete_study_has_no_time_left(plan, store):
    for stage in plan.stages:
        write_result(stage, store, silent)
    found = status(plan, store)
    assert found.complete
    assert found.seconds_left == 0
    assert found.to_dict()["counts"] == {"done": len(plan.stages)}
