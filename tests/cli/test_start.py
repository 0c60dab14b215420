"""Starting: help, version, usage errors, templates, shipped studies, closed pipes."""

import subprocess
import sys

import pytest
from small_study import invoke

import tiny
from fractionate import __version__
from fractionate.cli.places import shipped_study
from fractionate.config import read_study
from fractionate.models.sandbox import STUDENT, TEACHER, new_model, save

VERBS = """
demo init check plan run status report figures compare advise distill evaluate sparsity sandbox
show replay verify export gc
""".split()  # noqa: SIM905 - twenty quoted words read worse


def test_help_lists_every_verb():
    result = invoke("--help")
    assert result.exit_code == 0
    assert all(f" {verb} " in result.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", [*VERBS, "sandbox build"])
def test_every_verb_explains_itself(verb):
    result = invoke(*verb.split(), "--help")
    assert result.exit_code == 0
    assert "Usage" in result.stdout


def test_the_version_is_printed():
    assert invoke("--version").stdout.strip() == __version__


@pytest.mark.parametrize("arguments", ["frobnicate", "check", "run a.yaml --colour red", "gc"])
def test_usage_errors_are_2(arguments):
    assert invoke(*arguments.split()).exit_code == 2


@pytest.fixture
def untrained_world(tmp_path):
    """Sandbox checkpoints that have learnt nothing."""
    for name, architecture in (("teacher", TEACHER), ("components", STUDENT)):
        for seed in range(3 if name == "components" else 1):
            save(new_model(architecture, seed), tmp_path / "world" / f"{name}-{seed}")
    return tmp_path / "world"


@pytest.mark.parametrize("name", ["demo", "smoke"])
def test_shipped_studies_are_found_and_valid(name, untrained_world):
    path = shipped_study(name)
    assert read_study(path).name == name
    result = invoke("check", path, "--set", f"world.checkpoints={untrained_world}")
    assert result.exit_code == 0, result.stderr


def test_the_smoke_study_is_the_four_arms_of_the_demo():
    smoke, demo = (read_study(shipped_study(name)) for name in ("smoke", "demo"))
    assert smoke.vary == {name: demo.vary[name] for name in ("method.rollout", "method.divergence")}
    assert smoke.method == demo.method


def test_the_starter_study_is_valid(tmp_path, untrained_world):
    path = tmp_path / "new" / "study.yaml"
    assert invoke("init", path).exit_code == 0
    result = invoke("check", path, "--set", f"world.checkpoints={untrained_world}")
    assert result.exit_code == 0, result.stderr
    assert "8 cells" in result.stdout


def test_the_starter_study_for_own_models_is_valid(tmp_path):
    student, teacher = tiny.save_pair(tmp_path)
    path = tmp_path / "study.yaml"
    result = invoke("init", path, "--models", student, teacher)
    assert result.exit_code == 0, result.stderr
    assert "8 cells" in invoke("check", path).stdout


def test_init_overwrites_nothing(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("mine")
    result = invoke("init", path)
    assert result.exit_code == 2
    assert path.read_text() == "mine"


@pytest.mark.parametrize("verb", ["check", "plan", "status"])
def test_planning_verbs_load_nothing_heavy(verb, tmp_path):
    student, teacher = tiny.save_pair(tmp_path)
    study = tmp_path / "study.yaml"
    invoke("init", study, "--models", student, teacher)
    code = (
        "import sys; from fractionate.cli import app; "
        f"app([{verb!r}, {str(study)!r}], standalone_mode=False); "
        "print({'torch', 'transformers', 'pandas', 'scipy'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert result.stdout.splitlines()[-1] == "set()"


def test_a_reader_that_leaves_is_no_traceback(tmp_path):
    student, teacher = tiny.save_pair(tmp_path)
    study = tmp_path / "study.yaml"
    invoke("init", study, "--models", student, teacher)
    command = [sys.executable, "-m", "fractionate.cli", "plan", str(study), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
    assert process.returncode == 141
