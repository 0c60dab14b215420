import math

import pytest
import torch
from transformers.optimization import get_scheduler
from worlds import ADAPTED, FULL, hooks_of, policy_of, rollouts_of, small_config

from cases import EXAMPLES
from fractionate.config import Grpo, Rlvr
from fractionate.models.prompts import PromptTooLongError
from fractionate.rlvr.grpo import checkpoint_steps, grpo_arguments, make_trainer, train_grpo
from fractionate.rlvr.rewards import Reward
from fractionate.rlvr.training import DivergedTrainingError, quiet
from fractionate.tasks.base import Grade


def _trainer(folder, config, rewards=None):
    policy = policy_of(folder / "model", config.adaptation)
    rollouts = rollouts_of(policy, config)
    if rewards is not None:
        fixed = [Reward(value, Grade(value > 0, "ok", answered=True)) for value in rewards]
        rollouts.rewarder = lambda *_: fixed
    return make_trainer(policy, rollouts, config, hooks_of(folder / "scratch"), device="cpu")


def _generation(trainer):
    """One generation as the trainer scores it: the first prompts, a group of each."""
    trainer.model.train()
    group = trainer.num_generations
    keys = [key for key in trainer.rollout_func.keys for _ in range(group)]
    rows = [{"prompt": key} for key in keys[: trainer.args.generation_batch_size]]
    with quiet():
        return trainer._generate_and_score_completions(rows)


@pytest.mark.parametrize(("scale", "key"), [("group", "grpo_adv"), ("none", "grpo_dr")])
def test_worked_advantages(tmp_path, scale, key):
    config = small_config(group=8, generation_batch=8, micro_batch=8, scale_rewards=scale)
    rewards = [2, 0, 0, 2, 0, 0, 0, 0]
    assert torch.tensor(rewards, dtype=torch.float64).std().item() == pytest.approx(
        EXAMPLES["grpo_std"]
    )
    trainer = _trainer(tmp_path, config, [float(value) for value in rewards])
    scored = _generation(trainer)
    assert scored["advantages"].tolist() == pytest.approx(EXAMPLES[key], abs=1e-6)


def test_a_group_of_equal_rewards_has_no_advantage_and_is_counted(tmp_path):
    trainer = _trainer(tmp_path, small_config(), [2.0] * 4 + [2.0, 0.0, 0.0, 2.0])
    advantages = _generation(trainer)["advantages"]
    assert advantages[:4].tolist() == [0.0] * 4
    assert advantages[4:].abs().min() > 0
    assert trainer.rollout_func.counted()["silent_groups"] == 0.5


