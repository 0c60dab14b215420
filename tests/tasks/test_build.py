import json

import pytest

from fractionate.config import CountdownTask, Harder, SandboxWorld, TableTask
from fractionate.tasks.build import build_harder, build_skills, build_task

SMALL = CountdownTask(train=20, selection=5, test=5)


def test_countdown_takes_every_field_of_its_config():
    task = build_task(SMALL.model_copy(update={"numbers": (2, 3, 5), "targets": (1, 30)}), None)
    problems = [p for split in ("train", "selection", "test") for p in task.problems(split)]
    assert len(problems) == 30
    assert {number for p in problems for number in p.reference["operands"]} <= {2, 3, 5}
    assert all(1 <= p.reference["target"] <= 30 for p in problems)


def test_the_sandbox_poses_its_own_countdown():
    task = build_task(CountdownTask(operands=4), SandboxWorld())
    assert len(task.problems("test", 1)[0].reference["operands"]) == 4


def test_a_table_is_built_from_its_file(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps({"q": str(i), "a": i}) + "\n" for i in range(3)))
    task = build_task(TableTask(path=path, prompt="q", answer="a", test=1), None)
    assert task.name == "mine"


def test_the_sandbox_refuses_a_table(tmp_path):
    table = TableTask(path=tmp_path / "x.csv", prompt="q", grade="none")
    with pytest.raises(ValueError, match=r"task\.kind 'table' needs 'models'"):
        build_task(table, SandboxWorld())


def test_harder_countdown_has_more_operands_and_its_own_numbers():
    task = build_harder(Harder(operands=4, numbers=(1, 2, 3), items=5), SMALL, None)
    problems = task.problems("test")
    assert [len(p.reference["operands"]) for p in problems] == [4] * 5
    assert {number for p in problems for number in p.reference["operands"]} <= {1, 2, 3}


def test_harder_in_the_sandbox():
    task = build_harder(Harder(operands=4), CountdownTask(), SandboxWorld())
    assert len(task.problems("test", 1)[0].reference["operands"]) == 4


def test_harder_needs_more_operands():
    with pytest.raises(ValueError, match=r"evaluate\.harder\.operands 3 is not above"):
        build_harder(Harder(operands=3), SMALL, None)


def test_a_table_has_no_harder_version(tmp_path):
    table = TableTask(path=tmp_path / "x.csv", prompt="q", grade="none")
    with pytest.raises(ValueError, match=r"Set evaluate\.harder: null"):
        build_harder(Harder(), table, None)


def test_skills_are_tasks_with_names_of_their_own():
    skills = build_skills(SandboxWorld())
    assert len({skill.name for skill in skills}) == len(skills) == 14
