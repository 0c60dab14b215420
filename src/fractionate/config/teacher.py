"""How a teacher is made of its base model before it teaches: stages, one after another.

Defaults are those of the paper (arXiv 2609.35259, its appendix on teachers): 500 steps of
supervised fine-tuning for every task, then 500 of GRPO where that did not saturate. Adapters are
merged into the base after every stage.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from fractionate.config.base import Part
from fractionate.config.rlvr import Adaptation, Grpo, Seed, check_reward
from fractionate.config.task import Task, check_demonstrations


class SftTraining(Part):
    """Supervised fine-tuning on the task's demonstrations, with the loss on them alone.

    The loss of an update is the cross-entropy in nats, a mean over its demonstration tokens.

    Attributes:
        steps: Updates.
        lr: Peak learning rate; a cosine falls from it to zero.
        warmup: Updates of linear warm-up, the first with rate zero.
        clip: Largest gradient norm.
        batch: Demonstrations in one update.
        micro_batch: Demonstrations in one forward and backward pass.
        prompt: Longest prompt in tokens; a longer one is an error.
        completion: Longest demonstration; longer ones are left out and counted.
        adaptation: What is trained, in which precision.
        use: The update whose weights go on, at which training stops; "last" takes all.
        seed: Of the order of demonstrations and of the adapters.
        checkpoint_every: Updates between two resumable checkpoints; changes no number.
    """

    kind: Literal["sft"] = "sft"
    steps: PositiveInt = 500
    lr: PositiveFloat = 5e-5
    warmup: NonNegativeInt = 10
    clip: PositiveFloat = 1.0
    batch: PositiveInt = 32
    micro_batch: PositiveInt = 4
    prompt: PositiveInt = 2048
    completion: PositiveInt = 2048
    adaptation: Adaptation = Adaptation(quantization="none", optimizer="adamw")
    use: PositiveInt | Literal["last"] = "last"
    seed: Seed = 42
    checkpoint_every: PositiveInt = 50

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.batch % self.micro_batch:
            raise ValueError(
                f"batch {self.batch} is no multiple of micro_batch {self.micro_batch}. Lower "
                "micro_batch to a divisor"
            )
        _within(self.warmup, self.use, self.steps)
        return self


class GrpoTraining(Grpo, Part):
    """GRPO on the study's task, with the reward for correctness and format.

    Attributes:
        use: The update whose weights go on, at which training stops; "last" takes all.
    """

    kind: Literal["grpo"] = "grpo"
    steps: PositiveInt = 500
    lr: PositiveFloat = 1e-5
    warmup: NonNegativeInt = 50
    generation_batch: PositiveInt = 32
    completion: PositiveInt = 824
    format_reward: NonNegativeFloat = 0.5
    use: PositiveInt | Literal["last"] = "last"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _within(self.warmup, self.use, self.steps)
        return self


def _within(warmup: int, use: int | Literal["last"], steps: int) -> None:
    if warmup >= steps:
        raise ValueError(
            f"warmup {warmup} leaves no update at the full rate of {steps} steps. Lower warmup"
        )
    if use != "last" and use > steps:
        raise ValueError(f"use {use} lies beyond steps {steps}")


TeacherTraining = Annotated[SftTraining | GrpoTraining, Field(discriminator="kind")]


def check_teacher_training(stages: Sequence[TeacherTraining], task: Task) -> None:
    """Refuse stages that the task has nothing for.

    Raises:
        ValueError: No demonstration, or no verifier; names the field and the mend.
    """
    for i, stage in enumerate(stages):
        if stage.kind == "grpo":
            check_reward(task, "task")
        else:
            check_demonstrations(task, f"teacher_training[{i}] 'sft' trains on demonstrations")
