"""Multiple choice in the columns of SciKnowEval and MedReason, on rows of ours."""

from pathlib import Path

import pytest

from fractionate.config import MedReasonTask, ScienceTask, Source
from fractionate.tasks.medreason import matching_options, medreason_task, parse_options
from fractionate.tasks.science import science_task
from fractionate.tasks.table_files import TableError

ROWS = Path(__file__).parents[1] / "data" / "rows"
SCIENCE = {"source": (Source(path=ROWS / "sciknoweval.jsonl"),), "test": 3}
MED = {"source": (Source(path=ROWS / "medreason.jsonl"),), "test": 3, "selection": 2, "train": None}
SPLITS = ("train", "selection", "test")


def science(**changes):
    return science_task(ScienceTask(**{**SCIENCE, **changes}))


def medreason(**changes):
    return medreason_task(MedReasonTask(**{**MED, **changes}))


def every(task):
    return [problem for split in SPLITS for problem in task.problems(split)]


def about(task, words):
    (found,) = [p for p in every(task) if words in p.messages[1]["content"]]
    return found


def test_science_keeps_its_level_and_domain_and_counts_the_rest():
    task = science()
    assert [len(task.problems(split)) for split in SPLITS] == [7, 0, 3]
    assert task.rows == 17
    assert task.left_out == {
        "duplicate": 1,  # the same question with its options in another order
        "no_key": 1,
        "no_options": 1,
        "other_domain": 1,
        "other_level": 1,
        "other_type": 2,
    }
    assert "17 rows, 7 train, 0 selection, 3 test; left out: 1 duplicate" in task.summary()


def test_too_few_rows_of_a_domain_say_what_became_of_the_others():
    with pytest.raises(
        TableError, match=r"holds 1 rows that can be used \(left out: 14 other_domain"
    ):
        science(domain="Biology")


def test_the_prompt_asks_for_tags_and_one_of_four_letters():
    system, user = about(science(), "molar mass").messages
    assert system["role"] == "system"
    for part in ("<think>", "</think>", "<answer>", "</answer>", "A, B, C or D", "B. 18.02"):
        assert part in user["content"]


def test_choices_are_graded_strictly_and_the_lenient_reading_is_told():
    task = science()
    problem = about(task, "molar mass")
    verdicts = {
        "<think>18</think><answer>B</answer>": ("ok", True, True),
        "<think>18</think><answer>C</answer>": ("wrong", False, True),
        "<think>18</think><answer>B. 18.02</answer>": ("lenient_ok", False, False),
        "<think>18</think><answer>C. 20.01</answer>": ("lenient_wrong", False, False),
        "<think>18</think><answer>E</answer>": ("no_answer", False, False),
        "It is B": ("no_answer", False, False),
    }
    for text, expected in verdicts.items():
        grade = task.grade(problem, text)
        assert (grade.reason, grade.correct, grade.answered) == expected, text


def test_public_science_has_no_demonstrations():
    task = science()
    with pytest.raises(TableError, match=r"task\.reasoning names no column"):
        task.demonstration(task.problems("train")[0], seed=0)


def test_a_column_that_science_data_must_have_is_named():
    source = (Source(path=ROWS / "gsm8k_train.jsonl"),)
    with pytest.raises(TableError, match=r"task\.source: .*line 1 has no column 'type'"):
        science(source=source)


# ---------------------------------------------------------------- MedReason


def test_medreason_keeps_rows_with_one_matching_option_and_counts_the_rest():
    task = medreason()
    assert [len(task.problems(split)) for split in SPLITS] == [5, 2, 3]
    assert task.left_out == {
        "duplicate": 1,
        "no_match": 1,
        "no_options": 2,
        "no_reasoning": 1,
        "options_repeat": 1,
    }


@pytest.mark.parametrize(
    ("words", "gold"),
    [
        ("scurvy", "B"),
        ("rickets", "C"),
        ("insulin", "B"),
        ("oxygen?", "A"),
        ("chambers", "C"),
        ("longest", "B"),
        ("sprain", "A"),
        ("eyelid", "B"),
        ("lungs", "C"),
        ("months", "A"),
    ],
)
def test_gold_letters_come_from_the_text_of_the_answer(words, gold):
    task = medreason()
    problem = about(task, words)
    assert problem.reference["answer"] == gold
    assert task.grade(problem, f"<think>r</think><answer>{gold}</answer>").correct


def test_the_number_of_options_decides_which_letters_are_asked_for():
    content = about(medreason(), "eyelid").messages[1]["content"]
    assert "out of five" in content
    assert "A, B, C, D or E" in content


def test_demonstrations_hold_the_reasoning_and_are_right():
    task = medreason()
    for problem in every(task):
        text = task.demonstration(problem, seed=0)
        assert text.startswith("<think>\nThe finding")
        assert task.grade(problem, text).reason == "ok"


def test_rows_without_reasoning_can_be_kept():
    assert "no_reasoning" not in medreason(reasoning=None).left_out


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ("Answer Choices:\nA. one\nB. two", ["one", "two"]),
        ("Options: A. one B. two", ["one", "two"]),
        ("(A) one (B) two", ["one", "two"]),
        ('["one", "two"]', ["one", "two"]),
        ("{'A': 'one', 'B': 'two'}", ["one", "two"]),
        ({"A": "one", "B": "two"}, ["one", "two"]),
        (["one", "two"], ["one", "two"]),
        ("A. type A. fever\nB. type B. fever", ["type A. fever", "type B. fever"]),
        ("A. hepatitis B. virus\nB. none", ["hepatitis B. virus", "none"]),
        ("A. one", None),
        ("A. one\nC. two", None),
        ("intro A. one B. two", None),
        ("", None),
        (None, None),
        ("[1, 2", None),
        ([1, 2], None),
        ({"A": "one", "C": "two"}, None),
    ],
)
def test_encodings_of_options(given, options):
    assert parse_options(given) == options


@pytest.mark.parametrize(
    ("answer", "letters"),
    [
        ("Two", ["B"]),
        ("two . Explanation: one is wrong.", ["B"]),
        ("B. two", ["B"]),
        ("two or three", []),
        ("B", []),
        ("", []),
    ],
)
def test_a_match_is_equality_of_the_text(answer, letters):
    assert matching_options(answer, ["one", "two", "three"]) == letters
