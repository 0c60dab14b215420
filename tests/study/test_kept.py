"""Copies of studies in their store: who leaves one, and what a broken one does."""

from pathlib import Path

import pytest
from fakes import make_study

from fractionate.study.errors import StoreError
from fractionate.study.kept import keep_study, keeping, kept_studies, only_study, unreadable_copies
from fractionate.study.store import Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs")


def refused(study, store, error):
    with pytest.raises(type(error)), keeping(study, store):
        raise error


def test_a_run_that_ends_well_leaves_a_copy(tmp_path, store):
    study = make_study(tmp_path / "models")
    with keeping(study, store):
        assert only_study(store) == study
    assert only_study(store) == study


def test_a_refused_run_leaves_no_copy(tmp_path, store):
    refused(make_study(tmp_path / "models"), store, ValueError("no"))
    assert kept_studies(store) == {}


def test_a_refused_run_leaves_the_copy_of_the_run_before(tmp_path, store):
    before = make_study(tmp_path / "models")
    keep_study(before, store)
    refused(make_study(tmp_path / "models", seeds=[9]), store, StoreError("full"))
    assert only_study(store) == before


def test_an_interrupted_run_leaves_its_copy(tmp_path, store):
    study = make_study(tmp_path / "models")
    refused(study, store, KeyboardInterrupt())
    assert only_study(store) == study


def test_a_copy_can_be_read_from_any_folder(tmp_path, store, monkeypatch):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"question": "1 + 1", "answer": "2"}\n')
    monkeypatch.chdir(tmp_path)
    task = {"kind": "math", "source": ["a.jsonl", {"path": "b.jsonl"}], "test_source": "a.jsonl"}
    models = {"student": "a.jsonl", "teacher": "teacher"}
    keep_study(make_study(Path("models"), world=None, models=models, task=task), store)
    (kept,) = kept_studies(store).values()
    assert (kept.models.student, kept.models.teacher) == (str(tmp_path / "a.jsonl"), "teacher")
    assert kept.task.source[1].path == tmp_path / "b.jsonl"
    assert all(source.path.is_absolute() for source in kept.task.source)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b'{"name": "other", "budget": 3}'])
def test_a_broken_copy_is_passed_over_and_known(tmp_path, store, content):
    study = make_study(tmp_path / "models")
    broken = keep_study(study, store).with_name("broken.json")
    broken.write_bytes(content)
    assert only_study(store) == study
    assert unreadable_copies(store) == (str(broken),)


def test_a_store_with_nothing_but_a_broken_copy_names_it(store):
    store.prepare()
    (store.root / "studies").mkdir()
    (store.root / "studies" / "broken.json").write_text("{")
    with pytest.raises(StoreError, match=r"no copy of a study that can be read .*broken\.json"):
        only_study(store)
