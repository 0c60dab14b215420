r"""Mathematics in the columns of NuminaMath-CoT and MATH-500, word problems in those of GSM8K."""

import signal
import threading
from pathlib import Path

import pytest

from cases import BUGS
from fractionate.config import Gsm8kTask, LongestText, MathTask, Source
from fractionate.tasks.gsm8k import gsm8k_task
from fractionate.tasks.math import SYSTEM_PROMPT, math_task
from fractionate.tasks.math_answers import gold_fault, grade_math
from fractionate.tasks.table_files import TableError
from tiny import tokenizer

ROWS = Path(__file__).parents[1] / "data" / "rows"
NUMINA = Source(path=ROWS / "numina_math.jsonl", where={"source": "synthetic_math"})
MATH_500 = Source(path=ROWS / "math_500.jsonl")


def mathematics(**changes):
    fields = {"source": (NUMINA,), "test_source": (MATH_500,), "exclude": (), "test": 12}
    return math_task(MathTask(**{**fields, **changes}))


def gsm8k(**changes):
    fields = {
        "source": (Source(path=ROWS / "gsm8k_train.jsonl"),),
        "test_source": (Source(path=ROWS / "gsm8k_test.jsonl"),),
        "test": 10,
        "selection": 2,
    }
    return gsm8k_task(Gsm8kTask(**{**fields, **changes}))


def test_training_takes_what_has_a_boxed_answer_and_is_not_in_the_test():
    task = mathematics()
    assert len(task.problems("train")) == 9
    assert len(task.problems("test")) == 12
    assert task.left_out == {
        "duplicate": 1,
        "in_the_test": 1,
        "no_boxed_answer": 2,
        "unreadable_answer": 1,
    }


def test_problems_of_other_sources_can_be_kept_out_of_training():
    barred = mathematics(exclude=(Source(path=ROWS / "numina_math.jsonl", where={"source": "x"}),))
    assert "excluded" not in barred.left_out
    with pytest.raises(TableError, match=r"10 excluded.*training needs one"):
        mathematics(exclude=(NUMINA,))


def test_a_limit_chooses_by_the_seed_and_counts_the_rest():
    limited = {"source": (NUMINA.model_copy(update={"limit": 4}),)}
    task, other = mathematics(**limited), mathematics(**limited, split_seed=7)
    chosen = {problem.key for problem in task.problems("train")}
    assert len(chosen) == 4
    assert task.left_out["beyond_limit"] == 5
    assert chosen != {problem.key for problem in other.problems("train")}


def test_long_solutions_are_left_out_by_tokens(tmp_path):
    tokenizer().save_pretrained(tmp_path)
    longest = LongestText(column="solution", tokens=30, tokenizer=str(tmp_path))
    task = mathematics(source=(NUMINA.model_copy(update={"longest": longest}),))
    assert task.left_out["too_long"] == 1


def test_a_tokenizer_that_is_not_there_is_named(tmp_path):
    longest = LongestText(column="solution", tokens=30, tokenizer=str(tmp_path / "none"))
    with pytest.raises(TableError, match=r"task\.source\.longest\.tokenizer: .*cannot be loaded"):
        mathematics(source=(NUMINA.model_copy(update={"longest": longest}),))


def test_the_prompt_is_one_sentence_and_the_problem():
    system, user = mathematics().problems("train", 1)[0].messages
    assert system == {"role": "system", "content": SYSTEM_PROMPT}
    assert "\\boxed{}" in SYSTEM_PROMPT
    assert user["role"] == "user"


def test_demonstrations_are_the_solutions_and_are_right():
    task = mathematics()
    for problem in [*task.problems("train"), *task.problems("test")]:
        assert task.grade(problem, task.demonstration(problem, seed=0)).reason == "ok"


# ---------------------------------------------------------------- comparing answers


@pytest.mark.parametrize(
    ("given", "gold"),
    [
        ("0.5", r"\frac{1}{2}"),
        (r"\dfrac12", r"\frac{1}{2}"),
        ("(x+1)^2", "x^2+2x+1"),
        (r"\text{East}", r"\text{east}"),
        ("(1, 2)", "(1,2)"),
        ("0.1", r"10\%"),
        ("x=5", "5"),
        ("1000", "1,000"),
        (r"\sqrt{8}", r"2\sqrt{2}"),
        ("42", r"So it is $\boxed{42}$."),
    ],
)
def test_equivalent_answers_are_right(given, gold):
    assert grade_math(f"So $\\boxed{{{given}}}$.", gold).reason == "ok"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (r"\boxed{3}", "wrong"),
        (r"\boxed{4} and not \boxed{3}", "wrong"),
        (r"\boxed{\frac{}", "no_answer"),
        (r"\boxed{}", "unreadable"),
        (rf"\boxed{{{'1' * 501}}}", "unreadable"),
        ("4", "no_answer"),
        ("", "no_answer"),
        (r"<think>\boxed{4}", "no_answer"),
        (r"\boxed{4 and some words on it}", "wrong"),
    ],
)
def test_other_completions_are_not(text, reason):
    grade = grade_math(text, "4")
    assert (grade.reason, grade.correct) == (reason, False)
    assert grade.answered == (reason == "wrong")


def test_a_box_after_the_thought_counts():
    assert grade_math(r"<think>\boxed{3}</think> $\boxed{4}$", "4").correct


def test_a_comparison_that_takes_too_long_is_counted_as_such():
    grade = grade_math(r"\boxed{9^{9^{9}}}", "3", seconds=0.2)
    assert (grade.reason, grade.correct, grade.answered) == ("timeout", False, True)


def test_the_time_limit_leaves_signals_as_they_were():
    def handler(number, frame):
        raise AssertionError("nobody set this timer")

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 60)
    try:
        grade_math(r"\boxed{x+x}", "2x")
        left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        assert 0 < left <= 60
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_answers_are_compared_in_other_threads_too():
    found = []
    thread = threading.Thread(target=lambda: found.append(grade_math(r"\boxed{y+y}", "2y")))
    thread.start()
    thread.join()
    assert found[0].correct


@pytest.mark.parametrize(("gold", "fault"), [("4", None), (" ", "is empty"), ("x" * 501, "is too")])
def test_gold_answers_that_cannot_be_compared(gold, fault):
    found = gold_fault(gold)
    assert found is None if fault is None else fault in found


# ---------------------------------------------------------------- GSM8K


def test_gsm8k_takes_the_number_after_the_mark():
    task = gsm8k()
    assert [len(task.problems(s)) for s in ("train", "selection", "test")] == [7, 2, 10]
    assert task.left_out == {"duplicate": 1, "in_the_test": 1, "no_number": 1, "not_needed": 2}


def test_gsm8k_demonstrations_have_no_calculator_notes_and_are_right():
    task = gsm8k(selection=0)
    texts = [task.demonstration(problem, seed=0) for problem in task.problems("train")]
    assert not any("<<" in text for text in texts)
    assert any("1500 + 200 = 1700 cups" in text for text in texts)
    for problem, text in zip(task.problems("train"), texts, strict=True):
        assert task.grade(problem, text).reason == "ok"


def test_gsm8k_compares_numbers_as_numbers():
    task = gsm8k(selection=0)
    (cups,) = [p for p in task.problems("train") if "cups" in p.messages[1]["content"]]
    assert task.grade(cups, "<think>w</think><answer>$1700.00</answer>").correct
    case = next(c for c in BUGS["B32"]["verdicts"] if c["right"] == "no answer")
    assert not task.grade(cups, case["text"]).answered
