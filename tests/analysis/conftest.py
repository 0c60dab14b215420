"""Planted studies that several tests read; cells are frozen, so they are made once."""

import pytest
from planted import RATE, planted, study

from fractionate.analysis.runs import Runs, gather

FORGETS = {RATE: 0.3}
SPARSE = {RATE: -0.2}


@pytest.fixture(scope="session")
def rate_runs() -> Runs:
    """The rate lowers accuracy by 20 points, skills by 30 and sparsity by 20; nothing else."""
    cells = planted(accuracy={RATE: -0.2}, forgetting=FORGETS, sparsity=SPARSE, seeds=(42, 43, 44))
    return gather(cells, study=study(seeds=[42, 43, 44]))


@pytest.fixture(scope="session")
def null_runs() -> Runs:
    """No knob does anything."""
    return gather(planted(seeds=(42, 43, 44, 45, 46)), study=study())
