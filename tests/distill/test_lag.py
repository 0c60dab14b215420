"""Completions of an older student: when they are drawn, what they weigh, and resuming."""

from pathlib import Path

import pytest
import torch

from fractionate.config import Budget, Diagnostics, Method, Optimizer, Temperature
from fractionate.distill.journal import Journal
from fractionate.distill.lag import LaggedRollouts
from fractionate.distill.loop import distill
from fractionate.distill.objective import Objective
from fractionate.distill.prompts import Prompt
from fractionate.distill.run import Distillation
from fractionate.distill.scoring import Scorer
from fractionate.distill.sources import FreshRollouts
from fractionate.distill.staleness import staleness, staleness_summary
from fractionate.distill.student import Student
from fractionate.models.load import wrap
from fractionate.records import StepRecord, StopReason, read_jsonl
from fractionate.rollouts.completions import Completions
from fractionate.tasks.base import Problem
from tiny import llama, tokenizer


def _method(lag: int, cap: float | None = 2.0) -> Method:
    rollout = {"kind": "student", "lag": lag, "stale_cap": cap}
    return Method.model_validate({"rollout": rollout})


def _prompts(step: int) -> list[Prompt]:
    ids = [(1, 5 + step % 7, 6), (1, 7, 8, 9)]
    return [Prompt(Problem(str(p), (), {}), p, p) for p in ids]


def _run(folder: Path, method: Method, lag: int, steps: int = 5) -> Distillation:
    folder.mkdir(exist_ok=True)
    student, teacher = wrap(llama(1), tokenizer()), wrap(llama(2, width=64), tokenizer())
    fresh = FreshRollouts(method, student=student, teacher=teacher, max_new_tokens=8, seed=42)
    optimizer = Optimizer(
        lr=1e-2, warmup=0, param_dtype="float32", state_dtype="float32", compute_dtype="float32"
    )
    return Distillation(
        student=Student(student, optimizer),
        scorer=Scorer(student=student, teacher=teacher, vocab_size=32),
        source=LaggedRollouts(fresh, lag=lag, steps=5, prompts=_prompts) if lag else fresh,
        objective=Objective(method, max_length=8),
        prompts=_prompts,
        budget=Budget(steps=steps),
        diagnostics=Diagnostics(),
        seed=42,
        journal=Journal(folder, folder),
        checkpoint_every=2,
        save_at=frozenset(),
        save=_save_nothing,
    )


def _records(folder: Path) -> list[StepRecord]:
    return read_jsonl(folder / "steps.jsonl", StepRecord)


def _save_nothing(step: int, student: Student) -> None:
    """Weights are not wanted."""


def _silent(step: int, steps: int) -> None:
    """Nobody listens."""


def test_the_first_steps_train_on_the_untrained_students_completions(tmp_path):
    run = _run(tmp_path, _method(2), 2)
    first = run.source.completions(0, _prompts(0))
    fresh = _run(tmp_path / "fresh", _method(0), 0).source
    untrained = [fresh.completions(step, _prompts(step)).completions for step in range(3)]
    later = [run.source.completions(step, _prompts(step)).completions for step in (1, 2)]
    for drawn, expected in zip([first.completions, *later], untrained, strict=True):
        assert torch.equal(drawn.tokens, expected.tokens)
    assert first.tokens_generated == sum(found.n_tokens for found in untrained)


def test_an_interrupted_lagged_run_continues_bit_for_bit(tmp_path):
    straight = _run(tmp_path / "straight", _method(2), 2)
    distill(straight, progress=_silent)
    distill(_run(tmp_path / "resumed", _method(2), 2, steps=3), progress=_silent)
    second = _run(tmp_path / "resumed", _method(2), 2)
    distill(second, progress=_silent)
    for name, tensor in straight.student.weights().items():
        assert torch.equal(tensor, second.student.weights()[name]), name
    assert _records(tmp_path / "straight") == _records(tmp_path / "resumed")


def test_records_say_how_stale_the_completions_were(tmp_path):
    distill(_run(tmp_path, _method(2), 2), progress=_silent)
    first, *others = _records(tmp_path)
    assert first.stale_weight == pytest.approx(1.0, abs=1e-5)
    assert first.stale_kl == pytest.approx(0.0, abs=1e-5)
    assert any(abs(record.stale_weight - 1.0) > 1e-3 for record in others)


def test_without_a_cap_completions_keep_their_weight(tmp_path):
    distill(_run(tmp_path, _method(1, None), 1), progress=_silent)
    records = _records(tmp_path)
    assert all(record.stale_weight is None for record in records)
    assert records[-1].stale_kl is not None


def test_the_weight_is_the_mean_of_the_capped_ratios():
    logits = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    present = logits.log_softmax(-1)[:, 1]
    rollout = Completions(
        tokens=torch.tensor([[1, 1]]),
        lengths=torch.tensor([2]),
        log_probs=(present - torch.tensor([1.5, -0.5]).exp().log())[None],
        source=torch.zeros(1, 2, dtype=torch.long),
        stop=(StopReason.LENGTH,),
    )
    found = staleness(Temperature(), logits=logits, rollout=rollout, mask=rollout.mask, cap=2.0)
    assert found.weights.tolist() == pytest.approx([(2.0 + torch.tensor(-0.5).exp().item()) / 2])
    assert (found.clipped, found.tokens) == (1, 2)


def test_tokens_that_the_present_nucleus_leaves_out_weigh_nothing_and_are_counted():
    logits = torch.tensor([[4.0, 0.0], [4.0, 0.0]])
    rollout = Completions(
        tokens=torch.tensor([[0, 1]]),
        lengths=torch.tensor([2]),
        log_probs=torch.tensor([[-0.5, -1.0]]),
        source=torch.zeros(1, 2, dtype=torch.long),
        stop=(StopReason.LENGTH,),
    )
    temperature = Temperature(top_p=0.8)  # holds the first token alone
    found = staleness(temperature, logits=logits, rollout=rollout, mask=rollout.mask, cap=2.0)
    assert found.weights.tolist() == pytest.approx([torch.tensor(0.5).exp().item() / 2])
    summary = staleness_summary([found])
    assert summary["stale_outside"] == 0.5
    assert summary["stale_kl"] == pytest.approx(-0.5)


def test_a_lagged_run_with_a_nucleus_records_finite_numbers(tmp_path):
    rollout = {"kind": "student", "lag": 1}
    method = Method.model_validate({"rollout": rollout, "temperature": {"top_p": 0.5}})
    distill(_run(tmp_path, method, 1), progress=_silent)
    assert max(record.stale_outside for record in _records(tmp_path)) > 0


def test_the_rollouts_own_tokens_cannot_be_stale():
    with pytest.raises(ValueError, match="lag"):
        Method.model_validate(
            {
                "rollout": {"kind": "student", "lag": 1},
                "divergence": {"kind": "reverse"},
                "support": {"kind": "sampled", "token": "rollout"},
            }
        )
