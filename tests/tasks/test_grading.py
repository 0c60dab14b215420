import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import BUGS
from fractionate.tasks.grading import gold_fault, grade


@pytest.mark.parametrize("case", BUGS["B32"]["verdicts"], ids=lambda case: case["id"])
def test_numbers_are_neither_lost_nor_found_where_there_are_none(case):
    verdict = grade("number", case["text"], case["gold"])
    if case["right"] == case["gold"]:
        assert verdict.correct
    elif case["right"] == "no answer":
        assert (verdict.answered, verdict.correct) == (False, False)
    else:  # the gold, or no answer, but never another number
        assert verdict.correct or not verdict.answered


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("<think>3 + 4</think> The answer is 7.", "7"),
        ("<think>1</think><answer> 7 </answer>", "7.0"),
        (r"\boxed{\boxed{7}} \boxed{8", "7"),
        (r"So \boxed{1} or rather $\boxed{\frac{3}{4}}$", "0.75"),
        ("First 5, then 8.\n#### 1,234", "1234"),
        ("x = -3", "−3"),
        ("2e3", "2000"),
        (r"1{,}000 \text{ metres}", "1000"),
        ("50%", "50"),
        ("It is 4, I say 4.0", "4"),
        (".5", "1/2"),
    ],
)
def test_equal_numbers_are_right(text, gold):
    assert grade("number", text, gold).reason == "ok"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("8", "wrong"),
        ("7 or 8", "ambiguous"),
        ("<answer>6 + 1 = 7</answer>", "ambiguous"),
        ("seven", "no_answer"),
        ("", "no_answer"),
        ("7/0", "no_answer"),
        ("H7O", "no_answer"),
        ("1" * 5000, "no_answer"),
        ("<think>7</think>", "no_answer"),
        ("<think>7", "no_answer"),
        ("<answer></answer> 7", "no_answer"),
        ("7 <think>", "no_answer"),
    ],
)
def test_other_texts_are_not(text, reason):
    verdict = grade("number", text, "7")
    assert (verdict.correct, verdict.reason) == (False, reason)
    assert verdict.answered == (reason == "wrong")


def test_numbers_are_compared_exactly():
    assert not grade("number", "0.1000000000000000001", "0.1").correct


def test_solutions_are_the_same_for_equal_numbers():
    solutions = {grade("number", text, "1/2").solution for text in ("0.5", "1/2", "2/4")}
    assert solutions == {"1/2"}


def test_exact_text_ignores_white_space_only():
    assert grade("exact", "<think>x</think>\n New  York ", "New York").correct
    assert grade("exact", "new york", "New York").reason == "wrong"
    assert grade("exact", " ", "New York").reason == "no_answer"


@pytest.mark.parametrize(
    "text", ["B", "<answer>(b)</answer>", r"\boxed{B}", "<think>A</think>**B**"]
)
def test_choices_are_letters(text):
    assert grade("choice", text, "B").correct


@pytest.mark.parametrize("text", ["A or B", "The answer is B", "<think>B"])
def test_anything_more_than_a_letter_is_no_choice(text):
    assert grade("choice", text, "B").reason == "no_answer"


def test_no_verdict_is_neither_right_nor_wrong():
    verdict = grade("none", "", "")
    assert (verdict.reason, verdict.answered) == ("unscored", True)


@pytest.mark.parametrize(
    ("rule", "gold"),
    [("exact", "a"), ("number", "reasoning with 3 steps\n#### 18"), ("choice", "c"), ("none", "")],
)
def test_gold_answers_without_a_fault(rule, gold):
    assert gold_fault(rule, gold) is None


@given(
    rule=st.sampled_from(["exact", "number", "choice", "none"]),
    text=st.text(alphabet=st.sampled_from("0123456789.,/-+eE$ \\{}boxedfrac<think>/#answer\n")),
)
def test_no_text_raises(rule, text):
    verdict = grade(rule, text, "7")
    assert not verdict.correct or verdict.answered


@given(value=st.fractions(max_denominator=999))
def test_every_fraction_is_read_back(value):
    assert grade("number", f"The answer is {value}.", str(value)).correct
