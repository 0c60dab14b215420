"""The loop: budgets, resuming, sources, and what a record says."""

from pathlib import Path

import pytest
import torch

from fractionate.config import Budget, Diagnostics, Method, Optimizer
from fractionate.distill.journal import Journal
from fractionate.distill.loop import distill
from fractionate.distill.objective import Objective
from fractionate.distill.prompts import Prompt, prompt_indices
from fractionate.distill.run import Distillation
from fractionate.distill.scoring import Scorer
from fractionate.distill.sources import rollout_source
from fractionate.distill.student import NonFiniteUpdateError, Student
from fractionate.models.load import wrap
from fractionate.records import Source, StepRecord, StopReason, read_jsonl
from fractionate.rollouts.draw import Speaker, draw
from fractionate.tasks.base import Problem
from fractionate.tasks.countdown import Countdown
from tiny import llama, tokenizer

FORWARD = Method.model_validate({})
TEACHER = Method.model_validate({"rollout": {"kind": "teacher", "cached": False}})


def _prompts(step: int) -> list[Prompt]:
    ids = [(1, 5 + step % 7, 6), (1, 7, 8, 9), (1, 11 + step % 5)]
    return [Prompt(Problem(str(p), (), {}), p, p) for p in ids]


def _run(folder: Path, method: Method = FORWARD, **changes) -> Distillation:
    folder.mkdir(exist_ok=True)
    models = {
        "student": wrap(llama(1), tokenizer()),
        "teacher": wrap(llama(2, width=64), tokenizer()),
    }
    settings = {
        "student": Student(models["student"], Optimizer(lr=1e-3, warmup=0)),
        "scorer": Scorer(**models, vocab_size=32),
        "source": rollout_source(
            method, task=Countdown(operands=3), **models, corpus=None, max_new_tokens=8, seed=42
        ),
        "objective": Objective(method, max_length=8),
        "prompts": _prompts,
        "budget": Budget(steps=5),
        "diagnostics": Diagnostics(),
        "seed": 42,
        "journal": Journal(folder, folder),
        "checkpoint_every": 2,
        "save_at": frozenset(),
        "save": _save_nothing,
    }
    return Distillation(**{**settings, **changes})


def _save_nothing(step: int, student: Student) -> None:
    """Weights are not wanted."""


def _silent(step: int, steps: int) -> None:
    """Nobody listens."""


def _records(folder: Path) -> list[StepRecord]:
    return read_jsonl(folder / "steps.jsonl", StepRecord)


@pytest.mark.parametrize("method", [FORWARD, TEACHER], ids=["student", "teacher"])
def test_an_interrupted_run_continues_bit_for_bit(method: Method, tmp_path):
    straight = _run(tmp_path / "straight", method)
    distill(straight, progress=_silent)
    first = _run(tmp_path / "resumed", method, budget=Budget(steps=3))
    distill(first, progress=_silent)
    second = _run(tmp_path / "resumed", method)
    distill(second, progress=_silent)
    for name, tensor in straight.student.weights().items():
        assert torch.equal(tensor, second.student.weights()[name]), name
    assert _records(tmp_path / "straight") == _records(tmp_path / "resumed")


def test_a_budget_in_tokens_ends_with_the_step_that_reaches_it(tmp_path):
    steps = distill(_run(tmp_path, budget=Budget(steps=50, tokens=30)), progress=_silent)
    trained = [record.tokens_trained for record in _records(tmp_path)]
    assert sum(trained) >= 30 > sum(trained[:-1])
    assert steps == len(trained)


def test_micro_batches_do_not_change_the_step(tmp_path):
    for name, tokens in (("whole", 4096), ("split", 12)):
        budget = Budget(steps=1, tokens_per_micro_batch=tokens)
        distill(_run(tmp_path / name, budget=budget), progress=_silent)
    (whole,), (split,) = _records(tmp_path / "whole"), _records(tmp_path / "split")
    assert split.loss == pytest.approx(whole.loss, rel=1e-2)  # bfloat16 forward passes
    assert split.tokens_trained == whole.tokens_trained


