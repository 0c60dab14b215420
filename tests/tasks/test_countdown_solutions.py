"""Canonical forms and the solver."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import EXAMPLES
from fractionate.tasks.countdown import canonical_form, solve, verify

SEARCH = settings(derandomize=True, deadline=None, max_examples=60)
OPERANDS = st.lists(st.integers(-3, 12), min_size=2, max_size=4)
WORKED = [
    ("234_20", [2, 3, 4], 20),
    ("1266", [1, 2, 6], 12),
    ("2467_24", [2, 4, 6, 7], 24),
    ("224_16", [2, 2, 4], 16),
]


@pytest.mark.parametrize(("name", "operands", "target"), WORKED)
def test_solver_counts_and_sets(name, operands, target):
    solutions = solve(operands, target)
    assert [len(solutions.forms), solutions.n_chains] == EXAMPLES[f"sol_{name}"]
    assert sorted(map(str, solutions.forms)) == sorted(EXAMPLES[f"solset_{name}"])


@pytest.mark.parametrize(
    ("name", "operands", "first", "second"),
    [
        ("canon_same", [2, 3, 4], "2+3=5,5*4=20", "3+2=5,4*5=20"),
        ("canon_assoc", [2, 3, 4], "2*3=6,6*4=24", "3*4=12,12*2=24"),
        ("canon_subadd", [7, 2, 3], "7-2=5,5+3=8", "7+3=10,10-2=8"),
        ("canon_diff", [2, 2, 4], "2+2=4,4*4=16", "2*2=4,4*4=16"),
    ],
)
def test_which_chains_are_the_same_solution(name, operands, first, second):
    same = canonical_form(first, operands) == canonical_form(second, operands)
    assert same is EXAMPLES[name]


def test_dividing_is_a_negative_exponent_through_nested_quotients():
    nested = canonical_form("12/4=3,6/3=2", [6, 12, 4])
    assert nested == canonical_form("6*4=24,24/12=2", [6, 12, 4])


def test_identity_is_merged_only_on_request():
    chains = ("2*1=2,2*6=12", "2/1=2,2*6=12")
    assert len({canonical_form(chain, [1, 2, 6]) for chain in chains}) == 2
    assert len({canonical_form(chain, [1, 2, 6], merge_identity=True) for chain in chains}) == 1
    assert len(solve([1, 2, 6], 12, merge_identity=True).forms) == 1
    zeros = {canonical_form(f"5{sign}0=5", [5, 0], merge_identity=True) for sign in "+-"}
    assert len(zeros) == 1


def test_a_value_there_twice_means_the_earliest_created():
    bound = canonical_form("6-2=4,7*4=28,28-4=24", [2, 4, 6, 7])
    assert bound == canonical_form("4*7=28,28+2=30,30-6=24", [2, 4, 6, 7])
    solutions = solve([2, 4, 6, 7], 24)
    assert bound in solutions.readable_forms
    assert len(solutions.forms - solutions.readable_forms) == 1


@pytest.mark.parametrize("answer", ["2+3=5", "2+3=6,6*4=24", "(2+3)*4=20", "", "2+3=5,5*9=45"])
def test_an_invalid_chain_has_no_form(answer):
    with pytest.raises(ValueError, match="no valid chain"):
        canonical_form(answer, [2, 3, 4])


def test_a_missing_answer_has_no_form():
    with pytest.raises(ValueError, match="answer is None"):
        canonical_form(None, [2, 3, 4])


@SEARCH
@given(operands=OPERANDS, data=st.data())
def test_every_solution_found_is_accepted_and_read_back(operands, data):
    start = operands[0] + sum(operands[1:])
    target = data.draw(st.sampled_from([start, start + 1, 24, 0]))
    solutions = solve(operands, target)
    assert target != start or solutions.forms
    assert solutions.readable_forms <= solutions.forms
    for chain in solutions.chains:
        assert verify(chain, operands, target).ok
        form = canonical_form(chain, operands)
        assert form in solutions.readable_forms
        assert len({form, canonical_form(chain, operands[::-1])}) == 1


@SEARCH
@given(operands=OPERANDS, swaps=st.integers(0, 7))
def test_the_form_does_not_change_with_commutation(operands, swaps):
    for chain in solve(operands, sum(operands)).chains:
        equations = []
        for index, equation in enumerate(chain.split(",")):
            left, value = equation.rsplit("=", 1)
            cut = next((i for i in range(1, len(left)) if left[i] in "+*"), None)
            if cut is not None and swaps >> index & 1:
                left = left[cut + 1 :] + left[cut] + left[:cut]
            equations.append(f"{left}={value}")
        assert canonical_form(",".join(equations), operands) == canonical_form(chain, operands)


def test_negative_intermediates_can_be_left_out():
    assert solve([2, 5, 4], -12).forms
    assert not solve([2, 5, 4], -12, allow_negative=False).forms
