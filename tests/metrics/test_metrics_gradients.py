import functools
import itertools
import math

import numpy as np
import pytest
import torch

from cases import EXAMPLES
from fractionate.losses.bounds import total_variation
from fractionate.metrics import (
    adam_updates,
    clip_coefficient,
    gradient_cosines,
    gradient_noise,
    project,
    sequence_tv,
)

tensor = functools.partial(torch.tensor, dtype=torch.float64)

FIRST = tensor([[1, 0, 0.2], [0.8, 0.3, 0], [1.2, -0.2, 0.1], [0.9, 0.1, -0.1]])
SECOND = tensor([[0.7, 0.5, 0], [0.9, 0.3, 0.2], [0.8, 0.6, -0.1], [1, 0.4, 0.1]])


@pytest.mark.parametrize("key", [key for key in EXAMPLES if key.startswith("clip_")])
def test_clip_coefficient(key):
    assert clip_coefficient(float(key.removeprefix("clip_"))) == pytest.approx(
        EXAMPLES[key], abs=1e-9
    )


def test_clip_coefficient_is_that_of_torch():
    parameter = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    parameter.grad = torch.full((4,), 2.0, dtype=torch.float64)
    norm = float(torch.nn.utils.clip_grad_norm_([parameter], 1.0))
    assert float(parameter.grad[0]) == pytest.approx(2.0 * clip_coefficient(norm), rel=1e-12)


def test_no_clipping_has_coefficient_one():
    assert clip_coefficient(100.0, None) == 1.0


def spiked(spike):
    return [spike if step == 51 else 1.0 for step in range(1, 151)]


def test_a_spike_shrinks_what_adam_moves():
    updates = adam_updates(spiked(-100.0))
    found = [updates[49], updates[50], updates[60], updates[100], updates[149], updates.sum()]
    keys = ("before", "spike", "after10", "after50", "end", "sum_spike")
    assert found == pytest.approx([EXAMPLES[f"ad_{key}"] for key in keys], abs=1e-9)


def test_a_clipped_spike_does_not():
    updates = adam_updates(spiked(-1.0))
    keys = ("clip_spike", "clip_end", "sum_clip")
    assert [updates[50], updates[149], updates.sum()] == pytest.approx(
        [EXAMPLES[f"ad_{key}"] for key in keys], abs=1e-9
    )


def test_adam_updates_are_those_of_torch(generator):
    gradients = torch.randn(20, generator=generator, dtype=torch.float64)
    weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.Adam([weight], lr=1.0)
    for gradient in gradients:
        weight.grad = gradient
        optimizer.step()
    assert adam_updates(gradients.tolist()).sum() == pytest.approx(
        -float(weight.detach()), rel=1e-9
    )


def test_gradient_noise_of_the_worked_example():
    first, second = gradient_noise(FIRST), gradient_noise(SECOND)
    found = [first.trace_variance, second.trace_variance, first.unbiased_norm_squared]
    found += [second.unbiased_norm_squared, first.mean_norm_squared, first.snr]
    keys = ("varA", "varB", "uA", "uB", "n2A", "snrA")
    assert found == pytest.approx([EXAMPLES[f"gn_{key}"] for key in keys], abs=1e-9)


def test_cosines_of_the_worked_example():
    found = gradient_cosines(FIRST, SECOND)
    assert found.plain == pytest.approx(EXAMPLES["gn_cos"], abs=1e-9)
    assert found.debiased == pytest.approx(EXAMPLES["gn_cos_deb"], abs=1e-9)


def test_unbiased_norm_is_right_on_average(generator):
    true = torch.tensor([0.3, -0.1])
    draws = true + torch.randn(4000, 4, 2, generator=generator)
    mean = np.mean([gradient_noise(draw).unbiased_norm_squared for draw in draws[:1500]])
    assert mean == pytest.approx(float(true.square().sum()), abs=0.06)


def test_noise_without_signal_has_no_debiased_cosine():
    opposite = torch.tensor([[1.0, 0.01], [-1.0, 0.0]])
    assert gradient_cosines(opposite, FIRST[:, :2]).debiased is None


def test_one_gradient_has_no_noise():
    with pytest.raises(ValueError, match="at least 2"):
        gradient_noise(FIRST[:1])


def test_projection_keeps_inner_products(generator):
    first = torch.randn(200_000, generator=generator)
    second = first + 0.5 * torch.randn(200_000, generator=generator)
    exact = float(first @ second)
    projected = float(project(first) @ project(second))
    assert projected == pytest.approx(exact, rel=0.02)


def test_projection_is_linear_and_fixed_by_its_seed():
    gradient = torch.arange(10.0)
    assert torch.equal(project(2 * gradient, buckets=8), 2 * project(gradient, buckets=8))
    assert not torch.equal(project(gradient, seed=1), project(gradient, seed=2))


TEACHER = {(): (0.8, 0.2), (0,): (0.9, 0.1), (1,): (0.3, 0.7)}
STUDENT = {(): (0.4, 0.6), (0,): (0.6, 0.4), (1,): (0.5, 0.5)}
COMPLETIONS = list(itertools.product((0, 1), repeat=2))


def completion_log_probs(policy):
    chances = [policy[()][a] * policy[(a,)][b] for a, b in COMPLETIONS]
    return tensor(chances).log()


def test_sequence_tv_is_exact_in_expectation_over_either_policy():
    teacher, student = completion_log_probs(TEACHER), completion_log_probs(STUDENT)
    exact = 0.5 * float((teacher.exp() - student.exp()).abs().sum())
    assert exact == pytest.approx(EXAMPLES["tv_seq"], abs=1e-9)
    for own, other in ((teacher, student), (student, teacher)):
        estimate = float((own.exp() * sequence_tv(own, other)).sum())
        assert estimate == pytest.approx(EXAMPLES["tv_est"], abs=1e-9)


def test_telescoped_tv_bounds_it():
    teacher, student = completion_log_probs(TEACHER), completion_log_probs(STUDENT)
    laws = [
        [
            torch.tensor([policy[()], policy[(first,)]], dtype=torch.float64).log()
            for first, _ in COMPLETIONS
        ]
        for policy in (TEACHER, STUDENT)
    ]
    per_completion = torch.stack(
        [
            total_variation(teacher_log_probs=p, student_log_probs=q).sum()
            for p, q in zip(*laws, strict=True)
        ]
    )
    bounds = [float((own.exp() * per_completion).sum()) for own in (teacher, student)]
    assert any(math.isclose(b, EXAMPLES["tv_tel"], abs_tol=1e-9) for b in bounds)
    assert min(bounds) >= EXAMPLES["tv_seq"]
