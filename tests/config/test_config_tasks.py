"""Tasks with data in study files: what they may say, and what is refused before it is read."""

import contextlib

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fractionate.config import StudyFileError, Task, read_study
from fractionate.config.files import parse_study
from fractionate.config.sizes import SANDBOX_TRAINING_PROBLEMS
from fractionate.config.task import template_columns
from fractionate.tasks.sandbox.countdown import SandboxCountdown

MODELS = {"name": "t", "models": {"student": "a/b", "teacher": "c/d"}}
TABLE = {"kind": "table", "path": "x.jsonl", "prompt": "q", "answer": "a"}


def study(task, **changes):
    return parse_study({**MODELS, "task": task, **changes})


@pytest.mark.parametrize("kind", ["science", "medreason", "math", "gsm8k"])
def test_tasks_with_public_data_need_no_field(kind):
    task = study({"kind": kind}).task
    assert all(source.hub for source in task.inputs.values())
    assert TypeAdapter(Task).validate_python(task.model_dump(mode="json")) == task


def test_a_source_may_be_a_path_a_mapping_or_a_list():
    written = ["a.jsonl", {"path": "a.jsonl"}, [{"path": "a.jsonl"}], ["a.jsonl"]]
    tasks = [study({"kind": "gsm8k", "source": source}).task for source in written]
    assert len({task.model_dump_json() for task in tasks}) == 1


def test_sources_of_the_paper_are_named_by_the_field_and_place():
    names = list(study({"kind": "math"}).task.inputs)
    assert names[:2] == ["source.0", "source.1"]
    assert "test_source" in names
    assert names[-1] == "exclude.6"


def test_paths_of_sources_count_from_the_folder_of_the_study(tmp_path):
    task = {
        "kind": "math",
        "source": ["rows", {"hub": "a/b"}],
        "test_source": {"path": "test.jsonl"},
        "exclude": [],
    }
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**MODELS, "task": task}))
    inputs = read_study(path).task.inputs
    assert inputs["source.0"].path == tmp_path / "rows"
    assert inputs["source.1"].hub == "a/b"
    assert inputs["test_source"].path == tmp_path / "test.jsonl"


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"kind": "science", "source": {"hub": "x"}}, r"task\.source\.0: hub 'x' is no id"),
        ({"kind": "science", "source": {"hubb": "a/b"}}, r"Did you mean 'hub'\?"),
        ({"kind": "science", "source": []}, "task.source names no data"),
        ({"kind": "science", "source": 5}, r"task\.source: "),
        ({"kind": "gsm8k", "train": 0}, r"task\.train"),
        ({"kind": "tabel"}, "unknown kind 'tabel'"),
    ],
)
def test_faults_of_data_name_their_field(task, message):
    with pytest.raises(StudyFileError, match=message):
        study(task)


@pytest.mark.parametrize(
    ("task", "field"),
    [(TABLE, "completion"), ({"kind": "science"}, "reasoning")],
)
@pytest.mark.parametrize(
    "changes",
    [
        {"method": {"rollout": {"kind": "dataset"}}},
        {
            "models": {
                "student": "a/b",
                "teacher": "c/d",
                "teacher_context": {"demonstration": True},
            }
        },
        {"teacher_training": [{"kind": "sft"}]},
    ],
)
def test_demonstrations_are_asked_for_where_there_are_some(task, field, changes):
    with pytest.raises(StudyFileError, match=rf"task\.{field} names no column. Set task\.{field}"):
        study(task, **changes)


def test_messages_may_hold_the_demonstrations():
    chat = {"kind": "table", "path": "x.jsonl", "messages": "messages", "grade": "none"}
    assert study(chat, method={"rollout": {"kind": "dataset"}}).task.lacks_demonstrations is None


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    "task",
    [{"kind": "countdown", "train": 20}, {**TABLE, "train": 20}, {"kind": "gsm8k", "train": 20}],
)
def test_a_step_takes_no_more_prompts_than_there_are(task):
    message = r"prompts_per_step is 32, but the training split holds 20.*prompts_per_step: 20"
    with pytest.raises(StudyFileError, match=message):
        study(task)
    assert study(task, budget={"prompts_per_step": 20}).task.train == 20


def test_levels_of_the_prompts_of_a_step_are_looked_at_too():
    from fractionate.study.cells import expand

    vary = {"budget.prompts_per_step": [16, 64]}
    made = study({"kind": "countdown", "train": 40}, vary=vary)
    with pytest.raises(StudyFileError, match="prompts_per_step is 64, but the training split hold"):
        expand(made)


def test_the_sandbox_has_only_so_many_training_problems():
    with pytest.raises(StudyFileError, match=r"holds 4915 problems"):
        parse_study(
            {"name": "t", "world": {"kind": "sandbox"}, "budget": {"prompts_per_step": 4916}}
        )


@pytest.mark.parametrize("operands", [3, 4])
def test_the_training_sizes_of_the_sandbox_are_those_of_its_splits(operands):
    held = len(SandboxCountdown(operands).problems("train"))
    assert SANDBOX_TRAINING_PROBLEMS[operands] == held


def test_the_harder_task_is_a_harder_countdown():
    with pytest.raises(StudyFileError, match=r"task\.kind is 'gsm8k'\. Set evaluate\.harder: null"):
        study({"kind": "gsm8k"}, evaluate={"harder": {"operands": 4}})
    with pytest.raises(StudyFileError, match=r"evaluate\.harder\.operands 3 is not above"):
        study({"kind": "countdown"}, evaluate={"harder": {"operands": 3}})


# ---------------------------------------------------------------- templates


def test_columns_of_a_template_come_in_their_order():
    assert template_columns("{b} {{x}} {a.c} {b}") == ("b", "a.c")


@settings(derandomize=True, deadline=None)
@given(text=st.text(alphabet="ab.{}[]!: 0"))
def test_any_text_is_a_template_or_is_refused_by_name(text):
    with contextlib.suppress(_RefusedError):
        assert _columns(text)


class _RefusedError(Exception):
    pass


def _columns(text):
    try:
        return template_columns(text)
    except ValueError as error:
        if str(error).startswith("task.template"):
            raise _RefusedError from error
        raise
