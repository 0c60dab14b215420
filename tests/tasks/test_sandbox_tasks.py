import itertools

import numpy as np
import pytest

from fractionate.rng import stream
from fractionate.tasks.base import Problem
from fractionate.tasks.countdown import extract_answer, verify
from fractionate.tasks.sandbox import SKILL_TAGS, SandboxCountdown, SandboxSkill
from fractionate.tasks.sandbox.arithmetic import UNDO_ORDER, operator_between, undo
from fractionate.tasks.sandbox.components import COMPONENTS, whole_trace
from fractionate.tasks.sandbox.pool import pool, solvable, split_of
from fractionate.tasks.sandbox.skills import SKILLS
from fractionate.tasks.sandbox.traces import (
    dialect_share,
    in_dialect,
    trace,
    tries,
    weak_trace,
)
from fractionate.tasks.sandbox.vocabulary import (
    EOS,
    ID,
    LARGEST,
    NUMBERS,
    TOKENS,
    decode,
    encode,
)


def _problems(operands: int, n: int) -> list[tuple[tuple[int, ...], int]]:
    found = SandboxCountdown(operands).problems("train", n)
    return [(problem.reference["operands"], problem.reference["target"]) for problem in found]


def test_vocabulary_has_128_distinct_tokens_and_numbers_are_their_own_ids() -> None:
    assert len(TOKENS) == len(set(TOKENS)) == 128
    assert [ID[word] for word in NUMBERS] == list(range(LARGEST + 1))


def test_encoding_round_trips_and_leaves_special_tokens_out() -> None:
    words = ["cd", "7", "7", "1", ":", "56", "="]
    assert decode([*encode(words), ID[EOS]]) == "cd 7 7 1 : 56 ="


def test_encoding_names_the_unknown_word() -> None:
    with pytest.raises(ValueError, match="'90' is not a word"):
        encode(["90"])


def test_undoing_is_inverse_to_the_equation_it_stands_for() -> None:
    for goal, number in itertools.product(range(LARGEST + 1), range(1, 16)):
        for step in filter(None, (undo(goal, operator, number) for operator in UNDO_ORDER)):
            left, operator, right, _, value = step.equation
            numbers = [int(left), int(right)]
            assert sorted(numbers) == sorted([step.sub_goal, number])
            assert int(value) == goal
            assert verify(f"{left}{operator}{right}={value}", numbers, goal).ok
            assert 0 <= step.sub_goal <= LARGEST


def test_operator_between_two_numbers_agrees_with_arithmetic() -> None:
    for a, b, value in itertools.product(range(1, 16), range(1, 16), range(LARGEST + 1)):
        low, high = min(a, b), max(a, b)
        exact = {"+": low + high, "-": high - low, "*": low * high, "/": high / low}
        right = [name for name, result in exact.items() if result == value]
        assert operator_between(value, a, b) == (right[0] if right else "x")


def test_the_worked_trace_of_the_world_is_reproduced() -> None:
    first, second = tries((7, 7, 1), 56)[:2]
    assert " ".join(first.line(first.verdict)) == "56 - 7 = 49 : 7 1 x"
    assert " ".join(second.line(second.verdict)) == "56 / 7 = 8 : 7 1 +"
    assert " ".join(second.answer("+")) == "7 + 1 = 8 , 8 * 7 = 56"


@pytest.mark.parametrize("order", ["cyc", "rand"])
@pytest.mark.parametrize("operands", [3, 4])
def test_finished_traces_pass_the_plain_text_verifier(operands: int, order: str) -> None:
    generator = stream(1, "test", operands, order)
    finished = 0
    for numbers, target in _problems(operands, 300):
        words = trace(numbers, target, order, generator).words
        if words[-1] == EOS:
            answer = extract_answer(decode(encode(words)))
            assert verify(answer, numbers, target).ok
            finished += 1
        else:
            assert operands == 4
            assert len(words) == 200
    assert finished > (299 if operands == 3 else 230)


def test_cyclic_traces_follow_the_cycle() -> None:
    generator = stream(2, "test")
    for numbers, target in _problems(3, 100):
        cycle = [" ".join(attempt.line(attempt.verdict)) for attempt in tries(numbers, target)]
        words = trace(numbers, target, "cyc", generator).words
        lines = words[1 : words.index("</think>")]
        places = [cycle.index(" ".join(lines[at : at + 9])) for at in range(0, len(lines), 9)]
        steps = {(b - a) % len(cycle) for a, b in itertools.pairwise(places)}
        assert steps <= {1}


def test_headers_are_never_repeated_and_have_at_most_six_tries() -> None:
    generator = stream(3, "test")
    for numbers, target in _problems(4, 200):
        words = trace(numbers, target, "rand", generator).words[1:]
        text = " ".join(words).split("</think>")[0]
        sections = [part.split() for part in text.split(" ,")]
        headers = [tuple(part[-9:]) for part in sections[:-1]]
        assert len(headers) == len(set(headers))
        assert all(len(part) <= 6 * 9 + 9 for part in sections)


