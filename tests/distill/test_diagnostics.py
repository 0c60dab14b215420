"""Bounds checked at every step, and profiles along completions."""

import dataclasses

import pytest
import torch

from fractionate.config import Temperature
from fractionate.distill.diagnostics import StepDiagnostics, count_violations
from fractionate.distill.objective import Laws
from fractionate.losses import linear_divergence


def laws(tokens=40, vocab=32, seed=0):
    noise = torch.Generator().manual_seed(seed)
    return Laws(
        student_hidden=torch.randn(tokens, 8, generator=noise),
        student_head=torch.randn(vocab, 8, generator=noise),
        teacher_hidden=torch.randn(tokens, 6, generator=noise),
        teacher_head=torch.randn(vocab, 6, generator=noise),
        vocab_size=vocab,
    )


def stats_of(pair):
    _, stats = linear_divergence(
        student_hidden=pair.student_hidden,
        student_head=pair.student_head,
        teacher_hidden=pair.teacher_hidden,
        teacher_head=pair.teacher_head,
        kind="forward",
        return_stats=True,
    )
    return stats


@pytest.mark.parametrize("scale", [1e-4, 1.0, 10.0, 100.0])
def test_no_two_laws_break_a_bound(scale):
    pair = laws(400)
    loud = dataclasses.replace(pair, student_hidden=scale * pair.student_hidden)
    assert count_violations(stats_of(loud)) == 0


@pytest.mark.parametrize(
    ("field", "factor"),
    [("forward_grad_norm", 3.0), ("reverse_grad_norm", 9.0), ("reverse_kl", 0.01)],
)
def test_broken_numbers_are_counted(field, factor):
    stats = stats_of(laws())
    broken = dataclasses.replace(stats, **{field: getattr(stats, field) * factor})
    assert 0 < count_violations(broken) <= 40


def looked_at(pair, *, bins, share=1.0, places=None):
    diagnostics = StepDiagnostics(Temperature(teacher_loss=1.0), share=share, bins=bins)
    n = len(pair.student_hidden)
    places = torch.arange(n) % 10 if places is None else places
    tokens = torch.zeros(n, dtype=torch.long)
    diagnostics.look(pair, tokens, torch.linspace(0, 0.999, n, dtype=torch.float64), places)
    return diagnostics.summary()


def test_a_profile_is_a_mean_by_bin():
    pair = laws()
    profile = looked_at(pair, bins=4)["profile"]
    places, stats = torch.arange(40) % 10, stats_of(pair)
    assert profile["tokens"] == [16, 16, 8]
    for name in ("forward_kl", "cross_entropy", "teacher_entropy", "student_entropy"):
        values = getattr(stats, name).double()
        expected = [
            float(values[places.div(4, rounding_mode="floor") == b].mean()) for b in (0, 1, 2)
        ]
        assert profile[name] == pytest.approx(expected)


def test_bins_weigh_up_to_the_mean():
    found = looked_at(laws(), bins=3)
    tokens, values = found["profile"]["tokens"], found["profile"]["forward_kl"]
    mean = sum(n * value for n, value in zip(tokens, values, strict=True)) / sum(tokens)
    assert found["forward_kl"] == pytest.approx(mean)


def test_an_empty_bin_has_no_tokens():
    places = torch.tensor([0] * 20 + [9] * 20)
    assert looked_at(laws(), bins=4, places=places)["profile"]["tokens"] == [20, 0, 20]


def test_without_bins_or_positions_there_is_no_profile():
    assert looked_at(laws(), bins=None)["profile"] is None
    assert looked_at(laws(), bins=4, share=0.0)["bound_violations"] is None
