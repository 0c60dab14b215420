"""Countdown as a task: splits, prompts, grades, demonstrations."""

import pytest

from fractionate.tasks.base import Problem, Task
from fractionate.tasks.countdown import Countdown, canonical_form, demonstrate, extract_answer

SPLITS = ("train", "selection", "test")


def small(**changes) -> Countdown:
    return Countdown(**({"n_train": 300, "n_selection": 40, "n_test": 50} | changes))


def problem(operands=(2, 3, 4), target=20) -> Problem:
    reference = {"operands": operands, "target": target, "witness": "2+3=5,5*4=20"}
    return Problem(key="2,3,4=20", messages=(), reference=reference)


def test_splits_have_their_sizes_and_share_no_key():
    task: Task = small()
    keys = [{item.key for item in task.problems(split)} for split in SPLITS]
    assert [len(split) for split in keys] == [300, 40, 50]
    assert len(set.union(*keys)) == 390


def test_a_part_of_a_split_is_its_beginning():
    task = small()
    assert task.problems("test", 7) == small().problems("test")[:7]
    with pytest.raises(ValueError, match="test holds 50 problems, not 51"):
        task.problems("test", 51)


def test_seed_decides_the_problems():
    assert small(seed=1).problems("test") != small(seed=2).problems("test")


def test_multiset_overlap_counts_reused_operands():
    overlap = small(n_train=5000).multiset_overlap()
    assert (overlap.n_selection, overlap.n_test) == (40, 50)
    assert 40 <= overlap.test <= 50
    assert small(n_train=0).multiset_overlap().test == 0


def test_prompt_holds_numbers_target_and_one_example():
    item = small().problems("train", 1)[0]
    system, user = item.messages
    assert (system["role"], user["role"]) == ("system", "user")
    assert f"Numbers: {list(item.reference['operands'])}" in user["content"]
    assert user["content"].endswith(f"Target: {item.reference['target']}")
    example = extract_answer(user["content"].split("Example", 1)[1])
    assert small().grade(problem(), f"<answer>{example}</answer>").correct
    assert item.reference["witness"] not in user["content"]


def test_grade_of_a_right_answer_carries_its_solution():
    grade = small().grade(problem(), "<think>hm</think><answer>3+2=5,4*5=20</answer>")
    assert (grade.correct, grade.reason, grade.answered) == (True, "ok", True)
    assert grade.solution == repr(canonical_form("2+3=5,5*4=20", [2, 3, 4]))


@pytest.mark.parametrize(
    ("completion", "reason", "answered"),
    [
        ("<think>2+3", "no_answer", False),
        ("<answer></answer>", "empty", False),
        ("<answer>(2+3)*4=20</answer>", "syntax", False),
        ("<answer>2+3=5,5+4=9</answer>", "target", True),
        ("<answer>2+3=5</answer>", "unused", True),
    ],
)
def test_grade_of_a_wrong_answer_says_whether_it_could_be_read(completion, reason, answered):
    grade = small().grade(problem(), completion)
    assert (grade.correct, grade.reason, grade.answered) == (False, reason, answered)
    assert grade.solution is None


def test_demonstrations_are_correct_seeded_and_vary():
    task = small()
    for item in task.problems("train", 50):
        texts = [task.demonstration(item, seed=seed) for seed in range(8)]
        assert all(task.grade(item, text).correct for text in texts)
        assert texts[3] == task.demonstration(item, seed=3)
        assert len(set(texts)) > 1


def test_failed_tries_of_a_demonstration_are_honest():
    texts = [demonstrate([2, 3, 4], 20, "2+3=5,5*4=20", seed=seed) for seed in range(30)]
    tries = {part for text in texts for part in text.split("Try ")[1:] if " is not 20" in part}
    assert tries
    for part in tries:
        chain, verdict = part.split(": ")
        answer = f"<answer>{chain.replace(', ', ',')}</answer>"
        assert small().grade(problem(), answer).reason == "target"
        assert verdict.startswith(chain.rsplit("=", 1)[1] + " is not")


def test_the_number_of_failed_tries_is_bounded():
    texts = [demonstrate([2, 3, 4], 20, "2+3=5,5*4=20", seed=s, max_failures=2) for s in range(40)]
    assert {text.count("is not") for text in texts} == {0, 1, 2}


def test_a_wrong_witness_is_refused():
    with pytest.raises(ValueError, match="does not solve"):
        demonstrate([2, 3, 4], 21, "2+3=5,5*4=20", seed=1)