@pytest.mark.parametrize("micro_batch", [2, 4, 8])
def test_token_losses_are_divided_by_all_tokens_of_the_update(tmp_path, micro_batch):
    """The aggregation of DAPO: any split into micro-batches is one mean over tokens."""
    config = small_config(micro_batch=micro_batch, accumulation=8 // micro_batch)
    trainer = _trainer(tmp_path, config)
    scored = _generation(trainer)
    trainer.current_gradient_accumulation_steps = config.accumulation
    rows = torch.arange(8).split(micro_batch)
    whole = {"num_items_in_batch": scored.pop("num_items_in_batch")}
    with quiet():
        losses = [
            trainer._compute_loss(trainer.model, {n: v[part] for n, v in scored.items()} | whole)
            for part in rows
        ]
    mask = scored["completion_mask"]
    expected = -(scored["advantages"][:, None] * mask).sum() / mask.sum()
    assert sum(loss.item() for loss in losses) == pytest.approx(expected.item(), abs=1e-6)


def test_truncated_completions_leave_the_loss_if_asked(tmp_path):
    trainer = _trainer(tmp_path, small_config(mask_truncated=True))
    scored = _generation(trainer)
    left_out = int((scored["completion_mask"].sum(1) == 0).sum())
    # a pad token written at the very limit passes for an end in TRL
    assert 0 < left_out <= trainer.rollout_func.counted()["truncated"]
    assert scored["num_items_in_batch"] == scored["completion_mask"].sum()


def test_worked_cosine_schedule(tmp_path):
    config = Rlvr(task={"kind": "countdown"}, adaptation=ADAPTED)
    arguments = grpo_arguments(config, hooks_of(tmp_path), device="cpu")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=arguments.learning_rate)
    schedule = get_scheduler(
        arguments.lr_scheduler_type,
        optimizer,
        num_warmup_steps=arguments.get_warmup_steps(config.steps),
        num_training_steps=config.steps,
    )
    rates = []
    for _ in range(config.steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert [rates[i] for i in (0, 15, 30, 165, 299)] == pytest.approx(EXAMPLES["cos"], rel=1e-9)


def test_neither_a_kl_term_nor_an_asymmetric_clip(tmp_path):
    arguments = grpo_arguments(Grpo(adaptation=ADAPTED), hooks_of(tmp_path), device="cpu")
    assert (arguments.beta, arguments.loss_type, arguments.num_iterations) == (0.0, "dapo", 1)
    assert (arguments.epsilon, arguments.epsilon_high) == (0.2, None)
    assert arguments.importance_sampling_level == "token"
    assert (arguments.steps_per_generation, arguments.gradient_accumulation_steps) == (6, 16)


@pytest.mark.slow
@pytest.mark.parametrize("adaptation", [ADAPTED, FULL])
def test_two_runs_are_bit_equal(tmp_path, adaptation):
    config = small_config(adaptation=adaptation, steps=3)
    first, second = (_run(tmp_path / name, config) for name in ("a", "b"))
    assert first[0] == second[0]
    assert all(torch.equal(first[1][name], second[1][name]) for name in first[1])
    assert any(record.grad_norm > 0 for record in first[0])


def _run(folder, config, **hooks):
    policy = policy_of(folder / "model", config.adaptation)
    made = hooks_of(folder / "scratch", **hooks)
    records = train_grpo(policy, rollouts_of(policy, config), config, made, device="cpu")
    return records, {n: p.clone() for n, p in policy.plain().module.named_parameters()}


class KilledError(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("adaptation", [ADAPTED, FULL])
def test_an_interrupted_run_ends_as_if_nothing_had_happened(tmp_path, adaptation):
    config = small_config(
        adaptation=adaptation,
        generation_batch=12,
        micro_batch=4,
        accumulation=2,
        checkpoint_every=1,
    )
    assert checkpoint_steps(config) == 3
    whole = _run(tmp_path / "whole", config)

    def killed(step, _):
        if step == 5:
            raise KilledError

    with pytest.raises(KilledError):
        _run(tmp_path / "killed", config, progress=killed)
    resumed = _run(tmp_path / "killed", config)
    assert resumed[0] == whole[0]
    assert all(torch.equal(whole[1][name], resumed[1][name]) for name in whole[1])


def test_stale_samples_meet_the_ratio_clip(tmp_path):
    """Three micro-batches a generation, two an update: some samples are an update old."""
    config = small_config(generation_batch=12, lr=0.5, warmup=0, ratio_clip=0.01, adaptation=FULL)
    records, _ = _run(tmp_path, config)
    assert any(record.clipped > 0 for record in records)
    assert sum(record.completions for record in records) == 12 * math.ceil(6 * 2 / 3)


def test_a_policy_with_adapters_is_sampled_and_saved_as_their_sum_with_the_base(tmp_path):
    config = small_config(steps=3)
    policy = policy_of(tmp_path / "model", ADAPTED)
    train_grpo(policy, rollouts_of(policy, config), config, hooks_of(tmp_path / "s"), device="cpu")
    ids = torch.arange(3, 11)[None]
    with torch.no_grad():
        trained = policy.trained.eval().get_base_model().model(ids).last_hidden_state
        plain = policy.plain().module.model(ids).last_hidden_state
        untouched = policy_of(tmp_path / "model", ADAPTED).plain().module.model(ids)
    assert torch.allclose(trained, plain, atol=1e-5)
    assert not torch.allclose(plain, untouched.last_hidden_state, atol=1e-4)


def test_a_prompt_over_the_limit_is_an_error_that_names_it(tmp_path):
    config = small_config(prompt=2)
    policy = policy_of(tmp_path / "model", ADAPTED)
    with pytest.raises(PromptTooLongError, match="prompt allows 2"):
        train_grpo(
            policy, rollouts_of(policy, config), config, hooks_of(tmp_path / "s"), device="cpu"
        )


def test_training_that_diverges_says_at_which_update(tmp_path):
    config = small_config(lr=1e39, warmup=0, adaptation=FULL)
    with pytest.raises(DivergedTrainingError, match=r"update \d"):
        _run(tmp_path, config)
