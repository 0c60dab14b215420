"""Drawing problems: counts of the key space, uniqueness, determinism, limits."""

from itertools import combinations_with_replacement

import pytest

from cases import EXAMPLES
from fractionate.tasks.countdown import V16, generate, solve, verify
from fractionate.tasks.countdown.generator import KeySpace, reachable
from fractionate.tasks.countdown.verifier import reduce_chain

ONE_TO_TEN = tuple(range(1, 11))


@pytest.mark.parametrize(
    ("name", "n_operands", "numbers"),
    [("cd_ms3", 3, V16), ("cd_ms4", 4, V16), ("cd_ms4e", 4, ONE_TO_TEN)],
)
def test_multisets_of_the_three_tasks(name, n_operands, numbers):
    assert len(KeySpace(n_operands, numbers).multisets()) == EXAMPLES[name]


def all_keys(n_operands, numbers):
    """Every key with positive results, by the solver and hence independently of the generator."""
    return {
        (multiset, target)
        for multiset in combinations_with_replacement(numbers, n_operands)
        for target in range(1, max(numbers) ** n_operands + 2 * max(numbers))
        if solve(multiset, target, allow_negative=False).forms
    }


def test_all_problems_of_countdown_3_can_be_had_and_no_more():
    problems = generate(3, EXAMPLES["cd_inst3"], seed=1)
    keys = {problem.key for problem in problems}
    assert len(keys) == EXAMPLES["cd_inst3"]
    assert len({problem.key[0] for problem in problems}) == EXAMPLES["cd_ms3"]
    with pytest.raises(ValueError, match="only 0 Countdown problems exist"):
        generate(3, 1, seed=1, exclude=keys)


def test_the_key_space_is_what_the_solver_says():
    keys = all_keys(3, (1, 2, 3))
    problems = generate(3, len(keys), seed=1, numbers=(1, 2, 3))
    assert {problem.key for problem in problems} == keys
    assert all(verify(p.witness, p.operands, p.target).ok for p in problems)
    with pytest.raises(ValueError, match=f"only {len(keys)} Countdown problems exist"):
        generate(3, len(keys) + 1, seed=1, numbers=(1, 2, 3))


@pytest.mark.parametrize("n_operands", [2, 3, 4, 5])
def test_every_problem_is_solved_by_its_witness(n_operands):
    for problem in generate(n_operands, 100, seed=3):
        assert verify(problem.witness, problem.operands, problem.target).ok
        assert problem.key == (tuple(sorted(problem.operands)), problem.target)
        steps = reduce_chain(problem.witness, problem.operands).steps
        assert all(step.value >= 1 for step in steps)


def test_a_list_is_a_function_of_its_seed_and_a_prefix_of_longer_ones():
    assert generate(3, 50, seed=1) == generate(3, 50, seed=1)
    assert generate(3, 50, seed=1) != generate(3, 50, seed=2)
    most = len(all_keys(3, (1, 2, 3)))
    longest = generate(3, most, seed=1, numbers=(1, 2, 3))
    for n in (0, 1, most // 2, most - 1):
        assert generate(3, n, seed=1, numbers=(1, 2, 3)) == longest[:n]


def test_excluded_keys_do_not_occur_and_count_as_missing():
    keys = all_keys(2, (1, 2, 3, 4))
    first = {p.key for p in generate(2, 10, seed=1, numbers=(1, 2, 3, 4))}
    rest = generate(2, len(keys) - 10, seed=1, numbers=(1, 2, 3, 4), exclude=first)
    assert {p.key for p in rest} == keys - first
    with pytest.raises(ValueError, match="10 keys excluded"):
        generate(2, len(keys) - 9, seed=1, numbers=(1, 2, 3, 4), exclude=first)


def test_reachable_values_are_those_that_the_solver_confirms():
    values = reachable((2, 3, 7), allow_negative=True)
    assert all(solve([2, 3, 7], value).forms for value in values)
    assert not any(solve([2, 3, 7], value).forms for value in set(range(-50, 50)) - values)
    positive = reachable((2, 3, 7), allow_negative=False)
    assert positive < values
    assert min(positive) >= 1


def test_targets_and_numbers_are_kept():
    problems = generate(3, 100, seed=1, numbers=ONE_TO_TEN, targets=(20, 30))
    assert {problem.target for problem in problems} <= set(range(20, 31))
    assert {number for problem in problems for number in problem.operands} <= set(ONE_TO_TEN)


def test_negative_targets_need_both_switches():
    problems = generate(3, 50, seed=1, allow_negative=True, targets=(-20, -1))
    assert all(problem.target < 0 for problem in problems)
    assert all(verify(p.witness, p.operands, p.target).ok for p in problems)
    with pytest.raises(ValueError, match="only 0"):
        generate(3, 1, seed=1, targets=(-20, -1))


def test_without_replacement_no_number_comes_twice():
    problems = generate(3, 500, seed=1, replacement=False)
    assert all(len(set(problem.operands)) == 3 for problem in problems)
    again = generate(3, 500, seed=1)
    assert any(len(set(problem.operands)) < 3 for problem in again)


def test_without_replacement_a_number_comes_as_often_as_it_is_listed():
    every = generate(3, 1, seed=1, numbers=(2, 2, 5), replacement=False)
    assert sorted(every[0].operands) == [2, 2, 5]


def test_the_target_may_be_kept_out_of_the_operands():
    problems = generate(2, 100, seed=1, target_may_be_given=False)
    assert all(problem.target not in problem.operands for problem in problems)
    assert any(p.target in p.operands for p in generate(2, 100, seed=1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_operands": 1}, "n_operands"),
        ({"n_problems": -1}, "n_problems"),
        ({"numbers": ()}, "numbers"),
        ({"numbers": (1, 2), "replacement": False}, "numbers"),
        ({"targets": (5, 4)}, "targets"),
        ({"numbers": (0,), "n_operands": 2}, "only 0"),
        ({"numbers": (1,), "n_problems": 4}, "only 3"),
    ],
)
def test_what_cannot_be_drawn_is_an_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        generate(**({"n_operands": 3, "n_problems": 1, "seed": 1} | arguments))


@pytest.mark.parametrize("change", [{"n_problems": 2.5}, {"n_problems": "3"}, {"n_operands": 3.0}])
def test_counts_must_be_whole_numbers(change):
    with pytest.raises(TypeError, match=f"{next(iter(change))} must be a whole number"):
        generate(**({"n_operands": 3, "n_problems": 1, "seed": 1} | change))
