"""The store: whole or not at all, computed once, checked by contents, clear when it cannot."""

import errno
import json
import signal
import subprocess
import sys
import threading
import time

import pytest
from fakes import make_study

from fractionate.study import cleaning
from fractionate.study import store as store_module
from fractionate.study.errors import StoreError, StoreFullError
from fractionate.study.plan import make_plan
from fractionate.study.store import SCHEMA_VERSION, Store
from fractionate.study.workspace import read_progress


@pytest.fixture
def stage(tmp_path):
    return make_plan(make_study(tmp_path / "models")).of_kind("cell")[0]


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs")


def finish(store, stage, text="weights"):
    with store.open_stage(stage) as work:
        (work.path / "model").mkdir(exist_ok=True)
        (work.path / "model" / "weights.bin").write_text(text)


def break_off(store, stage, error):
    with store.open_stage(stage) as work:
        (work.scratch / "step-2").write_text("half way")
        work.progress(2, 4)
        raise error


def test_a_finished_stage_is_a_folder_with_a_manifest(store, stage):
    finish(store, stage)
    assert store.is_done(stage.key)
    folder = store.path(stage.key)
    assert folder == store.root / "cell" / stage.key[:16]
    manifest = store.manifest(stage.key)
    assert manifest["schema_version"] == SCHEMA_VERSION
    assert manifest["key"] == stage.key
    assert manifest["config"] == stage.config
    assert list(manifest["files"]) == ["model/weights.bin"]
    assert manifest["files"]["model/weights.bin"]["size"] == 7
    assert json.loads((folder / "provenance.json").read_text())["name"] == stage.name


def test_an_unfinished_stage_is_not_there(store, stage):
    assert not store.is_done(stage.key)
    with pytest.raises(KeyError, match=stage.key[:16]):
        store.path(stage.key)
    with store.open_stage(stage) as work:
        (work.path / "a").write_text("a")
        assert not store.is_done(stage.key)


def test_the_manifest_of_a_repeated_stage_has_the_same_bytes(tmp_path, stage):
    first, second = Store(tmp_path / "a"), Store(tmp_path / "b")
    finish(first, stage)
    finish(second, stage)
    a, b = (s.path(stage.key) / "manifest.json" for s in (first, second))
    assert a.read_bytes() == b.read_bytes()


def test_an_interruption_keeps_the_work_and_the_next_attempt_goes_on(store, stage):
    with pytest.raises(KeyboardInterrupt):
        break_off(store, stage, KeyboardInterrupt())
    assert store.read_error(stage) is None
    assert not store.is_done(stage.key)
    with store.open_stage(stage) as work:
        assert (work.scratch / "step-2").read_text() == "half way"
        (work.path / "result").write_text("whole")
    assert {path.name for path in store.path(stage.key).iterdir()} == {
        "manifest.json", "provenance.json", "result"
    }  # fmt: skip


def test_a_failure_keeps_its_error_and_its_last_checkpoint(store, stage):
    with pytest.raises(ValueError, match="NaN"):
        break_off(store, stage, ValueError("loss is NaN at step 3"))
    assert "loss is NaN at step 3" in (store.read_error(stage) or "")
    assert (store.partial(stage) / "scratch" / "step-2").exists()
    finish(store, stage)
    assert store.read_error(stage) is None


def test_a_finished_stage_is_not_computed_again(store, stage):
    finish(store, stage)
    with store.open_stage(stage) as work:
        assert work.done
        assert work.path == store.path(stage.key)


def test_timings_lie_outside_the_checksums(store, stage):
    with store.open_stage(stage) as work:
        (work.path / "result").write_text("x")
        work.time({"step": 1, "seconds": 0.5})
    assert list(store.manifest(stage.key)["files"]) == ["result"]
    assert (store.path(stage.key) / "timing.jsonl").exists()
    (store.path(stage.key) / "timing.jsonl").write_text("")
    assert store.verify(stage.key) == ""


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda folder: (folder / "model" / "weights.bin").write_text("weightz"), "has changed"),
        (lambda folder: (folder / "model" / "weights.bin").write_text("w"), "1 bytes instead of 7"),
        (lambda folder: (folder / "model" / "weights.bin").unlink(), "is missing"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json cannot be read"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json cannot be read"),
    ],
)
def test_damage_is_found_and_only_that_stage_is_computed_again(store, stage, damage, problem):
    finish(store, stage)
    damage(store.path(stage.key))
    assert problem in store.verify(stage.key)
    assert store.inspect(stage.key) == "corrupt"
    told = store.set_aside(stage)
    assert problem in told["problem"]
    assert store.inspect(stage.key) == "missing"
    assert len(list((store.root / "corrupt").iterdir())) == 1
    finish(store, stage)
    assert store.inspect(stage.key) == "done"


def test_opening_a_corrupt_stage_moves_it_aside(store, stage):
    finish(store, stage)
    (store.path(stage.key) / "model" / "weights.bin").write_text("weightz")
    finish(store, stage)
    assert store.verify(stage.key) == ""
    assert [path.name for path in (store.root / "corrupt").iterdir()] == [f"cell-{stage.short}-0"]


def test_nothing_is_set_aside_that_is_whole(store, stage):
    finish(store, stage)
    assert store.set_aside(stage) == {}
    assert store.is_done(stage.key)


