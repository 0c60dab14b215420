import csv
import json

import pyarrow as pa
import pyarrow.parquet
import pytest

from fractionate.config import TableTask
from fractionate.tasks.table import table_task
from fractionate.tasks.table_files import TableError

ROWS = [{"question": f"q{i}", "gold": str(i), "trace": f"t{i}", "id": i} for i in range(10)]
SPLITS = ("train", "selection", "test")
COLUMNS = {"prompt": "question", "answer": "gold", "test": 3, "selection": 2}


def write(folder, rows=ROWS, ending=".jsonl"):
    path = folder / f"mine{ending}"
    if ending == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif ending == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        pa.parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


def table(path, **fields):
    return table_task(TableTask(path=path, **{**COLUMNS, **fields}))


def keys(task):
    return {
        split: [p.key for p in task.problems(split)] for split in ("train", "selection", "test")
    }


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
def test_every_format_gives_the_same_problems(tmp_path, ending):
    task = table(write(tmp_path, ending=ending), key="id", completion="trace")
    reference = table(write(tmp_path), key="id", completion="trace")
    assert [task.problems(split) for split in SPLITS] == [
        reference.problems(split) for split in SPLITS
    ]


def test_splits_are_disjoint_and_complete(tmp_path):
    found = keys(table(write(tmp_path), key="id"))
    assert [len(found[split]) for split in ("test", "selection", "train")] == [3, 2, 5]
    assert sorted(key for split in SPLITS for key in found[split]) == [str(i) for i in range(10)]


def test_splits_do_not_depend_on_the_order_of_the_file(tmp_path):
    first = keys(table(write(tmp_path)))
    assert keys(table(write(tmp_path, ROWS[::-1]))) == first


def test_split_seed_changes_the_split(tmp_path):
    path = write(tmp_path)
    assert keys(table(path, split_seed=1)) != keys(table(path, split_seed=2))


def test_a_prompt_becomes_a_user_turn_after_the_system_turn(tmp_path):
    problem = table(write(tmp_path), system="Be brief.").problems("test", 1)[0]
    assert [turn["role"] for turn in problem.messages] == ["system", "user"]


def test_a_system_turn_does_not_change_who_is_who(tmp_path):
    path = write(tmp_path)
    assert keys(table(path, system="Be brief.")) == keys(table(path))


@pytest.mark.parametrize("encode", [json.dumps, lambda turns: turns])
def test_messages_may_be_a_list_or_its_json(tmp_path, encode):
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    rows = [{"m": encode(turns), "id": i} for i in range(3)]
    path = write(tmp_path, rows)
    task = table_task(TableTask(path=path, messages="m", key="id", grade="none", test=1))
    assert task.problems("train")[0].messages == tuple(turns)


def test_demonstrations_come_from_their_column(tmp_path):
    task = table(write(tmp_path), completion="trace", key="id")
    problem = task.problems("train", 1)[0]
    assert task.demonstration(problem, seed=0) == f"t{problem.key}"


def test_without_a_completion_column_there_is_no_demonstration(tmp_path):
    task = table(write(tmp_path))
    with pytest.raises(TableError, match=r"task\.completion names no column"):
        task.demonstration(task.problems("train")[0], seed=0)


def test_grading_uses_the_gold_of_the_row(tmp_path):
    task = table(write(tmp_path), grade="number", key="id")
    problem = task.problems("test")[0]
    assert task.grade(problem, f"It is {problem.key}.00.").correct
    assert not task.grade(problem, "It is 77.").correct


def test_ungraded_tables_are_unscored(tmp_path):
    task = table(write(tmp_path), grade="none", answer=None)
    verdict = task.grade(task.problems("test")[0], "anything")
    assert (verdict.reason, verdict.answered, verdict.correct) == ("unscored", True, False)


def test_asking_for_more_than_a_split_holds_names_the_field(tmp_path):
    with pytest.raises(ValueError, match=r"test holds 3 problems, not 4: change task\.test"):
        table(write(tmp_path)).problems("test", 4)


