"""What `check` accepts, and what it says of everything else: exit code 2 and the field's name."""

import pytest
from small_study import ROWS, invoke, write_rows, write_study

import tiny

BAD_STUDIES = {
    "unknown key": ({"budget": "{steps: 2, colour: red}"}, ["budget.colour", "unknown field"]),
    "misspelt key": ({"budget": "{setps: 2}"}, ["budget.setps", "Did you mean 'steps'"]),
    "wrong type": ({"budget": "{steps: many}"}, ["budget.steps", "many"]),
    "out of range": ({"budget": "{steps: 0}"}, ["budget.steps"]),
    "unknown kind": (
        {"method": "{rollout: {kind: wizard}}"},
        ["method.rollout.kind", "wizard", "teacher"],
    ),
    "impossible combination": (
        {"method": "{support: {kind: topk, k: 4}, divergence: {kind: jsd}}"},
        ["method.support", "jsd", "Use support 'full'"],
    ),
    "impossible level": (
        {"vary": "{method.divergence: [{kind: forward}, {kind: jsd, beta: 7}]}"},
        ["vary.method.divergence[1]", "beta"],
    ),
    "same level twice": (
        {"vary": "{lr: [1e-3, 0.001]}"},
        ["vary.lr[0]", "vary.lr[1]", "Remove one"],
    ),
    "unknown factor": ({"vary": "{method.mood: [a, b]}"}, ["vary.method.mood"]),
    "missing model": ({"models": "{student: gone/a/b, teacher: teacher}"}, ["models.student"]),
    "missing data file": (
        {"task": "{kind: table, path: gone.jsonl, prompt: question, grade: none}"},
        ["task.path", "gone.jsonl"],
    ),
    "missing column": (
        {"task": "{kind: table, path: rows.jsonl, prompt: quest, answer: answer, test: 8}"},
        ["task.prompt", "quest", "question"],
    ),
    "too few rows": (
        {"task": "{kind: table, path: rows.jsonl, prompt: question, answer: answer, test: 90}"},
        ["task.test", "40 rows"],
    ),
    "harder without countdown": (
        {"evaluate": "{accuracy: {items: 8}, harder: {operands: 4}}"},
        ["evaluate.harder", "null"],
    ),
}


def test_a_good_study_is_counted(workplace):
    result = invoke("check", workplace / "study.yaml")
    assert result.exit_code == 0
    assert "ok" in result.stdout
    assert "2 cells" in result.stdout


@pytest.mark.parametrize(("changes", "words"), BAD_STUDIES.values(), ids=BAD_STUDIES.keys())
def test_bad_studies_name_the_field(place, changes, words):
    result = invoke("check", write_study(place, **changes))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def test_several_studies_are_checked_one_by_one(workplace):
    result = invoke("check", workplace / "study.yaml", workplace / "study.yaml")
    assert result.stdout.count("ok:") == 2


@pytest.mark.parametrize("verb", ["check", "plan", "run", "status", "report"])
def test_a_missing_study_file_is_named(tmp_path, verb):
    result = invoke(verb, tmp_path / "gone.yaml")
    assert result.exit_code == 2
    assert "gone.yaml" in result.stderr


def test_an_empty_data_file_is_refused(tmp_path):
    tiny.save_pair(tmp_path)
    (tmp_path / "rows.jsonl").write_text("")
    result = invoke("check", write_study(tmp_path))
    assert result.exit_code == 2
    assert "task.path" in result.stderr


def test_a_row_without_the_column_is_named(tmp_path):
    tiny.save_pair(tmp_path)
    write_rows(tmp_path / "rows.jsonl", [*ROWS, {"question": "1 2"}])
    result = invoke("check", write_study(tmp_path))
    assert result.exit_code == 2
    assert "line 41" in result.stderr
    assert "task.answer" in result.stderr


def test_text_that_is_no_yaml_is_refused(tmp_path):
    (tmp_path / "study.yaml").write_text("name: [tiny")
    result = invoke("check", tmp_path / "study.yaml")
    assert result.exit_code == 2
    assert "YAML" in result.stderr


def test_overrides_change_fields(workplace):
    result = invoke("check", workplace / "study.yaml", "--set", "seeds=[1, 2, 3]")
    assert "6 cells" in result.stdout


@pytest.mark.parametrize(
    ("override", "word"), [("budget.setps=3", "budget.setps"), ("steps", "field=value")]
)
def test_bad_overrides_are_named(workplace, override, word):
    result = invoke("check", workplace / "study.yaml", "--set", override)
    assert result.exit_code == 2
    assert word in result.stderr


def test_checking_runs_nothing(workplace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    invoke("check", workplace / "study.yaml")
    assert not list(tmp_path.iterdir())