def test_a_full_disk_while_working_is_one_clear_error(store, stage, tmp_path):
    other = make_plan(make_study(tmp_path / "models")).of_kind("corpus")[0]
    finish(store, other)
    with pytest.raises(StoreFullError, match=r"is full\. Finished stages are whole"):
        break_off(store, stage, OSError(errno.ENOSPC, "No space left on device"))
    assert store.is_done(other.key)
    assert (store.partial(stage) / "scratch" / "step-2").exists()
    finish(store, stage)


def test_a_full_disk_that_a_library_reports_in_its_own_words_is_recognised(store, stage):
    with pytest.raises(StoreFullError), store.open_stage(stage):
        raise RuntimeError("write failed: No space left on device (os error 28)")


def test_a_full_disk_at_the_manifest_loses_nothing(store, stage, monkeypatch):
    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    store.prepare()
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_whole", full)
        with pytest.raises(StoreFullError):
            finish(store, stage)
    assert not store.is_done(stage.key)
    finish(store, stage)
    assert store.is_done(stage.key)


def test_a_store_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(StoreError, match=r"runs is a file\. Name a folder"):
        Store(tmp_path / "runs")


def test_a_store_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written to"):
        Store(tmp_path / "file" / "runs").prepare()


def test_reading_a_store_makes_nothing(tmp_path, stage):
    store = Store(tmp_path / "runs")
    assert store.inspect(stage.key) == "missing"
    assert store.keys() == ()
    assert not (tmp_path / "runs").exists()


def rewrite(store, stage, **changes):
    path = store.path(stage.key) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_manifest_of_a_newer_version_is_refused(store, stage):
    finish(store, stage)
    rewrite(store, stage, schema_version=SCHEMA_VERSION + 1)
    with pytest.raises(StoreError, match="Update Fractionate"):
        store.is_done(stage.key)


def test_a_store_of_a_newer_version_is_refused(store, stage):
    store.prepare()
    (store.root / "store.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION + 1}))
    with pytest.raises(StoreError, match="Update Fractionate"):
        Store(store.root)


def test_older_manifests_are_read(store, stage, monkeypatch):
    finish(store, stage)
    files = store.manifest(stage.key)["files"]
    rewrite(store, stage, schema_version=0, files=None, sums=files)

    def upgrade(manifest):
        return {**manifest, "files": manifest["sums"], "schema_version": 1}

    monkeypatch.setattr(store_module, "_UPGRADES", {0: upgrade})
    assert store.is_done(stage.key)
    assert store.manifest(stage.key)["files"] == files


def test_show_finds_a_stage_by_the_start_of_its_key(store, stage):
    finish(store, stage)
    assert store.show(stage.key[:6])["key"] == stage.key
    assert store.show(stage.key)["provenance"]["name"] == stage.name
    with pytest.raises(StoreError, match="no finished stage"):
        store.show("zzzz")


def test_show_names_all_stages_that_a_prefix_fits(store, tmp_path):
    a, b = make_plan(make_study(tmp_path / "models")).of_kind("cell")[:2]
    finish(store, a)
    finish(store, b)
    with pytest.raises(StoreError, match="fits several stages"):
        store.show("")


def test_gc_removes_what_is_not_kept_and_says_how_much(store, tmp_path):
    kept, dropped, begun = make_plan(make_study(tmp_path / "models")).of_kind("cell")[:3]
    finish(store, kept)
    finish(store, dropped)
    with pytest.raises(KeyboardInterrupt), store.open_stage(begun):
        raise KeyboardInterrupt
    removed = store.gc({kept.key})
    assert set(removed.names) == {f"cell/{dropped.short}", f"cell/{begun.short}.partial"}
    assert removed.bytes > 7
    assert store.keys() == (kept.key,)


def test_gc_leaves_work_that_a_process_holds(store, stage):
    with store.open_stage(stage) as work:
        (work.path / "a").write_text("a")
        assert store.gc(set()).names == ()
    assert store.is_done(stage.key)


def test_a_second_process_waits_and_then_finds_the_stage_done(store, stage):
    """Two threads with a lock each stand for two processes: the lock is the file's."""
    order = []

    def second():
        with Store(store.root).open_stage(stage, lambda: order.append("waiting")) as work:
            order.append(f"done {work.done}")

    with store.open_stage(stage) as work:
        thread = threading.Thread(target=second)
        thread.start()
        while not order:
            time.sleep(0.01)
        (work.path / "a").write_text("a")
        order.append("finished")
    thread.join()
    assert order == ["waiting", "finished", "done True"]


def test_a_killed_process_leaves_no_lock(store, stage):
    store.prepare()
    lock = cleaning.lock_path(store.root, stage.kind, stage.short)
    code = (
        f"import filelock, time; lock = filelock.FileLock({str(lock)!r}); lock.acquire();"
        "print(1, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        held = store.is_locked(stage)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert held
    assert not store.is_locked(stage)
    finish(store, stage)


def test_progress_is_read_while_the_stage_runs(store, stage):
    with store.open_stage(stage) as work:
        work.progress(1, 4)
        work.progress(2, 4)  # within the same second: not worth a write
        early = read_progress(store.partial(stage))
        work.progress(4, 4)
        state = read_progress(store.partial(stage))
    assert early is not None
    assert early["step"] == 1
    assert state is not None
    assert (state["step"], state["total"], state["first_step"]) == (4, 4, 1)
