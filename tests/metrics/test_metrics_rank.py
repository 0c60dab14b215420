import pytest
import torch

from cases import EXAMPLES
from fractionate.metrics import rank_measures

DELTA = torch.outer(torch.tensor([1.0, 2, 0, 1]), torch.tensor([1.0, 0, 1])) + torch.outer(
    torch.tensor([0.0, 1, 1, 0]), torch.tensor([0.0, 1, 0])
)


def test_worked_example():
    found = rank_measures(DELTA)
    assert found.singular_values == pytest.approx(EXAMPLES["rk_sv"], abs=1e-9)
    assert found.rank == EXAMPLES["rk_rank"]
    assert found.share == pytest.approx(2 / 3)
    assert found.stable == pytest.approx(EXAMPLES["rk_stable"], abs=1e-9)
    assert found.entropy == pytest.approx(EXAMPLES["rk_eff"], abs=1e-9)


def test_ranks_do_not_depend_on_scale():
    small, large = rank_measures(DELTA * 1e-8), rank_measures(DELTA)
    assert (small.rank, small.stable) == (large.rank, pytest.approx(large.stable))


def test_zero_update_has_rank_zero():
    assert rank_measures(torch.zeros(3, 2)).rank == 0


def test_a_vector_is_refused():
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        rank_measures(torch.ones(3))