def test_weights_are_kept_at_the_asked_steps(tmp_path):
    kept = []
    run = _run(tmp_path, save_at=frozenset({2, 4}), save=lambda step, _: kept.append(step))
    distill(run, progress=_silent)
    assert kept == [2, 4]


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(tmp_path):
    run = _run(tmp_path, budget=Budget(steps=3))
    distill(run, progress=_silent)
    broken = _run(tmp_path)
    parameter = next(broken.scorer._teacher.module.parameters())
    parameter.data.fill_(float("nan"))
    with pytest.raises((NonFiniteUpdateError, ValueError)):
        distill(broken, progress=_silent)
    assert Journal(tmp_path, tmp_path).resume()[0] == 2


def test_on_policy_tokens_are_counted_as_generated_scored_and_trained(tmp_path):
    distill(_run(tmp_path, budget=Budget(steps=1)), progress=_silent)
    (record,) = _records(tmp_path)
    assert record.tokens_generated == record.tokens_scored == record.tokens_trained > 0
    assert record.prompt_tokens == sum(len(prompt.student) for prompt in _prompts(0))


def test_teacher_rollouts_keep_the_states_that_scoring_needs(tmp_path):
    distill(_run(tmp_path, TEACHER, budget=Budget(steps=1)), progress=_silent)
    assert _records(tmp_path)[0].tokens_scored == 0


def test_every_token_says_who_wrote_it():
    models = [wrap(llama(1), tokenizer()), wrap(llama(2, width=64), tokenizer())]
    prompts = [list(prompt.student) for prompt in _prompts(0)]
    for rollout, source in (("student", Source.STUDENT), ("teacher", Source.TEACHER)):
        method = Method.model_validate({"rollout": {"kind": rollout}})
        drawn = draw(
            method.rollout,
            method.temperature,
            student=Speaker(models[0], prompts),
            teacher=Speaker(models[1], prompts),
            max_new_tokens=6,
            seed=1,
        )
        assert set(drawn.source[drawn.mask].tolist()) == {source}


def test_the_stop_token_is_in_the_loss_and_padding_with_the_same_id_is_not():
    """Masks come from lengths: here the pad id is the stop id."""
    tokens = tokenizer()
    tokens.pad_token = "<eos>"
    model = wrap(llama(1), tokens)
    assert model.pad_id in model.stop_ids
    drawn = draw(
        FORWARD.rollout,
        FORWARD.temperature,
        student=Speaker(model, [[1, 5], [1, 6], [1, 7], [1, 8]]),
        teacher=None,
        max_new_tokens=40,
        seed=3,
    )
    stopped = [i for i, reason in enumerate(drawn.stop) if reason is StopReason.STOP]
    assert stopped
    for row in stopped:
        length = int(drawn.lengths[row])
        assert drawn.mask[row].sum() == length
        assert int(drawn.tokens[row, length - 1]) in model.stop_ids


@pytest.mark.parametrize("order", ["step_draw", "epoch_shuffle"])
def test_a_step_poses_no_problem_twice_and_every_arm_sees_the_same(order: str):
    arguments = {"n_problems": 10, "prompts_per_step": 5, "order": order, "seed": 1}
    for step in range(4):
        drawn = prompt_indices(step, **arguments)
        assert len(set(drawn)) == 5
        assert drawn == prompt_indices(step, **arguments)


def test_epochs_cover_every_problem_once():
    seen = [
        index
        for step in range(4)
        for index in prompt_indices(
            step, n_problems=8, prompts_per_step=2, order="epoch_shuffle", seed=1
        )
    ]
    assert sorted(seen) == list(range(8))


def test_too_few_problems_for_a_step_names_the_field():
    with pytest.raises(ValueError, match=r"budget\.prompts_per_step"):
        prompt_indices(0, n_problems=3, prompts_per_step=4, order="step_draw", seed=1)