def test_weights_mark_verdicts_and_the_free_choices_of_headers() -> None:
    response = trace((7, 7, 1, 2), 58, "cyc", stream(4, "test"))
    by_weight = {weight: [] for weight in set(response.weights)}
    for word, weight in zip(response.words, response.weights, strict=True):
        by_weight[weight].append(word)
    assert set(by_weight[3.0]) <= {"x", "+", "-", "*", "/"}
    assert all(word in {"+", "-", "*", "/", "7", "1", "2"} for word in by_weight[0.4])
    assert len(by_weight[0.4]) == 2 * response.words[: response.words.index("</think>")].count(",")


def test_weak_traces_have_the_right_form_and_corrupt_verdicts_at_the_stated_rate() -> None:
    generator = stream(5, "test")
    wrong = total = 0
    for numbers, target in _problems(3, 2_000):
        words = weak_trace(numbers, target, generator).words
        lines = words[1 : words.index("</think>")]
        true = {tuple(attempt.line("")[:8]): attempt.verdict for attempt in tries(numbers, target)}
        verdicts = [(tuple(lines[at : at + 8]), lines[at + 8]) for at in range(0, len(lines), 9)]
        assert len(verdicts) <= 4
        assert all(given == "x" for _, given in verdicts[:-1])
        assert words[-2:] == ["</answer>", EOS]
        # First tries only: whether there is a later one depends on the verdict before it.
        wrong += true[verdicts[0][0]] != verdicts[0][1]
        total += 1
    assert wrong / total == pytest.approx(0.6, abs=4 * (0.24 / total) ** 0.5)


@pytest.mark.parametrize("operands", [3, 4])
def test_every_problem_of_the_pool_is_solvable_and_keys_are_unique(operands: int) -> None:
    problems = pool(operands)
    rows = zip(problems.numbers.tolist(), problems.targets.tolist(), strict=True)
    keys = {(tuple(numbers), target) for numbers, target in rows}
    assert len(keys) == len(problems.targets)
    assert all(target in solvable(numbers) and target not in numbers for numbers, target in keys)


@pytest.mark.parametrize("operands", [3, 4])
def test_countdown_splits_are_disjoint_by_key(operands: int) -> None:
    task = SandboxCountdown(operands)
    splits = ("train", "selection", "test")
    keys = {split: {problem.key for problem in task.problems(split)} for split in splits}
    assert not keys["train"] & keys["test"]
    assert not keys["train"] & keys["selection"]
    assert not keys["selection"] & keys["test"]
    assert all(split_of(key) == split for split, found in keys.items() for key in found)
    share = len(keys["test"]) / sum(map(len, keys.values()))
    assert share == pytest.approx(0.1, abs=0.015)


def test_the_first_problems_of_a_split_are_a_fixed_prefix() -> None:
    task = SandboxCountdown(3)
    assert task.problems("test", 5) == task.problems("test", 20)[:5]
    assert task.problems("test", 1)[0].messages[0]["content"].startswith("cd ")


def test_asking_for_too_many_problems_says_how_many_there_are() -> None:
    with pytest.raises(ValueError, match="holds 659 problems, not 1000"):
        SandboxCountdown(3).problems("test", 1_000)


def test_other_sizes_of_countdown_are_refused() -> None:
    with pytest.raises(ValueError, match="operands"):
        SandboxCountdown(5)


@pytest.mark.parametrize("operands", [3, 4])
def test_demonstrations_are_graded_right_and_reproducible(operands: int) -> None:
    task = SandboxCountdown(operands)
    for problem in task.problems("selection", 30):
        text = task.demonstration(problem, seed=7)
        assert text == task.demonstration(problem, seed=7)
        grade = task.grade(problem, text)
        assert grade.correct
        assert grade.solution is not None


def test_wrong_and_missing_answers_are_told_apart() -> None:
    task = SandboxCountdown(3)
    problem = Problem("", (), {"operands": (7, 7, 1), "target": 56})
    wrong = task.grade(problem, "<answer> 7 + 1 = 8 , 8 + 7 = 15 </answer>")
    assert (wrong.correct, wrong.answered, wrong.reason) == (False, True, "target")
    missing = task.grade(problem, "<think> 56 - 7 = 49")
    assert (missing.correct, missing.answered, missing.reason) == (False, False, "no_answer")


def _expected(name: str, question: list[str]) -> str:
    """The answer computed another way than the generator does."""
    if name == "op":
        value, a, b = int(question[0]), int(question[2]), int(question[3])
        return operator_between(value, a, b)
    if name == "rest":
        left = question[4:]
        return next(word for word in question[:3] if question[:3].count(word) > left.count(word))
    numbers = [int(word) for word in question]
    a, b = numbers[0], numbers[-1]
    answers = {
        "add": a + b,
        "sub": a - b,
        "mul": a * b,
        "div": a // b if b else None,
        "cmp": "<" if a < b else "=" if a == b else ">",
        "parity": a % 2,
        "max": max(numbers),
        "min": min(numbers),
        "successor": a + 1,
        "sort": " ".join(map(str, sorted(numbers))),
        "reverse": " ".join(reversed(question)),
        "copy": " ".join(question),
    }
    return str(answers[name])


