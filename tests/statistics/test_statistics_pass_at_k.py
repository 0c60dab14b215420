from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import BUGS, EXAMPLES
from fractionate.statistics import pass_at_k

KS = (1, 2, 5, 10)


@pytest.mark.parametrize("c", [0, 1, 3, 10])
def test_the_worked_numbers_of_ten_samples(c):
    assert [pass_at_k(10, c, k) for k in KS] == pytest.approx(EXAMPLES[f"pk_{c}"], abs=1e-12)


def test_the_plug_in_estimator_differs_beyond_k_1():
    plug_in = [1 - (1 - 3 / 10) ** k for k in KS]
    assert plug_in == pytest.approx(EXAMPLES["pk_plugin3"])
    assert pass_at_k(10, 3, 1) == pytest.approx(plug_in[0])
    assert all(pass_at_k(10, 3, k) > biased for k, biased in zip(KS[1:], plug_in[1:], strict=True))


def test_a_benchmark_is_the_mean_over_problems():
    correct = np.array([0, 1, 3, 10, 10])
    means = [np.mean(pass_at_k(10, correct, k)) for k in (1, 5, 10)]
    assert means == pytest.approx(EXAMPLES["pk_mean"])


def test_bug_report_b30_unbiased_values():
    case = BUGS["B30"]
    got = [pass_at_k(*row) for row in case["input"]["n_c_k"]]
    assert got == pytest.approx(case["expect"]["pass_at_k"])


def test_bug_report_b30_fewer_samples_than_k_is_refused():
    with pytest.raises(ValueError, match="n >= k"):
        pass_at_k(**BUGS["B30"]["input"]["n_below_k"])


def test_bug_report_b30_problems_are_not_pooled():
    problems = BUGS["B30"]["input"]["two_problems"]
    assert np.mean(pass_at_k(**problems)) == BUGS["B30"]["expect"]["two_problems"]


@settings(derandomize=True, deadline=None)
@given(st.integers(1, 300), st.data())
def test_it_equals_the_ratio_of_binomial_coefficients(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert pass_at_k(n, c, k) == pytest.approx(1 - comb(n - c, k) / comb(n, k), abs=1e-12)


def test_arrays_broadcast_and_are_not_averaged():
    grid = pass_at_k(10, np.array([[0], [3]]), np.array([1, 10]))
    assert grid == pytest.approx(np.array([[0.0, 0.0], [0.3, 1.0]]))


def test_scalars_give_a_float():
    assert isinstance(pass_at_k(4, 1, 2), float)


def test_many_samples_do_not_overflow():
    assert pass_at_k(10_000, 5_000, 5_001) == 1.0
    assert 0 < pass_at_k(10_000, 1, 5_000) < 1


@pytest.mark.parametrize(
    ("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 0), (4, 0.5, 1), (4, float("nan"), 1)]
)
def test_nonsense_is_refused(n, c, k):
    with pytest.raises(ValueError, match=r"must|cannot"):
        pass_at_k(n, c, k)