def refused(path, message, **fields):
    with pytest.raises(TableError, match=message):
        table(path, **fields)


def test_missing_file(tmp_path):
    refused(tmp_path / "none.jsonl", r"task\.path: there is no file .*none\.jsonl")


def test_unknown_ending(tmp_path):
    refused(tmp_path / "rows.xlsx", r"task\.path: .*\.jsonl, \.csv, \.parquet")


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_empty_file(tmp_path, text):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    refused(path, r"task\.path: .* holds no row")


def test_bad_json_names_its_line(tmp_path):
    path = write(tmp_path)
    path.write_text(path.read_text() + "\n{'single': 1}\n")
    refused(path, r"task\.path: .*, line 12 is not valid JSON")


def test_a_line_that_is_no_object(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("[1]\n")
    refused(path, "line 1 is no JSON object")


def test_missing_column_lists_what_there_is(tmp_path):
    refused(
        write(tmp_path),
        r"task\.prompt: .*, line 1 has no column 'Question'. Columns there: gold, id, question",
        prompt="Question",
    )


def test_a_row_without_the_column_is_named(tmp_path):
    refused(write(tmp_path, [*ROWS, {"question": "q"}]), r"task\.answer: .*, line 11 has no column")


def test_too_few_rows_name_both_splits(tmp_path):
    refused(write(tmp_path, ROWS[:5]), r"holds 5 rows, but task\.test 3 and task\.selection 2")


@pytest.mark.parametrize("key", [None, "question"])
def test_duplicate_keys_name_both_rows(tmp_path, key):
    refused(
        write(tmp_path, [*ROWS, {**ROWS[0], "gold": "5"}]),
        r"task\.key: line 1 and line 11 are the same problem",
        key=key,
    )


def test_csv_rows_of_another_width(tmp_path):
    path = write(tmp_path, ending=".csv")
    path.write_text(path.read_text() + "only,two\n")
    refused(path, "line 12 does not have 4 fields")


def test_csv_columns_of_one_name(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a,a\n1,2\n")
    refused(path, "two columns named 'a'")


def test_text_that_is_not_utf8(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"question": "\xff"}\n')
    refused(path, "not UTF-8")


def test_damaged_parquet(tmp_path):
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1 nothing of the kind")
    refused(path, "not a valid Parquet file")


@pytest.mark.parametrize(
    ("value", "grade", "fault"),
    [
        (None, "exact", "is neither text nor a number"),
        ("", "exact", "is neither text nor a number"),
        (["a"], "exact", "is neither text nor a number"),
        ("3 or 4", "number", "holds no single number"),
        ("Paris", "choice", "is no single letter"),
    ],
)
def test_gold_answers_that_cannot_be_graded_against(tmp_path, value, grade, fault):
    rows = [{"question": f"q{i}", "gold": value} for i in range(10)]
    refused(write(tmp_path, rows), rf"task\.answer: .*, line 1, column 'gold' {fault}", grade=grade)


@pytest.mark.parametrize("value", [None, 3, " "])
def test_prompts_are_text(tmp_path, value):
    rows = [{"question": value, "gold": "1"}]
    refused(write(tmp_path, rows), r"task\.prompt: .*, line 1, column 'question' is not a text")


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("[", "is not valid JSON"),
        ([], "is not a list of"),
        ([{"role": "user"}], "is not a list of"),
        ([{"role": "assistant", "content": "a"}], "ends with an assistant turn"),
    ],
)
def test_messages_that_are_no_prompt(tmp_path, value, fault):
    path = write(tmp_path, [{"m": value}])
    with pytest.raises(TableError, match=rf"task\.messages: .*, line 1, column 'm' {fault}"):
        table_task(TableTask(path=path, messages="m", grade="none"))


def test_messages_bring_their_own_system_turn(tmp_path):
    path = write(tmp_path, [{"m": [{"role": "user", "content": "u"}]}])
    with pytest.raises(TableError, match=r"remove task\.system"):
        table_task(TableTask(path=path, messages="m", system="s", grade="none"))
