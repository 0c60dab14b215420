"""Running, resuming, failing and being interrupted: what is printed, and the exit codes."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest
from small_study import invoke, write_study

from fractionate import api


def test_everything_is_cached_the_second_time(workplace, finished):
    result = invoke("run", workplace / "study.yaml", "--store", finished)
    assert result.exit_code == 0
    assert "0 stages computed" in result.stdout
    assert "start:" not in result.stderr


def test_json_is_the_only_thing_on_stdout(workplace, finished):
    result = invoke("run", workplace / "study.yaml", "--store", finished, "--json")
    document = json.loads(result.stdout)
    assert document["computed"] == 0
    assert document["cached"] == document["stages"]
    assert document["failed"] == {}


def test_warnings_of_the_preflight_are_shown_again(workplace, finished):
    result = invoke("run", workplace / "study.yaml", "--store", finished)
    assert "warning:" in result.stderr


def test_several_studies_run_one_after_the_other(workplace, finished, tmp_path):
    study = workplace / "study.yaml"
    result = invoke("run", study, study, "--store", finished, "--json", "--report", tmp_path)
    assert [each["computed"] for each in json.loads(result.stdout)] == [0, 0]


def test_of_several_studies_none_runs_before_all_are_right(workplace, tmp_path):
    (tmp_path / "bad.yaml").write_text("name: bad\nsteps: 3\n")
    store = tmp_path / "runs"
    result = invoke("run", workplace / "study.yaml", tmp_path / "bad.yaml", "--store", store)
    assert result.exit_code == 2
    assert "steps" in result.stderr
    assert not store.exists()


def test_one_file_cannot_hold_several_reports(workplace, finished, tmp_path):
    study, report = workplace / "study.yaml", tmp_path / "all.html"
    result = invoke("run", study, study, "--store", finished, "--report", report)
    assert result.exit_code == 2
    assert "Name a folder" in result.stderr


@pytest.mark.parametrize("executor", ["slurm", "process:0", "process:x", "process", "serial:2"])
def test_unknown_executors_are_refused_before_anything_runs(workplace, tmp_path, executor):
    store = tmp_path / "runs"
    result = invoke("run", workplace / "study.yaml", "--store", store, "--executor", executor)
    assert result.exit_code == 2
    assert "process:N" in result.stderr
    assert not store.exists()


def test_a_store_that_is_a_file_is_refused(workplace, tmp_path):
    (tmp_path / "runs").write_text("")
    result = invoke("run", workplace / "study.yaml", "--store", tmp_path / "runs")
    assert result.exit_code == 2
    assert "Name a folder" in result.stderr


def test_a_store_that_cannot_be_made_is_refused(workplace, tmp_path):
    (tmp_path / "file").write_text("")
    result = invoke("run", workplace / "study.yaml", "--store", tmp_path / "file" / "runs")
    assert result.exit_code == 2
    assert "cannot be written to" in result.stderr


def test_a_failed_stage_leaves_the_others_and_says_how_to_go_on(place):
    budget = "{steps: 4, prompts_per_step: 2}"  # the update that ruins the weights is not the last
    study = write_study(place, vary="{lr: [1e-3, 1e+38]}", budget=budget)
    result = invoke("run", study, "--store", place / "runs")
    assert result.exit_code == 3
    assert "1 failed" in result.stderr
    assert "lr=1e+38" in result.stderr
    assert "goes on where it stopped" in result.stderr
    status = json.loads(invoke("status", study, "--store", place / "runs", "--json").stdout)
    ended = {stage["name"]: stage["state"] for stage in status["stages"]}
    assert ended["lr=0.001 seed=1"] == "done"
    assert ended["lr=1e+38 seed=1"] == "failed"


def test_an_unreadable_checkpoint_is_a_failed_stage_with_its_file(place, tmp_path):
    (place / "teacher").unlink()
    (place / "teacher").mkdir()
    for file in (place / "student").resolve().iterdir():
        (place / "teacher" / file.name).write_bytes(file.read_bytes()[:100_000])
    weights = place / "teacher" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    result = invoke("run", write_study(place), "--store", place / "runs")
    assert result.exit_code == 3
    assert "corrupt" in result.stderr
    assert str(place / "teacher") in result.stderr


def test_an_interruption_is_130_and_says_how_to_go_on(workplace, tmp_path, monkeypatch):
    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "run", interrupted)
    result = invoke("run", workplace / "study.yaml", "--store", tmp_path / "runs")
    assert result.exit_code == 130
    assert "Give the same command again" in result.stderr


def test_errors_of_our_own_making_keep_their_traceback(workplace, tmp_path, monkeypatch):
    def broken(*_arguments, **_options):
        raise ValueError("a bug, not a bad input")

    monkeypatch.setattr(api, "run", broken)
    result = invoke("run", workplace / "study.yaml", "--store", tmp_path / "runs")
    assert isinstance(result.exception, ValueError)


@pytest.mark.slow
def test_ctrl_c_ends_with_130_and_running_again_finishes(place):
    study = write_study(place, budget="{steps: 120, prompts_per_step: 4}")
    command = [sys.executable, "-m", "fractionate.cli", "run", str(study), "--store", "runs"]
    with subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if re.search("start: kl=", line):
                time.sleep(0.5)
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "Traceback" not in rest
    assert "Give the same command again" in rest
    again = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert again.returncode == 0
