"""What is measured of a model, when, and at which cost."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from fractionate.config.base import Config

_Temperature = Annotated[float, Field(ge=0.0)]


class Accuracy(Config):
    """One sample per item.

    Attributes:
        items: Items of the test split, from its start.
        temperature: Of the sampler; 0 decodes greedily.
    """

    items: PositiveInt = 200
    temperature: _Temperature = 0.5


class Coverage(Config):
    """pass@k and distinct solutions from several samples per item.

    Attributes:
        items: Items of the test split, from its start.
        samples: Samples per item.
        k: Values of k; the largest may not exceed `samples`.
        temperatures: Of the sampler, one set of samples each.
    """

    items: PositiveInt = 200
    samples: PositiveInt = 16
    k: tuple[PositiveInt, ...] = (1, 2, 4, 8, 16)
    temperatures: tuple[PositiveFloat, ...] = (0.5, 1.0)

    @model_validator(mode="after")
    def _k_is_sampled(self) -> "Coverage":
        if max(self.k, default=0) > self.samples:
            raise ValueError(
                f"coverage.k {max(self.k)} is larger than coverage.samples {self.samples}: "
                "pass@k needs at least k samples"
            )
        return self


class Sparsity(Config):
    """Share of parameters that the update left unmoved.

    Attributes:
        thresholds: A parameter counts as unmoved below it (strictly); 0 means exactly equal.
    """

    thresholds: tuple[Annotated[float, Field(ge=0.0)], ...] = (0.0, 1e-8, 1e-6, 1e-5)


class Harder(Config):
    """A harder version of the task, never trained on.

    Attributes:
        operands: Numbers of a problem.
        numbers: Which numbers may be given; none takes the task's own.
        items: Problems.
        samples: Samples per problem.
        temperature: Of the sampler.
    """

    operands: Annotated[int, Field(ge=2, le=6)] = 4
    numbers: tuple[PositiveInt, ...] | None = None
    items: PositiveInt = 200
    samples: PositiveInt = 1
    temperature: PositiveFloat = 0.5


class Drift(Config):
    """Distance to the base model and to the teacher, on prompts of the test split.

    Attributes:
        items: Prompts.
        to_base: KL(base || model) on the base model's completions, both at temperature 1.
        to_teacher: KL(teacher || model) on the teacher's completions, at the loss temperatures.
    """

    items: PositiveInt = 64
    to_base: bool = True
    to_teacher: bool = True


class Evaluate(Config):
    """The measurements of one model.

    Attributes:
        at: Steps at which cells are evaluated; 0 is the untrained student.
        accuracy: Greedy-like accuracy; none leaves it out, as for every field below.
        coverage: pass@k and distinct solutions.
        forgetting: "skills" are the sandbox's prior skills.
        skill_items: Items per skill.
        sparsity: Unmoved parameters, with the rounding null.
        harder: The harder task.
        drift: KL to base and teacher.
        seed: Of all samples taken in evaluation; the same for every cell, so that arms are paired
            by item.
    """

    at: tuple[NonNegativeInt | Literal["last"], ...] = (0, "last")
    accuracy: Accuracy | None = Accuracy()
    coverage: Coverage | None = None
    forgetting: Literal["skills"] | None = None
    skill_items: PositiveInt = 50
    sparsity: Sparsity | None = Sparsity()
    harder: Harder | None = None
    drift: Drift | None = None
    seed: NonNegativeInt = 42


class Diagnostics(Config):
    """What is recorded of every step beyond loss and gradient norm.

    Attributes:
        every: Steps between two records of the token diagnostics.
        positions: Completion positions looked at per step, in tokens; a longer batch is sampled.
    """

    every: PositiveInt = 1
    positions: PositiveInt = 2048
