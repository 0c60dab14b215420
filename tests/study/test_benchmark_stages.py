"""A study of real models with benchmarks of its own, from preflight to the table."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

import fractionate
import tiny
from fractionate.api import StageFailedError
from fractionate.config import StudyFileError
from fractionate.config.files import parse_study, read_study

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")

LOCAL = Path(__file__).parent.parent / "data" / "harness"


def study(folder, **forgetting):
    student, teacher = tiny.save_pair(folder)
    rows = [{"question": f"{i} {i}", "answer": str(i)} for i in range(1, 21)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return parse_study(
        {
            "name": "forgetting",
            "models": {"student": str(student), "teacher": str(teacher)},
            "task": {
                "kind": "table", "path": str(folder / "rows.jsonl"), "prompt": "question",
                "answer": "answer", "grade": "exact", "test": 4, "selection": 2,
            },
            "optimizer": {"lr": 1e-2, "warmup": 1},
            "budget": {"steps": 2, "prompts_per_step": 2},
            "lengths": {"prompt": 16, "completion": 4, "evaluation": 4},
            "seeds": [1],
            "evaluate": {
                "accuracy": {"items": 4},
                "sparsity": None,
                "gradients": {"prompts": 2, "batches": 2, "at": ["last"]},
                "forgetting": {
                    "kind": "harness", "tasks": ["local_choice", "local_words"],
                    "limit": None, "apply_chat_template": False, "include": str(LOCAL),
                    **forgetting,
                },
            },
        },
        source="test",
    )  # fmt: skip


def test_forgetting_is_measured_from_the_base_to_the_last_step(tmp_path):
    results = fractionate.run(fractionate.plan(study(tmp_path)), store=tmp_path / "runs")
    frame = results.frame()
    values = {(row.step, row.metric): row.value for row in frame.itertuples()}
    for step in (0, 2):
        scores = [values[step, f"benchmark:local_{name}"] for name in ("choice", "words")]
        assert values[step, "ood"] == pytest.approx(sum(scores) / 2)
    assert values[2, "ood_drop"] == pytest.approx(values[0, "ood"] - values[2, "ood"])
    assert values[0, "ood_drop"] == 0.0
    assert values[2, "ood_loss_only"] >= values[2, "ood_drop"]
    assert (2, "gradient_norm:forward/student") in values
    assert (0, "gradient_norm:forward/student") not in values
    tables = [json.loads(p.read_text()) for p in (tmp_path / "runs").rglob("benchmarks.json")]
    assert len(tables) == 3  # base, teacher, cell
    assert all(table["scores"]["local_choice"]["n"] == 5 for table in tables)


def keys(plan):
    return {stage.kind: stage.key for stage in plan.stages}


def test_task_files_count_by_content_where_models_are_measured(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(LOCAL, copy)
    before = keys(fractionate.plan(study(tmp_path)))
    elsewhere = keys(fractionate.plan(study(tmp_path, include=str(copy))))
    assert elsewhere == before
    with (copy / "choice.jsonl").open("a") as file:
        file.write('{"question": "1 2", "choices": ["3", "4"], "gold": 1}\n')
    edited = keys(fractionate.plan(study(tmp_path, include=str(copy))))
    assert {kind for kind in before if edited[kind] != before[kind]} == {
        "preflight", "teacher_evaluation", "base_evaluation", "cell_evaluation"
    }  # fmt: skip


@pytest.mark.slow  # a name like none of the folders: the whole harness is read
def test_a_wrong_name_fails_in_the_preflight(tmp_path):
    plan = fractionate.plan(study(tmp_path, tasks=["local_choices"]))
    with pytest.raises(StageFailedError, match=r"preflight.*no task or group 'local_choices'"):
        fractionate.run(plan, store=tmp_path / "runs")


def test_a_missing_folder_of_task_files_fails_in_the_plan(tmp_path):
    with pytest.raises(StudyFileError, match=r"forgetting\.include: no such folder"):
        fractionate.plan(study(tmp_path, include=str(tmp_path / "gone")))


def test_the_sandbox_is_not_asked_in_english(tmp_path):
    path = tmp_path / "s.yaml"
    fields = {
        "name": "s",
        "world": {"kind": "sandbox"},
        "evaluate": {"forgetting": {"kind": "harness"}},
    }
    path.write_text(yaml.safe_dump(fields))
    with pytest.raises(StudyFileError, match="forgetting: skills"):
        read_study(path)
