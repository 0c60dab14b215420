"""Looking at a store, proving it, taking things out and cleaning it up."""

import hashlib
import json
import shutil

import pandas as pd
import pytest
from small_study import invoke
from transformers import AutoModelForCausalLM, AutoTokenizer


@pytest.fixture
def copy(finished, tmp_path):
    """A store of the test's own."""
    return shutil.copytree(finished, tmp_path / "runs")


def _cell(store):
    return min((store / "cell").iterdir())


def test_show_prints_the_manifest(finished):
    folder = _cell(finished)
    document = json.loads(invoke("show", folder.name[:8], "--store", finished).stdout)
    assert document["kind"] == "cell"
    assert document["folder"] == str(folder)
    assert document["provenance"]["packages"]


@pytest.mark.parametrize(("key", "word"), [("zzzz", "no finished stage"), ("", "several")])
def test_show_refuses_keys_that_fit_no_stage_or_several(finished, key, word):
    result = invoke("show", key, "--store", finished)
    assert result.exit_code == 2
    assert word in result.stderr


@pytest.mark.parametrize("verb", ["show ab", "verify", "replay ab", "export ab out"])
def test_a_store_that_is_not_there_is_named(tmp_path, verb):
    result = invoke(*verb.split(), "--store", tmp_path / "gone")
    assert result.exit_code == 2
    assert "gone" in result.stderr
    assert not (tmp_path / "gone").exists()


def test_verify_finds_a_whole_store_whole(finished):
    result = invoke("verify", "--store", finished)
    assert result.exit_code == 0
    document = json.loads(invoke("verify", "--store", finished, "--json").stdout)
    assert document["corrupt"] == {}
    assert document["stages"] > 0


def test_verify_names_the_file_that_changed(copy):
    steps = _cell(copy) / "steps.jsonl"
    steps.write_bytes(steps.read_bytes().replace(b"1", b"2", 1))
    result = invoke("verify", "--store", copy)
    assert result.exit_code == 3
    assert "steps.jsonl" in result.stderr


def test_verify_names_a_manifest_that_cannot_be_read(copy):
    (_cell(copy) / "manifest.json").write_text("{")
    result = invoke("verify", "--store", copy)
    assert result.exit_code == 3
    assert "manifest.json" in result.stderr


def test_a_stage_computed_again_is_identical(finished):
    result = invoke("replay", _cell(finished).name, "--store", finished)
    assert result.exit_code == 0, result.stderr
    assert "identical" in result.stdout


def test_a_stage_that_was_forged_is_different(copy):
    folder = _cell(copy)
    steps, manifest = folder / "steps.jsonl", folder / "manifest.json"
    steps.write_bytes(steps.read_bytes().replace(b'"step":1', b'"step":7', 1))
    document = json.loads(manifest.read_text())
    document["files"]["steps.jsonl"]["sha256"] = hashlib.sha256(steps.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(document))
    result = invoke("replay", folder.name, "--store", copy)
    assert result.exit_code == 3
    assert "steps.jsonl" in result.stderr


def test_export_of_a_cell_is_a_model_folder_with_records(finished, tmp_path):
    out = tmp_path / "model"
    result = invoke("export", "kl=forward seed=1", out, "--store", finished)
    assert result.exit_code == 0, result.stderr
    AutoTokenizer.from_pretrained(out)
    trained = AutoModelForCausalLM.from_pretrained(out)
    assert trained.config.vocab_size == 32
    steps = [pd.read_parquet(path) for path in out.glob("steps-*.parquet")]
    assert [len(table) for table in steps] == [2]
    items = [pd.read_parquet(path) for path in out.glob("items-*.parquet")]
    assert [len(table) for table in items] == [8]


def test_export_takes_the_key_of_any_stage_with_records(finished, tmp_path):
    key = next((finished / "base_evaluation").iterdir()).name
    assert invoke("export", key, tmp_path / "out", "--store", finished).exit_code == 0
    assert len(list((tmp_path / "out").glob("items-*.parquet"))) == 1


def test_export_refuses_a_folder_that_holds_something(finished, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    result = invoke("export", "kl=forward seed=1", tmp_path, "--store", finished)
    assert result.exit_code == 2
    assert "not empty" in result.stderr


def test_export_refuses_a_step_that_was_not_kept(finished, tmp_path):
    out = tmp_path / "out"
    result = invoke("export", "kl=forward seed=1", out, "--store", finished, "--step", 1)
    assert result.exit_code == 2
    assert "Kept: 2" in result.stderr
    assert not out.exists()


def test_a_dry_clean_up_removes_nothing(workplace, copy):
    narrow = workplace / "study.yaml"
    before = sorted(path for path in copy.rglob("*"))
    result = invoke("gc", narrow, "--store", copy)
    assert result.exit_code == 0
    assert "0 results" in result.stdout
    assert sorted(path for path in copy.rglob("*")) == before


def test_a_clean_up_keeps_what_the_named_studies_need(workplace, copy):
    study = (workplace / "study.yaml").read_text().replace(", {kind: reverse}", "")
    narrow = workplace / "narrow.yaml"
    narrow.write_text(study)
    told = invoke("gc", narrow, "--store", copy)
    assert "3 results" in told.stdout
    result = invoke("gc", narrow, "--store", copy, "--yes")
    assert "removed 3 results" in result.stdout
    assert len(list((copy / "cell").iterdir())) == 1
    assert invoke("run", narrow, "--store", copy).exit_code == 0
