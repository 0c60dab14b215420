"""Where rows come from: files, folders, the hub; and what a table makes of them."""

import csv
import json
from collections import Counter
from pathlib import Path

import datasets
import pytest

from fractionate.config import Source, TableTask
from fractionate.tasks.sources import source_rows
from fractionate.tasks.table import table_task
from fractionate.tasks.table_files import TableError

ROWS = Path(__file__).parents[1] / "data" / "rows"
NESTED = [{"q": f"q{i}", "d": {"level": f"L{i % 2}"}, "n": i} for i in range(6)]


def read(source, left_out=None):
    counted = Counter() if left_out is None else left_out
    return [row.values for row in source_rows(source, field="task.source", left_out=counted)]


def table(**fields):
    return table_task(TableTask(**{"grade": "none", "test": 2, **fields}))


@pytest.fixture
def saved(tmp_path):
    """A folder written by save_to_disk with two splits, one with one, one with plain files."""
    datasets.disable_progress_bars()
    one = datasets.Dataset.from_list(NESTED)
    datasets.DatasetDict({"train": one, "test": one.select([0])}).save_to_disk(tmp_path / "two")
    one.save_to_disk(tmp_path / "one")
    (tmp_path / "plain").mkdir()
    one.to_parquet(tmp_path / "plain" / "train.parquet")
    one.select([0, 1]).to_parquet(tmp_path / "plain" / "test.parquet")
    return tmp_path


def test_folders_are_read_by_split(saved):
    assert read(Source(path=saved / "two", split="train")) == NESTED
    assert read(Source(path=saved / "two", split="test")) == NESTED[:1]
    assert read(Source(path=saved / "one")) == NESTED
    assert read(Source(path=saved / "plain", split="test")) == NESTED[:2]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"path": "two"}, r"task\.source\.split: .*two has the splits train, test\. Name one"),
        ({"path": "plain"}, r"task\.source\.split: .*plain has the splits"),
        ({"path": "two", "split": "dev"}, r"cannot be read .*its splits are train, test"),
        ({"path": "plain", "split": "dev"}, r"cannot be read as a dataset \(Bad split: dev"),
        ({"path": "one", "subset": "x"}, r"task\.source\.subset: .*has no subsets"),
        ({"path": "empty"}, r"the folder .*empty cannot be read as a dataset"),
        ({"path": "rows.json", "split": "train"}, r"is a file, which has neither split"),
        ({"path": "none.jsonl"}, r"task\.source: there is no file .*none\.jsonl"),
    ],
)
def test_what_cannot_be_read_names_the_field_and_the_mend(saved, source, message):
    (saved / "empty").mkdir()
    (saved / "rows.json").write_text("[]")
    with pytest.raises(TableError, match=message):
        read(Source(**{**source, "path": saved / source["path"]}))


