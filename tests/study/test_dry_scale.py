"""Studies in miniature: every paper file becomes one that plans, and two that run and resume."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fractionate
from fractionate.api import dry_plan
from fractionate.cli.app import app
from fractionate.config import StudyFileError
from fractionate.config.files import parse_study
from fractionate.models.load import load_model
from fractionate.study.hardware import device_of_runs, gpu_hours
from fractionate.study.identity import hash_folder
from fractionate.study.stages.dry import PROMPTS, STEPS, dry

STUDIES = Path(__file__).parents[2] / "studies"
HUB_TABLE = {"kind": "table", "source": {"hub": "some/rows"}}
PAPER = sorted((STUDIES / "paper").glob("*.yaml"))


@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_a_paper_study_in_miniature_plans_with_all_its_methods(path, tmp_path):
    study = fractionate.load_study(path)
    plan = fractionate.plan(dry(study, tmp_path))
    small = plan.study
    assert small.name == f"{study.name}-dry"
    assert (small.budget.steps, small.budget.prompts_per_step) == (STEPS, PROMPTS)
    assert small.checkpoints.every == 1
    rollouts, kls = (len(study.vary[f"method.{name}"]) for name in ("rollout", "divergence"))
    assert len(plan.cells) == rollouts * kls
    whole = fractionate.plan(study)
    assert {stage.kind for stage in plan.stages} == {stage.kind for stage in whole.stages}
    for stage in plan.stages:
        assert all("sha256" in source.identity for source in stage.inputs.values())


@pytest.mark.parametrize(
    ("name", "architecture", "stops"),
    [("e1_countdown", "LlamaForCausalLM", 3), ("e13_family", "Qwen2ForCausalLM", 2)],
)
def test_stand_ins_have_the_class_and_the_stop_set_of_their_family(
    name, architecture, stops, tmp_path
):
    study = dry(fractionate.load_study(STUDIES / "paper" / f"{name}.yaml"), tmp_path)
    student, teacher = map(load_model, (study.models.student, study.models.teacher))
    for model in (student, teacher):
        assert type(model.module).__name__ == architecture
        assert len(model.stop_ids) == stops
        assert model.end_id in model.stop_ids
        text = "¿Cuánto es 2·3? \n\t<think>"
        assert model.tokenizer.decode(model.tokenizer(text)["input_ids"]) == text
    assert student.module.config.tie_word_embeddings
    assert not teacher.module.config.tie_word_embeddings
    assert student.tokenizer.get_vocab() == teacher.tokenizer.get_vocab()
    rope = student.module.config.rope_parameters["rope_type"]
    assert rope == ("llama3" if architecture.startswith("Llama") else "default")


def test_the_same_study_writes_the_same_inputs(tmp_path):
    study = fractionate.load_study(STUDIES / "paper" / "e10_style.yaml")
    for place in ("a", "b"):
        dry(study, tmp_path / place)
    assert hash_folder(tmp_path / "a", field="a") == hash_folder(tmp_path / "b", field="b")


def test_a_sandbox_study_keeps_its_models(tmp_path):
    study = fractionate.load_study(STUDIES / "sandbox" / "e9_rlvr.yaml")
    small = dry(study, tmp_path)
    assert small.world == study.world
    assert small.rlvr.steps == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": {"student": "some/one", "teacher": "Qwen/Qwen2.5-7B"}}, "models.student"),
        ({"task": {**HUB_TABLE, "prompt": "p", "grade": "none"}}, r"task\.path"),
    ],
)
def test_what_has_no_miniature_is_named(change, message, tmp_path):
    models = {"student": "Qwen/Qwen2.5-1.5B", "teacher": "Qwen/Qwen2.5-7B"}
    study = parse_study({"name": "s", "models": models, **change})
    with pytest.raises(StudyFileError, match=message):
        dry(study, tmp_path)


class _StopsIn:
    """Interrupts a run after the first step of the first stage of a kind."""

    def __init__(self, kind):
        self.kind = kind
        self.done = []

    def __call__(self, event, stage, info):
        if event == "done":
            self.done.append(stage.kind)
        if event == "progress" and stage.kind == self.kind and info.get("step") == 1:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "interrupted"),
    [("e9_rlvr", "rlvr"), ("e1_science", "cell"), ("e6_long_traces", "cell")],
)
def test_a_paper_study_runs_in_miniature_and_goes_on_where_it_stopped(name, interrupted, tmp_path):
    plan = fractionate.plan(STUDIES / "paper" / f"{name}.yaml")
    stop = _StopsIn(interrupted)
    with pytest.raises(KeyboardInterrupt):
        fractionate.run(plan, tmp_path, progress=stop, dry_scale=True)
    assert stop.done
    results = fractionate.run(plan, tmp_path, dry_scale=True)
    assert results.plan.study.name == f"{name}-dry"
    assert {stage.key for stage in results.plan.stages} == {
        stage.key for stage in dry_plan(plan.study, tmp_path).stages
    }
    frame = results.frame()
    assert "accuracy" in set(frame["metric"])
    html = fractionate.report(results, tmp_path / "report.html").read_text()
    assert "its numbers mean nothing" in html
    if name == "e9_rlvr":
        assert all(len(cell.rlvr) == 2 for cell in results.outcomes.cells)
    else:
        assert all(len(cell.steps) == STEPS for cell in results.outcomes.cells)


def test_hours_of_an_accelerator_are_operations_over_a_share_of_its_peak():
    assert gpu_hours(0.2 * 989e12 * 3600, "h100") == pytest.approx(1.0)
    with pytest.raises(ValueError, match="no accelerator 'abacus'"):
        gpu_hours(1.0, "abacus")


def test_the_environment_says_on_which_device_runs_are(monkeypatch):
    monkeypatch.delenv("FRACTIONATE_DEVICE", raising=False)
    assert device_of_runs(None) == "cpu"
    monkeypatch.setenv("FRACTIONATE_DEVICE", "cuda")
    assert device_of_runs(None) == "cuda"
    plan = fractionate.plan(STUDIES / "paper" / "e1_countdown.yaml")
    assert {stage.execution["device"] for stage in plan.stages} == {"cuda"}
    with pytest.raises(StudyFileError, match="'abacus'"):
        device_of_runs("abacus")


def test_a_plan_for_a_gpu_says_its_hours(monkeypatch):
    monkeypatch.delenv("FRACTIONATE_DEVICE", raising=False)
    path = str(STUDIES / "paper" / "e1_countdown.yaml")
    shown = CliRunner().invoke(app, ["plan", path, "--gpu", "h100", "--json"])
    assert shown.exit_code == 0
    plan = json.loads(shown.stdout)
    assert plan["gpu"]["hours"] == pytest.approx(plan["cost"]["flops"] / (0.2 * 989e12) / 3600)
