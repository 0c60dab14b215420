"""Supervised fine-tuning of a teacher on a task's demonstrations, by TRL's trainer.

Prompts are rendered as everywhere else, so that the teacher learns on the ids it will be asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from fractionate.config import SftTraining
from fractionate.models.prompts import check_length, render
from fractionate.records import SftRecord
from fractionate.rlvr.policy import Policy
from fractionate.rlvr.training import Hooks, common_arguments, quiet, run_trainer
from fractionate.rng import borrow_global, derive_seed
from fractionate.tasks.base import Problem, Task

_IGNORED = -100
"""Label of a token outside the loss, as transformers has it."""


@dataclass(frozen=True)
class Lessons:
    """Prompts with demonstrations as token ids.

    Attributes:
        inputs: Prompt and demonstration, its end token included.
        labels: The same with the prompt's tokens out of the loss.
        too_long: Demonstrations left out because they exceed the limit.
    """

    inputs: tuple[list[int], ...]
    labels: tuple[list[int], ...]
    too_long: int


def lessons(
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    config: SftTraining,
    chat_template_kwargs: Mapping[str, Any],
) -> Lessons:
    """What is learnt from: one demonstration per problem.

    Raises:
        PromptTooLongError: A prompt exceeds `config.prompt`.
        ValueError: Every demonstration exceeds `config.completion`.
    """
    model = policy.plain()
    inputs: list[list[int]] = []
    labels: list[list[int]] = []
    for problem in problems:
        prompt = render(model.tokenizer, problem.messages, chat_template_kwargs)
        check_length(prompt, config.prompt, field="teacher_training.prompt", key=problem.key)
        text = task.demonstration(problem, seed=derive_seed(config.seed, "sft", problem.key))
        answer = [int(i) for i in model.tokenizer(text, add_special_tokens=False)["input_ids"]]
        answer += [] if answer[-1:] == [model.end_id] else [model.end_id]
        if len(answer) <= config.completion:
            inputs.append(prompt + answer)
            labels.append([_IGNORED] * len(prompt) + answer)
    if not inputs:
        raise ValueError(
            f"no demonstration fits into teacher_training.completion {config.completion}. Raise it"
        )
    return Lessons(tuple(inputs), tuple(labels), len(problems) - len(inputs))


@final
class _Trainer(SFTTrainer):
    def create_model_card(self, *_: Any, **__: Any) -> None:
        """A checkpoint that goes with success needs no card."""


def train_sft(
    policy: Policy, learnt: Lessons, config: SftTraining, hooks: Hooks, *, device: str
) -> list[SftRecord]:
    """Fine-tune a policy on demonstrations.

    Args:
        policy: What is trained.
        learnt: Prompts with demonstrations.
        config: Resolved: its adaptation holds no "auto".
        hooks: Checkpoints, kept weights, progress.
        device: Device type.

    Returns:
        One record per update, those before an interruption included.

    Raises:
        DivergedTrainingError: The loss or the gradient norm of an update is not finite.
    """
    data = Dataset.from_dict({"input_ids": learnt.inputs, "labels": learnt.labels})
    with quiet(), borrow_global(config.seed, "trainer"):
        trainer = _Trainer(
            model=policy.trained,
            args=sft_arguments(config, hooks, device=device),
            train_dataset=data,
            processing_class=policy.tokenizer,
        )
    return [
        SftRecord(entry["step"], entry["learning_rate"], entry["loss"], entry["grad_norm"])
        for entry in run_trainer(trainer, hooks, seed=config.seed)
    ]


def sft_arguments(config: SftTraining, hooks: Hooks, *, device: str) -> SFTConfig:
    """TRL's arguments for our settings."""
    with quiet():
        return SFTConfig(
            **common_arguments(config.adaptation, hooks, device=device),
            max_steps=config.steps,
            learning_rate=config.lr,
            warmup_steps=config.warmup,
            max_grad_norm=config.clip,
            per_device_train_batch_size=config.micro_batch,
            gradient_accumulation_steps=config.batch // config.micro_batch,
            max_length=None,
            loss_type="nll",
            save_steps=config.checkpoint_every,
            seed=config.seed,
        )