def test_a_dataset_that_is_out_of_reach_says_so(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    message = r"task\.source: the dataset nobody/nothing cannot be loaded from the hub or its cache"
    with pytest.raises(TableError, match=message):
        read(Source(hub="nobody/nothing", split="train"))


def test_hub_sources_are_asked_for_by_all_their_names(monkeypatch):
    asked = []

    def load_dataset(*names, **options):
        asked.append((names, options))
        return datasets.Dataset.from_list(NESTED[:1])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    source = Source(hub="a/b", subset="main", split="test", revision="abc")
    assert read(source) == NESTED[:1]
    assert asked == [(("a/b", "main"), {"revision": "abc", "split": "test"})]


def test_rows_are_chosen_by_their_values_and_counted():
    left_out = Counter()
    source = Source(path=ROWS / "sciknoweval.jsonl", where={"details.level": "L1"})
    assert len(read(source, left_out)) == 1
    assert left_out == {"other_rows": 16}
    either = {"domain": ("Biology", "Chemistry"), "type": "mcq-4-choices"}
    assert len(read(Source(path=source.path, where=either))) == 15


def test_a_condition_on_a_column_that_is_not_there():
    source = Source(path=ROWS / "math_500.jsonl", where={"source": "x"})
    with pytest.raises(TableError, match=r"task\.source\.where: .*line 1 has no column 'source'"):
        read(source)


def test_a_json_file_is_a_list_of_objects(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(NESTED))
    assert read(Source(path=path)) == NESTED
    path.write_text('{"a": 1}')
    with pytest.raises(TableError, match="is no list of JSON objects"):
        read(Source(path=path))


# ---------------------------------------------------------------- tables


def test_chats_that_end_with_the_assistant_bring_their_demonstration():
    task = table(path=ROWS / "trl_messages.jsonl", messages="messages", answer="gold",
                 grade="number")  # fmt: skip
    problem = task.problems("train", 1)[0]
    assert [turn["role"] for turn in problem.messages] == ["system", "user"]
    assert task.demonstration(problem, seed=0) == f"It is {problem.reference['answer']}."
    assert task.grade(problem, task.demonstration(problem, seed=0)).correct


def test_conversational_prompt_and_completion():
    task = table(path=ROWS / "trl_prompt_completion.jsonl", prompt="prompt",
                 completion="completion", answer="gold", grade="number")  # fmt: skip
    problem = task.problems("train", 1)[0]
    assert [turn["role"] for turn in problem.messages] == ["user"]
    assert task.grade(problem, task.demonstration(problem, seed=0)).correct


def test_a_demonstration_can_stand_in_one_place_only():
    with pytest.raises(TableError, match=r"remove task\.completion, or drop the turn"):
        table(path=ROWS / "trl_messages.jsonl", messages="messages", completion="gold")


def test_a_chat_without_a_last_answer_has_no_demonstration(tmp_path):
    rows = [{"m": [{"role": "user", "content": f"{i}"}]} for i in range(3)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = table(path=path, messages="m")
    with pytest.raises(TableError, match=r"task\.messages: .* does not end with an assistant turn"):
        task.demonstration(task.problems("train")[0], seed=0)


def test_a_template_takes_columns_nested_ones_too():
    task = table(
        path=ROWS / "sciknoweval.jsonl",
        template="{{{details.level}}} {question}",
        system="Be brief.",
        duplicates="drop",
    )
    system, user = task.problems("train", 1)[0].messages
    assert system["content"] == "Be brief."
    assert user["content"].startswith(("{L1} ", "{L3} "))


@pytest.mark.parametrize("value", [None, ["x"], True])
def test_a_template_takes_texts_and_numbers(tmp_path, value):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"q": value}) + "\n")
    with pytest.raises(TableError, match=r"task\.template: .*column 'q' is neither text nor a"):
        table(path=path, template="Say {q}")


def test_repeats_can_be_dropped_and_counted(tmp_path):
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["q"], *[[f"q{i % 4}"] for i in range(6)]])
    task = table(path=path, prompt="q", duplicates="drop")
    assert task.left_out == {"duplicate": 2}


def test_test_rows_of_their_own_are_never_trained_on():
    task = table(
        source=(Source(path=ROWS / "gsm8k_train.jsonl"),),
        test_source=(Source(path=ROWS / "gsm8k_test.jsonl"),),
        prompt="question",
        test=12,
        selection=1,
    )
    keys = {s: {p.key for p in task.problems(s)} for s in ("train", "selection", "test")}
    assert [len(found) for found in keys.values()] == [10, 1, 12]
    assert not keys["train"] & keys["test"]
    assert task.left_out == {"in_the_test": 1}


def test_training_rows_can_be_limited():
    task = table(path=ROWS / "gsm8k_train.jsonl", prompt="question", train=3)
    assert len(task.problems("train")) == 3
    assert task.left_out == {"not_needed": 7}


def test_mathematics_is_a_grade_of_a_table():
    task = table(path=ROWS / "math_500.jsonl", prompt="problem", answer="answer", grade="math")
    (problem,) = [
        p
        for split in ("train", "test")
        for p in task.problems(split)
        if "one third" in p.messages[0]["content"]
    ]
    assert task.grade(problem, r"It is $\boxed{2/6}$.").correct


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": "q"}, "exactly one of 'path'"),
        ({"path": "a.csv", "source": "b.csv", "prompt": "q"}, "exactly one of 'path'"),
        ({"path": "a.csv"}, "exactly one of 'prompt'"),
        ({"path": "a.csv", "prompt": "q", "template": "{q}"}, "exactly one of 'prompt'"),
        ({"path": "a.csv", "template": "no column"}, "names no column"),
        ({"path": "a.csv", "template": "{q!r}"}, "nothing else"),
        ({"path": "a.csv", "template": "{}"}, "nothing else"),
        ({"path": "a.csv", "template": "{q"}, "Double braces"),
        ({"source": {"hub": "gsm8k"}, "prompt": "q"}, "owner/name"),
        ({"source": {"hub": "a/b", "path": "c"}, "prompt": "q"}, "exactly one of 'path'"),
        ({"source": {"path": "c", "revision": "abc"}, "prompt": "q"}, "revision belongs to"),
    ],
)
def test_tables_that_mean_nothing_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        TableTask(grade="none", **fields)
