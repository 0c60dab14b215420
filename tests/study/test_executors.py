"""Executors: one contract for all, and what only worker processes must survive."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import fakes
import pytest
from fakes import make_study

from fractionate.study.errors import StoreError, StoreFullError
from fractionate.study.execution import InterruptedRunError, name_of, resolve_run_stage
from fractionate.study.executors import SerialExecutor, parse_executor
from fractionate.study.plan import make_plan
from fractionate.study.pool import ProcessExecutor
from fractionate.study.schedule import Failure, Schedule
from fractionate.study.store import Store


@pytest.fixture
def plan(tmp_path):
    return make_plan(make_study(tmp_path / "models", seeds=[42]))


@pytest.fixture(params=["serial", "process:1"])
def executor(request):
    return parse_executor(request.param)


class Events:
    """Takes down what an executor tells."""

    def __init__(self):
        self.seen = []

    def __call__(self, event, stage, info):
        self.seen.append((event, stage, dict(info)))

    def names(self, event):
        return {stage.name for told, stage, _ in self.seen if told == event}


def cells(plan, divergence):
    return {
        plan.cell_stages[cell.name].training
        for cell in plan.cells
        if cell.study.method.divergence.kind == divergence
    }


# ---------------------------------------------------------------- the contract


def test_every_stage_runs_once_and_its_parents_before_it(executor, plan, tmp_path):
    events = Events()
    outcome = executor.run(plan, tmp_path / "runs", fakes.write_result, events)
    store = Store(tmp_path / "runs")
    assert set(outcome.done) == {stage.key for stage in plan.stages}
    assert all(store.verify(stage.key) == "" for stage in plan.stages)
    ran = (tmp_path / "runs" / "ran.txt").read_text().split()
    assert sorted(ran) == sorted(stage.key for stage in plan.stages)
    position = {key: i for i, key in enumerate(ran)}
    for stage in plan.stages:
        assert all(position[need] < position[stage.key] for need in stage.needs)
    assert outcome.exit_code == 0
    assert events.names("done") == {stage.name for stage in plan.stages}

    again = executor.run(plan, tmp_path / "runs", fakes.write_result, events)
    assert set(again.cached) == {stage.key for stage in plan.stages}
    assert (tmp_path / "runs" / "ran.txt").read_text().split() == ran


def test_a_failure_stops_its_descendants_only(executor, plan, tmp_path):
    events = Events()
    outcome = executor.run(plan, tmp_path / "runs", "fakes:fail_on_reverse", events)
    assert outcome.failed.keys() == cells(plan, "reverse")
    assert cells(plan, "forward") <= set(outcome.done)
    evaluations = {s.key for s in plan.of_kind("cell_evaluation")}
    assert set(outcome.not_run) == evaluations - set(outcome.done)
    assert len(outcome.not_run) == 2
    assert outcome.exit_code == 3
    assert {f.message for f in outcome.failed.values()} == {"ValueError: loss is NaN at step 2"}
    assert len(events.names("not_run")) == 2
    for key in outcome.failed:
        stage = plan.stage(key)
        assert (Store(tmp_path / "runs").partial(stage) / "scratch" / "checkpoint").exists()

    mended = executor.run(plan, tmp_path / "runs", fakes.write_result)
    assert mended.exit_code == 0
    assert set(mended.cached) == set(outcome.done)


def test_a_stage_function_that_cannot_be_imported_fails_by_name(executor, plan, tmp_path):
    outcome = executor.run(plan, tmp_path / "runs", "fakes:no_such_function")
    assert not outcome.done
    for failure in outcome.failed.values():
        assert "run_stage 'fakes:no_such_function' cannot be imported" in failure.message


def test_a_stage_without_a_result_has_failed(executor, plan, tmp_path):
    outcome = executor.run(plan, tmp_path / "runs", fakes.write_nothing)
    assert not outcome.done
    assert {f.message for f in outcome.failed.values()} == {
        "the stage ended without a result in the store"
    }


def test_a_corrupt_result_is_reported_and_only_that_stage_runs_again(executor, plan, tmp_path):
    executor.run(plan, tmp_path / "runs", fakes.write_result)
    broken = plan.of_kind("cell")[0]
    (Store(tmp_path / "runs").path(broken.key) / "result.txt").write_text("other")
    events = Events()
    outcome = executor.run(plan, tmp_path / "runs", fakes.write_result, events)
    assert events.names("corrupt") == {broken.name}
    assert outcome.exit_code == 0
    ran = (tmp_path / "runs" / "ran.txt").read_text().split()
    assert ran.count(broken.key) == 2
    assert len(ran) == len(plan.stages) + 1


def test_a_disk_without_room_is_refused_before_anything_starts(
    executor, plan, tmp_path, monkeypatch
):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("fractionate.study.cost.shutil.disk_usage", lambda _: usage)
    with pytest.raises(StoreFullError, match=r"has 1000 B left\. Nothing was started"):
        executor.run(plan, tmp_path / "runs", fakes.write_result)
    assert not (tmp_path / "runs" / "ran.txt").exists()


def test_a_store_that_cannot_be_made_is_refused(executor, plan, tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(StoreError, match="is a file"):
        executor.run(plan, tmp_path / "runs", fakes.write_result)


def test_sigterm_stops_the_run_and_keeps_unfinished_work(executor, plan, tmp_path):
    def stop_when_asleep(event, stage, info):
        if event == "progress" and stage.kind == "cell" and info["total"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(InterruptedRunError) as caught:
        executor.run(plan, tmp_path / "runs", fakes.sleep_on_reverse, stop_when_asleep)
    outcome = caught.value.outcome
    assert outcome.exit_code == 130
    assert not outcome.failed
    kept = [
        path
        for path in (tmp_path / "runs" / "cell").glob("*.partial")
        if (path / "scratch" / "checkpoint").exists()
    ]
    assert kept
    assert executor.run(plan, tmp_path / "runs", fakes.write_result).exit_code == 0


def test_both_executors_write_the_same_bytes(plan, tmp_path):
    SerialExecutor().run(plan, tmp_path / "a", fakes.write_result)
    ProcessExecutor(2).run(plan, tmp_path / "b", fakes.write_result)
    for stage in plan.stages:
        a, b = (Store(tmp_path / name).path(stage.key) for name in ("a", "b"))
        assert (a / "result.txt").read_bytes() == (b / "result.txt").read_bytes()


# ---------------------------------------------------------------- serial


def test_ctrl_c_inside_a_stage_is_an_interruption_and_no_failure(plan, tmp_path):
    with pytest.raises(InterruptedRunError) as caught:
        SerialExecutor().run(plan, tmp_path / "runs", fakes.interrupt_on_reverse)
    assert not caught.value.outcome.failed
    assert caught.value.outcome.interrupted


def test_the_handler_of_sigterm_is_put_back(plan, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    SerialExecutor().run(plan, tmp_path / "runs", fakes.write_result)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_run_outside_the_main_thread_works(plan, tmp_path):
    outcomes = []
    thread = threading.Thread(
        target=lambda: outcomes.append(
            SerialExecutor().run(plan, tmp_path / "runs", fakes.write_result)
        )
    )
    thread.start()
    thread.join()
    assert outcomes[0].exit_code == 0


# ---------------------------------------------------------------- worker processes


def test_a_killed_worker_is_its_stages_failure_and_others_go_on(plan, tmp_path):
    outcome = ProcessExecutor(2).run(plan, tmp_path / "runs", "fakes:die_on_reverse")
    assert outcome.failed.keys() == cells(plan, "reverse")
    assert all("SIGKILL" in failure.message for failure in outcome.failed.values())
    assert cells(plan, "forward") <= set(outcome.done)
    assert outcome.exit_code == 3


def test_workers_compute_with_the_planned_number_of_threads(tmp_path):
    plan = make_plan(make_study(tmp_path / "models", seeds=[42], vary={}), threads=3)
    ProcessExecutor(1).run(plan, tmp_path / "runs", fakes.write_result)
    (cell,) = plan.of_kind("cell")
    assert (Store(tmp_path / "runs").path(cell.key) / "threads.txt").read_text() == "3"
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_workers_leave_when_their_parent_is_killed(plan, tmp_path):
    process = start(tmp_path, "process:1", "sleep_on_reverse")
    store = Store(tmp_path / "runs")
    reverse = [plan.stage(key) for key in cells(plan, "reverse")]
    wait_until(lambda: any(store.is_locked(stage) for stage in reverse))
    process.kill()
    process.wait()
    wait_until(lambda: not any(store.is_locked(stage) for stage in reverse))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["serial", "process:2"])
def test_kills_at_random_moments_leave_the_results_of_an_undisturbed_run(tmp_path, kind):
    plan = make_plan(make_study(tmp_path / "models", seeds=[42]))
    SerialExecutor().run(plan, tmp_path / "whole", fakes.resumable)
    kills = 0
    for attempt in range(200):
        process = start(tmp_path, kind, "resumable")
        try:
            process.wait(timeout=0.2 + 0.05 * attempt)
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            if kills == 10:
                assert start(tmp_path, kind, "resumable").wait() == 0
                break
    assert kills >= 3
    for stage in plan.stages:
        whole, broken = (Store(tmp_path / name).path(stage.key) for name in ("whole", "runs"))
        assert (whole / "manifest.json").read_bytes() == (broken / "manifest.json").read_bytes()


def start(folder, kind, function):
    code = (
        "import pathlib, sys, fakes;"
        "from fractionate.study import make_plan, parse_executor;"
        f"plan = make_plan(fakes.make_study(pathlib.Path({str(folder / 'models')!r}), seeds=[42]));"
        f"run = parse_executor({kind!r}).run(plan, pathlib.Path({str(folder / 'runs')!r}), "
        f"fakes.{function}); sys.exit(run.exit_code)"
    )
    path = os.pathsep.join(sys.path)
    return subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})


def wait_until(true, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


# ---------------------------------------------------------------- small parts


@pytest.mark.parametrize("text", ["", "ray", "serial:2", "process", "process:0", "process:-1", "p"])
def test_an_unknown_executor_is_refused_with_the_forms(text):
    with pytest.raises(ValueError, match="write 'serial', or 'process:N'"):
        parse_executor(text)


def test_executors_are_named_by_kind_and_number():
    assert parse_executor("serial") == SerialExecutor()
    assert parse_executor("process:3") == ProcessExecutor(3)


@pytest.mark.parametrize("name", ["fakes", "fakes:nothing", "no_such_module:f", "fakes:MODEL"])
def test_a_stage_function_that_is_none_is_refused(name):
    with pytest.raises(ValueError, match=f"run_stage '{name}'"):
        resolve_run_stage(name)


def test_a_function_that_no_process_can_import_is_refused():
    assert name_of(fakes.write_result) == "fakes:write_result"
    with pytest.raises(ValueError, match="top of a module"):
        name_of(lambda *_: None)


def test_the_longest_ready_cell_goes_first_after_shared_stages(plan):
    corpus, forward, reverse = (
        plan.of_kind("corpus")[0].key,
        min(cells(plan, "forward")),
        min(cells(plan, "reverse")),
    )
    stages = [stage for stage in plan.stages if stage.key in (corpus, forward, reverse)]
    cached = frozenset(stage.key for stage in plan.stages) - {corpus, forward, reverse}
    work = {corpus: 1.0, forward: 2.0, reverse: 3.0}
    schedule = Schedule(plan.stages, cached, work)
    order = []
    while (stage := schedule.next()) is not None:
        schedule.start(stage)
        schedule.finish(stage)
        order.append(stage.key)
    assert len(stages) == 3
    assert order[0] == corpus
    assert order.index(reverse) < order.index(forward)


def test_a_failed_parent_leaves_the_schedule_without_its_descendants(plan):
    (teacher,) = plan.of_kind("teacher")
    schedule = Schedule(plan.stages, frozenset(), {})
    schedule.start(teacher)
    stopped = {stage.key for stage in schedule.fail(teacher, Failure("gone", ""))}
    assert stopped == plan.descendants(teacher.key)


def test_what_another_process_finished_was_there(executor, plan, tmp_path):
    events = Events()
    outcome = executor.run(plan, tmp_path / "runs", fakes.write_elsewhere, events)
    found = {stage.key for stage in plan.of_kind("cell")}
    assert set(outcome.cached) == found
    assert set(outcome.done) == {stage.key for stage in plan.stages}
    assert events.names("cached") == {plan.stage(key).name for key in found}
    assert not events.names("cached") & events.names("done")


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import fakes
from fractionate.study.plan import make_plan
from fractionate.study.pool import ProcessExecutor
folder = Path({folder!r})
plan = make_plan(fakes.make_study(folder / "models", seeds=[42]))
ProcessExecutor(2).run(plan, folder / "runs", fakes.write_result)
"""


def test_a_script_without_a_guard_gets_one_clear_sentence(tmp_path):
    fakes.make_checkpoints(tmp_path / "models")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(fakes.__file__).parent), folder=str(tmp_path)))
    result = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 1
    assert result.stderr.count('if __name__ == "__main__":') == 1
    assert result.stderr.count("Traceback") == 1
