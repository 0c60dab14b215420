"""The spectrum is the path of min KL(q || teacher) subject to KL(q || q_old) <= c."""

import pytest
import torch
from scipy.optimize import brentq

from cases import EXAMPLES
from fractionate.losses import forward_kl
from fractionate.rollouts.laws import spectrum_log_probs

RADIUS = 0.05
TEACHER = torch.tensor(EXAMPLES["p"], dtype=torch.float64).log()
OLD = torch.tensor(EXAMPLES["q"], dtype=torch.float64).log()


def _law(lam: float) -> torch.Tensor:
    return spectrum_log_probs(student_log_probs=OLD, teacher_log_probs=TEACHER, lam=lam)


def _distance(lam: float) -> float:
    """KL(law || q_old)."""
    return float(forward_kl(teacher_log_probs=_law(lam), student_log_probs=OLD))


def test_the_projection_is_a_point_of_the_spectrum():
    lam = brentq(lambda value: _distance(value) - RADIUS, -1.0, 1.0, xtol=1e-14)
    assert lam == pytest.approx(EXAMPLES["tr_lambda"], abs=1e-9)
    assert (1 - lam) / 2 == pytest.approx(EXAMPLES["tr_alpha"], abs=1e-9)
    assert _law(lam).exp().tolist() == pytest.approx(EXAMPLES["tr_q"], abs=1e-9)


def test_the_constraint_is_idle_beyond_the_teacher():
    assert _distance(-1.0) == pytest.approx(EXAMPLES["tr_full"], abs=1e-9)
