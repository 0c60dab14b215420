"""GRPO by TRL's trainer, with samples by our decoder and rewards by the task's verifier.

Of "DAPO" this takes the aggregation alone, as the paper does (arXiv 2609.35259, its appendix on
RLVR): token losses over all tokens of an update. Neither its asymmetric clip nor its dynamic
sampling nor its penalty for length is there; nor is a KL term.

Where a generation does not fill an update, or fills more than one, samples may be an update old:
TRL then takes ratios to the law that sampled and clips them (`RlvrRecord.clipped`).
"""

import math
from collections.abc import Mapping
from typing import Any, final

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from fractionate.config import Grpo
from fractionate.records import RlvrRecord
from fractionate.rlvr.policy import Policy
from fractionate.rlvr.rollouts import GroupRollouts, verified
from fractionate.rlvr.training import Hooks, common_arguments, quiet, run_trainer
from fractionate.rng import borrow_global


def grpo_arguments(config: Grpo, hooks: Hooks, *, device: str) -> GRPOConfig:
    """TRL's arguments for our settings."""
    with quiet():
        return GRPOConfig(
            **common_arguments(config.adaptation, hooks, device=device),
            max_steps=config.steps,
            learning_rate=config.lr,
            warmup_steps=config.warmup,
            max_grad_norm=config.clip,
            per_device_train_batch_size=config.micro_batch,
            gradient_accumulation_steps=config.accumulation,
            generation_batch_size=config.generation_batch,
            num_generations=config.group,
            max_completion_length=config.completion,
            temperature=config.temperature,
            top_p=config.top_p,
            beta=0.0,
            loss_type="dapo",
            importance_sampling_level="token",
            scale_rewards=config.scale_rewards,
            epsilon=config.ratio_clip,
            mask_truncated_completions=config.mask_truncated,
            save_steps=checkpoint_steps(config),
            seed=config.seed,
        )


def checkpoint_steps(config: Grpo) -> int:
    """Updates between checkpoints: at least `checkpoint_every`, and only where a generation ends.

    Samples in use are in no checkpoint, so that a run resumes exactly only where none are left.
    """
    per_generation = config.generation_batch // config.micro_batch
    whole = per_generation // math.gcd(per_generation, config.accumulation)
    return math.ceil(config.checkpoint_every / whole) * whole


@final
class _Trainer(GRPOTrainer):
    """TRL's trainer with our counts in its log, which its checkpoints keep."""

    def __init__(self, rollouts: GroupRollouts, **arguments: Any) -> None:
        self._rollouts = rollouts
        super().__init__(
            reward_funcs=verified,
            train_dataset=Dataset.from_dict({"prompt": rollouts.keys}),
            rollout_func=rollouts,
            **arguments,
        )

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs["counted"] = self._rollouts.counted()
        super().log(logs, start_time)

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """A checkpoint that goes with success needs no card."""


def make_trainer(
    policy: Policy,
    rollouts: GroupRollouts,
    config: Grpo,
    hooks: Hooks,
    *,
    device: str,
) -> GRPOTrainer:
    """A trainer that has not begun."""
    arguments = grpo_arguments(config, hooks, device=device)
    with quiet(), borrow_global(config.seed, "trainer"):
        return _Trainer(
            rollouts, model=policy.trained, args=arguments, processing_class=policy.tokenizer
        )


def train_grpo(
    policy: Policy,
    rollouts: GroupRollouts,
    config: Grpo,
    hooks: Hooks,
    *,
    device: str,
) -> list[RlvrRecord]:
    """Train a policy on the verifier's reward.

    Args:
        policy: What is trained.
        rollouts: Where its samples and their rewards come from.
        config: Resolved: its adaptation holds no "auto".
        hooks: Checkpoints, kept weights, progress.
        device: Device type.

    Returns:
        One record per update, those before an interruption included.

    Raises:
        DivergedTrainingError: The loss or the gradient norm of an update is not finite.
        PromptTooLongError: A prompt exceeds `config.prompt`.
    """
    trainer = make_trainer(policy, rollouts, config, hooks, device=device)
    return [_record(entry) for entry in run_trainer(trainer, hooks, seed=config.seed)]


def _record(entry: Mapping[str, Any]) -> RlvrRecord:
    return RlvrRecord(
        step=entry["step"],
        lr=entry["learning_rate"],
        loss=entry["loss"],
        grad_norm=entry["grad_norm"],
        entropy=entry["entropy"],
        clipped=entry["clip_ratio/region_mean"],
        **entry["counted"],
    )
