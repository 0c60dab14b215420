"""What is said early, once, and in the words of the command line."""

import json

import pytest
from small_study import invoke, write_study

from fractionate.study.stages.run import run_stage
from fractionate.study.store import Store

FAILING = {"vary": "{lr: [1e-3, 1e+38]}", "budget": "{steps: 4, prompts_per_step: 2}"}


def test_a_failed_run_prints_one_json_document(place):
    study = write_study(place, **FAILING)
    result = invoke("run", study, "--store", place / "runs", "--json")
    assert result.exit_code == 3
    document = json.loads(result.stdout)
    assert list(document["failed"]) == ["lr=1e+38 seed=1"]
    assert document["not_run"] == ["evaluation at step last: lr=1e+38 seed=1"]
    assert "after the mend" in result.stderr


@pytest.mark.parametrize("target", ["rows.jsonl/report.html", "rows.jsonl", "folder.html"])
def test_an_impossible_place_for_the_report_stops_the_run_before_it_starts(place, target):
    (place / "folder.html").mkdir()
    study = write_study(place)
    result = invoke("run", study, "--store", place / "runs", "--report", place / target)
    assert result.exit_code == 2
    assert "--report" in result.stderr
    assert not (place / "runs").exists()


def test_an_impossible_place_for_the_student_stops_the_run_before_it_starts(place):
    study = write_study(place, vary="{}")
    out = place / "rows.jsonl" / "student"
    result = invoke("distill", study, "--store", place / "runs", "--out", out)
    assert result.exit_code == 2
    assert "--out" in result.stderr
    assert not (place / "runs").exists()


def test_a_run_whose_preflight_fails_leaves_no_copy_of_its_study(place):
    study = write_study(place, lengths="{prompt: 1, completion: 6, evaluation: 6}")
    result = invoke("run", study, "--store", place / "runs")
    assert result.exit_code == 3
    assert not list((place / "runs" / "studies").iterdir())


def test_a_stage_that_the_store_has_is_reported_as_there(workplace, finished):
    from fractionate import api

    plan = api.plan(workplace / "study.yaml")
    told = []
    run_stage(plan.of_kind("teacher")[0], Store(finished), told.append)
    assert told == [{"there": True}]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kl", "forwrd"], ["--kl: method.divergence.kind", "forwrd", "'forward'"]),
        (["--rollout", "spectrum"], ["--rollout: method.rollout.lam"]),
        (["--lr", "-1"], ["--lr: optimizer.lr"]),
    ],
)
def test_faults_of_distill_name_the_flag(workplace, arguments, words):
    models = ["--student", workplace / "student", "--teacher", workplace / "teacher"]
    result = invoke("distill", *models, *arguments)
    assert result.exit_code == 2
    assert "distill.yaml" not in result.stderr
    for word in words:
        assert word in result.stderr


def test_faults_of_an_override_of_distill_name_the_field(workplace):
    models = ["--student", workplace / "student", "--teacher", workplace / "teacher"]
    result = invoke("distill", *models, "--set", "kl.kind=forwrd")
    assert result.exit_code == 2
    assert "error: method.divergence.kind" in result.stderr


@pytest.mark.parametrize("name", ["./nope", "../nope/model", "nope.gguf", "~/nope-nope"])
def test_a_path_where_nothing_is_is_no_hub_id(name):
    result = invoke("evaluate", name)
    assert result.exit_code == 2
    assert f"there is no folder or file {name}" in result.stderr


def test_one_cell_is_singular(place):
    result = invoke("check", write_study(place, vary="{}"))
    assert "1 cell, " in result.stdout


def test_status_of_a_misspelt_store_says_so(workplace, tmp_path):
    result = invoke("status", workplace / "study.yaml", "--store", tmp_path / "rusn")
    assert result.exit_code == 0
    assert "there is no store" in result.stderr


def test_a_broken_copy_is_no_noise_where_it_is_not_asked_for(workplace, place):
    assert invoke("run", write_study(place), "--store", place / "runs").exit_code == 0
    (place / "runs" / "studies" / "old.json").write_text("{")
    cell = invoke("export", "kl=forward seed=1", place / "out", "--store", place / "runs")
    assert cell.exit_code == 0
    assert "old" not in cell.stderr
    gone = invoke("export", "kl=jsd seed=1", place / "more", "--store", place / "runs")
    assert gone.exit_code == 2
    assert "not looked into, for they cannot be planned: old" in gone.stderr
    report = invoke("report", place / "runs")
    assert report.exit_code == 0, report.stderr
    assert report.stderr.count("old.json cannot be read") == 1
