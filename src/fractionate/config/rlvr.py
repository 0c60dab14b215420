"""Reinforcement learning with verifiable rewards: GRPO from a distilled student, or of a teacher.

Defaults are those of the paper (arXiv 2609.35259, its appendix tables on RLVR and on teachers).
Not stated there, and ours: the completions of one forward pass (its table cannot be read; 8, as for
its teachers), the ratio clip (TRL's 0.2 on both sides), truncated completions in the loss.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from fractionate.config.base import Config
from fractionate.config.measure import Accuracy, Coverage
from fractionate.config.task import CountdownTask, Task

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""What third-party trainers accept as a seed."""


class Lora(Config):
    """Low-rank adapters: weights W + (alpha / rank) B A, of which only A and B are trained.

    Attributes:
        rank: Rank of the update.
        alpha: Its scale times the rank.
        dropout: On the adapter's input, in training.
        targets: Names of the projections that get one.
    """

    rank: PositiveInt = 256
    alpha: PositiveInt = 256
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    targets: tuple[str, ...] = PROJECTIONS


class Adaptation(Config):
    """What is trained of a model, and in which precision.

    `auto` is resolved by the plan, from the device and from whether bitsandbytes is installed; the
    plan says the result and the stage key holds it.

    Attributes:
        lora: The adapters; none trains all weights.
        quantization: Of the frozen base: "nf4" is four-bit, "none" keeps `dtype`. "auto" takes
            nf4 on a GPU with bitsandbytes, none elsewhere.
        optimizer: "adamw_8bit" keeps the moments in eight bits. "auto" takes it on a GPU with
            bitsandbytes, AdamW with moments in float32 elsewhere.
        dtype: In which the model computes. "auto" takes bfloat16 on a GPU, float32 on a CPU.
        recompute: Compute activations again in the backward pass (gradient checkpointing): less
            memory, the same numbers.
    """

    lora: Lora | None = Lora()
    quantization: Literal["auto", "none", "nf4"] = "auto"
    optimizer: Literal["auto", "adamw", "adamw_8bit"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    recompute: bool = True

    @model_validator(mode="after")
    def _quantized_bases_are_frozen(self) -> Self:
        if self.quantization == "nf4" and self.lora is None:
            raise ValueError(
                "quantization 'nf4' needs a frozen base, but lora is null, which trains all "
                "weights. Set lora, or quantization: none"
            )
        return self


class Grpo(Config):
    """Group-relative policy optimisation with DAPO's token mean and without a KL term.

    A completion's advantage is (R - mean) / (sd + 1e-4) within its group; token losses of one
    update are summed and divided by all its completion tokens.

    Attributes:
        steps: Updates.
        lr: Peak learning rate; a cosine falls from it to zero.
        warmup: Updates of linear warm-up, the first with rate zero.
        clip: Largest gradient norm.
        group: Completions per prompt.
        generation_batch: Completions sampled at once, from one state of the weights.
        micro_batch: Completions in one forward and backward pass.
        accumulation: Such passes in one update.
        temperature: Of the sampler, and of the law whose ratios are taken.
        top_p: Nucleus of the sampler.
        prompt: Longest prompt in tokens; a longer one is an error.
        completion: Longest completion, in training and in its held-out evaluation.
        correct_reward: For a completion that the task's verifier accepts, else 0.
        format_reward: At most this much for each of: one pair of each tag, their order, nothing
            outside them.
        scale_rewards: Whether a group's deviations are divided by its standard deviation.
        ratio_clip: The ratio of new to old probability counts within 1 - this and 1 + this.
        mask_truncated: Leave completions that met the limit out of the loss.
        adaptation: What is trained, in which precision.
        seed: Of prompts, adapters and samples.
        checkpoint_every: Updates between two resumable checkpoints; changes no number.
    """

    steps: PositiveInt = 300
    lr: PositiveFloat = 2e-6
    warmup: NonNegativeInt = 30
    clip: PositiveFloat = 1.0
    group: Annotated[int, Field(ge=2)] = 8
    generation_batch: PositiveInt = 48
    micro_batch: PositiveInt = 8
    accumulation: PositiveInt = 16
    temperature: PositiveFloat = 1.0
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 0.95
    prompt: PositiveInt = 2048
    completion: PositiveInt = 1024
    correct_reward: PositiveFloat = 2.0
    format_reward: NonNegativeFloat = 0.0
    scale_rewards: Literal["group", "none"] = "group"
    ratio_clip: PositiveFloat = 0.2
    mask_truncated: bool = False
    adaptation: Adaptation = Adaptation()
    seed: Seed = 42
    checkpoint_every: PositiveInt = 50

    @model_validator(mode="after")
    def _batches_divide(self) -> Self:
        for name, size in (("group", self.group), ("micro_batch", self.micro_batch)):
            if self.generation_batch % size:
                raise ValueError(
                    f"generation_batch {self.generation_batch} is no multiple of {name} {size}: "
                    "a generation holds whole groups and whole micro-batches"
                )
        if self.warmup >= self.steps:
            raise ValueError(
                f"warmup {self.warmup} leaves no update at the full rate of {self.steps} steps. "
                "Lower warmup"
            )
        return self


class HeldOut(Config):
    """Evaluation of a policy on the test split of its own task.

    Attributes:
        at: Updates after which it is evaluated; 0 is the distilled student.
        accuracy: One sample per item; none leaves it out, as for every field below.
        coverage: pass@k from several samples per item.
        forgetting: "skills" are the sandbox's prior skills.
        skill_items: Items per skill.
        seed: Of all samples taken; the same for every cell.
    """

    at: tuple[NonNegativeInt | Literal["last"], ...] = (0, "last")
    accuracy: Accuracy | None = Accuracy()
    coverage: Coverage | None = None
    forgetting: Literal["skills"] | None = None
    skill_items: PositiveInt = 50
    seed: NonNegativeInt = 42

    @model_validator(mode="after")
    def _measures_something(self) -> Self:
        if self.at and not (self.accuracy or self.coverage or self.forgetting):
            raise ValueError(
                "rlvr.evaluate measures nothing: set accuracy, coverage or forgetting, or at: []"
            )
        return self


class Rlvr(Grpo):
    """GRPO from every distilled student at its last step.

    Attributes:
        task: What is rewarded, usually a harder version of the study's task.
        cells: Which cells go on: level labels by factor; empty takes all.
        evaluate: Held-out evaluation, beside the training reward.
    """

    task: Task
    cells: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    evaluate: HeldOut = HeldOut()

    @model_validator(mode="after")
    def _evaluated_within(self) -> Self:
        late = [at for at in self.evaluate.at if at != "last" and at > self.steps]
        if late:
            raise ValueError(f"rlvr.evaluate.at {late} lies beyond rlvr.steps {self.steps}")
        return self


def check_reward(task: Task, field: str) -> None:
    """Refuse a task without a verifier.

    Raises:
        ValueError: Nothing would be rewarded; names the field.
    """
    if task.kind == "table" and task.grade == "none":
        raise ValueError(f"{field}.grade is 'none', so nothing would be rewarded. Name a grade")


def check_rlvr(rlvr: Rlvr, *, sandbox_problems: Mapping[int, int] | None) -> None:
    """Refuse what the study's world cannot reward or measure.

    Args:
        rlvr: The settings.
        sandbox_problems: Test problems by number of operands, where the study is in the sandbox.

    Raises:
        ValueError: Names the field and the mend.
    """
    task, evaluate = rlvr.task, rlvr.evaluate
    check_reward(task, "rlvr.task")
    if sandbox_problems is None and evaluate.forgetting is not None:
        raise ValueError(
            "rlvr.evaluate.forgetting 'skills' are skills of the sandbox, but this study has "
            "'models'. Set rlvr.evaluate.forgetting: null"
        )
    held: int = task.test
    if sandbox_problems is not None:
        if (
            task.kind != "countdown"
            or task.operands not in sandbox_problems
            or task != CountdownTask(operands=task.operands)
        ):
            raise ValueError(
                "the sandbox poses its own Countdown problems: of rlvr.task only "
                "{kind: countdown, operands: 3 or 4} can be set, or use 'models'"
            )
        held = sandbox_problems[task.operands]
    for name in ("accuracy", "coverage"):
        part: Accuracy | Coverage | None = dict(evaluate)[name]
        if part is not None and part.items > held:
            raise ValueError(
                f"rlvr.evaluate.{name}.items is {part.items}, but the test split of rlvr.task "
                f"holds {held} problems. Lower it"
            )
