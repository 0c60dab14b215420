"""Plans of studies whose task has data: local files by content, the hub by id and revision."""

import json
import shutil

import pytest

import tiny
from fractionate.config import StudyFileError
from fractionate.config.files import parse_study
from fractionate.study.keys import STAGE_VERSIONS
from fractionate.study.plan import make_plan
from fractionate.study.stages.job import Job

ROWS = [{"question": f"{i}", "answer": f"w\n#### {i}"} for i in range(12)]


@pytest.fixture
def place(tmp_path):
    tiny.save_pair(tmp_path)
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def plan(place, **task):
    fields = {"kind": "gsm8k", "selection": 0, "test": 2, "test_source": [], **task}
    tree = {
        "name": "t",
        "models": {"student": str(place / "student"), "teacher": str(place / "teacher")},
        "task": fields,
        "budget": {"steps": 1, "prompts_per_step": 2},
        "evaluate": {"accuracy": {"items": 2}},
        "seeds": [1],
    }
    return make_plan(parse_study(tree))


def cell(made):
    return made.of_kind("cell")[0]


def test_a_copy_elsewhere_is_the_same_data_and_an_edited_one_is_not(place):
    first = cell(plan(place, source=str(place / "train.jsonl")))
    shutil.copy(place / "train.jsonl", place / "copy.jsonl")
    assert cell(plan(place, source=str(place / "copy.jsonl"))).key == first.key
    with (place / "copy.jsonl").open("a") as file:
        file.write(json.dumps(ROWS[0]) + "\n")
    assert cell(plan(place, source=str(place / "copy.jsonl"))).key != first.key


def test_hub_data_is_keyed_by_what_names_it_and_an_open_revision_is_told(place):
    hub = {"hub": "a/b", "split": "train"}
    loose = plan(place, source=hub)
    assert any("task.source.revision is not set: a/b may change" in note for note in loose.notes)
    pinned = plan(place, source={**hub, "revision": "abc"})
    assert not any("task.source" in note for note in pinned.notes)
    other = plan(place, source={**hub, "revision": "abc", "split": "validation"})
    assert len({cell(made).key for made in (loose, pinned, other)}) == 3


def test_a_missing_file_is_told_by_the_plan(place):
    with pytest.raises(StudyFileError, match=r"task\.source: no such file: .*gone\.jsonl"):
        plan(place, source=str(place / "gone.jsonl"))


def test_a_stage_finds_its_data_where_this_run_has_it(place):
    path, hub = str(place / "train.jsonl"), {"hub": "a/b", "split": "train"}
    stage = cell(plan(place, source=[hub, path], test_source=path))
    assert "path" not in stage.config["task"]["source"][1]
    task = Job(stage, store=None, workspace=None, report=print).task_config
    assert task.inputs["source.0"].hub == "a/b"
    assert str(task.inputs["source.1"].path) == path
    assert str(task.inputs["test_source"].path) == path
    assert stage.kind in STAGE_VERSIONS