@pytest.mark.parametrize("name", SKILL_TAGS)
def test_the_answers_of_a_skill_are_right_and_within_the_vocabulary(name: str) -> None:
    task = SandboxSkill(name)
    for problem in task.problems("test", 25):
        tag, *question, end = problem.messages[0]["content"].split()
        assert (tag, end) == (name, "=")
        answer = task.demonstration(problem, seed=0)
        assert answer == _expected(name, question)
        encode([tag, *question, *answer.split()])
        assert task.grade(problem, answer).correct
        assert not task.grade(problem, answer + " 0").correct
        assert task.grade(problem, "").reason == "no_answer"


@pytest.mark.parametrize("name", SKILL_TAGS)
def test_the_splits_of_a_skill_are_disjoint(name: str) -> None:
    task = SandboxSkill(name)
    splits = ("train", "selection", "test")
    keys = [{problem.key for problem in task.problems(split)} for split in splits]
    assert sum(map(len, keys)) == len(set().union(*keys))


@pytest.mark.parametrize("name", ["cmp", "parity", "op"])
def test_chance_is_the_share_of_the_most_frequent_answer(name: str) -> None:
    generator = stream(6, "test", name)
    answers = [SKILLS[name].draw(generator.random(10).tolist())[1][0] for _ in range(4_000)]
    most = max(answers.count(answer) for answer in set(answers)) / len(answers)
    assert SKILLS[name].chance == pytest.approx(most, abs=0.04)


def test_an_unknown_skill_is_refused_with_the_list() -> None:
    with pytest.raises(ValueError, match="add, sub, mul"):
        SandboxSkill("subtract")


@pytest.mark.parametrize("name", COMPONENTS)
def test_components_are_right_and_never_a_complete_trace(name: str) -> None:
    generator = stream(8, "test", name)
    share, make = COMPONENTS[name]
    assert 0 < share < 1
    for numbers, target in _problems(3, 100):
        question, response = make(numbers, target, generator)
        assert question[0] == name
        assert len(response.words) == len(response.weights)
        assert response.words[-1] == EOS
        assert "<think>" not in response.words
        encode([*question, *response.words])


def test_component_shares_sum_to_one() -> None:
    assert sum(share for share, _ in COMPONENTS.values()) == pytest.approx(1.0)


def test_the_next_line_follows_the_given_one_in_the_cycle() -> None:
    generator = stream(9, "test")
    for numbers, target in _problems(3, 100):
        question, response = COMPONENTS["next"][1](numbers, target, generator)
        cycle = [attempt.line(attempt.verdict) for attempt in tries(numbers, target)]
        assert cycle[(cycle.index(question[-9:]) + 1) % len(cycle)] == response.words[:9]


def test_answers_from_a_line_pass_the_verifier() -> None:
    generator = stream(10, "test")
    for numbers, target in _problems(3, 100):
        _, response = COMPONENTS["answer"][1](numbers, target, generator)
        assert verify(extract_answer(" ".join(response.words)), numbers, target).ok


def test_a_whole_trace_under_another_tag_is_a_trace() -> None:
    question, response = whole_trace((7, 7, 1), 56, stream(11, "test"))
    assert " ".join(question) == "trace 7 7 1 : 56 ="
    assert verify(extract_answer(" ".join(response.words)), (7, 7, 1), 56).ok


def test_draws_follow_the_random_reduction_path() -> None:
    problems = pool(3)
    expected = problems.weights / problems.weights.sum()
    assert np.all(problems.weights >= 1)
    likely = np.argmax(expected)
    firsts = [problem.key for problem in SandboxCountdown(3).problems("train", 1_000)]
    median = np.median(problems.weights)
    chosen = set(firsts)
    rows = zip(problems.numbers.tolist(), problems.targets.tolist(), strict=True)
    weights = [
        weight
        for (numbers, target), weight in zip(rows, problems.weights, strict=True)
        if f"{' '.join(map(str, numbers))} : {target}" in chosen
    ]
    assert expected[likely] > expected.min()
    assert np.mean(weights) > median


def test_the_second_dialect_changes_the_trace_and_not_the_answer() -> None:
    plain = trace((7, 7, 1), 56, "cyc", stream(0, "dialect"))
    spoken = in_dialect(plain)
    text, other = (" ".join(found.words[:-1]) for found in (plain, spoken))
    assert other != text
    assert other.split("</think>")[1] == text.split("</think>")[1]
    assert (dialect_share(text), dialect_share(other)) == (0.0, 1.0)
    assert dialect_share("<answer> 7 + 1 </answer>") is None
