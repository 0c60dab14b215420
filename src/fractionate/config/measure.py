"""What is measured of a model, when, and at which cost."""

from collections.abc import Mapping
from pathlib import Path
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


PAPER_BENCHMARKS: Mapping[str, str] = {
    "mmlu_pro": "exact_match,custom-extract",
    "truthfulqa_mc1": "acc,none",
    "ifeval": "prompt_level_strict_acc,none",
    "humaneval_instruct": "pass@1,create_test",
    "eq_bench": "eqbench,none",
    "bbq": "acc,none",
    "toxigen": "acc,none",
}
"""The seven out-of-domain benchmarks of arXiv 2609.35259: lm-evaluation-harness task to the result
that counts."""

CODE_BENCHMARKS = frozenset({"humaneval_instruct"})
"""Those of them that run what the model writes."""


class Harness(Config):
    """Forgetting on the benchmarks of lm-evaluation-harness, for real models.

    Attributes:
        kind: Always "harness".
        tasks: Task or group names of the installed harness; none takes the paper's seven, without
            HumanEval where `allow_code` is false.
        limit: First documents of every task (of every member of a group); none takes all.
        batch_size: Requests in one forward pass; results depend on it by rounding only.
        num_fewshot: Shots by task or group name, where the harness's own number shall not count.
        apply_chat_template: Write prompts in the model's chat template.
        results: The result that counts, by task name, as the harness spells it ("acc,none");
            other tasks take their first metric.
        include: A folder of further task files, which win over the harness's own of one name.
        allow_code: Run programs that the model writes (HumanEval, MBPP), each in a process of its
            own with limits on time and memory. That guards against accidents, not against attacks.
    """

    kind: Literal["harness"] = "harness"
    tasks: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    limit: PositiveInt | None = 200
    batch_size: PositiveInt = 8
    num_fewshot: Mapping[str, NonNegativeInt] = Field(default_factory=dict)
    apply_chat_template: bool = True
    results: Mapping[str, str] = Field(default_factory=dict)
    include: Path | None = None
    allow_code: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The tasks asked for, the paper's written out."""
        if self.tasks is not None:
            return self.tasks
        left_out = frozenset[str]() if self.allow_code else CODE_BENCHMARKS
        return tuple(name for name in PAPER_BENCHMARKS if name not in left_out)

    @model_validator(mode="after")
    def _names_are_asked_for(self) -> "Harness":
        if len(set(self.names)) != len(self.names):
            raise ValueError("forgetting.tasks names a task twice. Remove one")
        for field in ("num_fewshot", "results"):
            strange = sorted(set(dict(self)[field]) - set(self.names))
            if strange:
                raise ValueError(
                    f"forgetting.{field} speaks of '{strange[0]}', which is not among the tasks "
                    f"({', '.join(self.names)}). Add it to forgetting.tasks, or remove it"
                )
        return self


class Gradients(Config):
    """Gradients of four arms at one checkpoint: forward and reverse KL on rollouts of either model.

    Attributes:
        prompts: Prompts of the training split, and rollouts, in one micro-gradient.
        batches: Micro-gradients per arm, on distinct prompts; noise needs at least two.
        max_new_tokens: Longest rollout; none takes `lengths.completion`.
        at: Steps of `evaluate.at` at which they are taken; none takes all of them.
        buckets: Length of the random projection through which larger gradients are compared.
    """

    prompts: PositiveInt = 4
    batches: Annotated[int, Field(ge=2)] = 4
    max_new_tokens: PositiveInt | None = None
    at: tuple[NonNegativeInt | Literal["last"], ...] | None = None
    buckets: PositiveInt = 65_536


class Resampling(Config):
    """The same prompts at several temperatures: what the student can do, and how sure both are.

    Attributes:
        items: Items of the test split, from its start.
        temperatures: Of the sampler, one completion per item each.
    """

    items: PositiveInt = 20
    temperatures: tuple[PositiveFloat, ...] = (0.3, 0.5, 0.7, 1.0)


class Style(Config):
    """Share of responses in the teacher's style, for a teacher that is conditioned on one.

    Attributes:
        kind: "dialect" is the sandbox's second dialect, "spanish" counts function words.
        items: Items of the test split, from its start.
        temperature: Of the sampler.
    """

    kind: Literal["dialect", "spanish"]
    items: PositiveInt = 200
    temperature: PositiveFloat = 1.0


class Evaluate(Config):
    """The measurements of one model.

    Attributes:
        at: Steps at which cells are evaluated; 0 is the untrained student.
        accuracy: Greedy-like accuracy; none leaves it out, as for every field below.
        coverage: pass@k and distinct solutions.
        forgetting: "skills" are the sandbox's prior skills; real models take {kind: harness}.
        skill_items: Items per skill.
        sparsity: Unmoved parameters, with the rounding null.
        harder: The harder task.
        drift: KL to base and teacher.
        gradients: Norms, noise and cosines of four arms' gradients.
        resampling: Accuracy and both entropies at several temperatures.
        style: Responses in the teacher's style.
        seed: Of all samples taken in evaluation; the same for every cell, so that arms are paired
            by item.
    """

    at: tuple[NonNegativeInt | Literal["last"], ...] = (0, "last")
    accuracy: Accuracy | None = Accuracy()
    coverage: Coverage | None = None
    forgetting: Literal["skills"] | Harness | None = None
    skill_items: PositiveInt = 50
    sparsity: Sparsity | None = Sparsity()
    harder: Harder | None = None
    drift: Drift | None = None
    gradients: Gradients | None = None
    resampling: Resampling | None = None
    style: Style | None = None
    seed: NonNegativeInt = 42


class Diagnostics(Config):
    """What is recorded of every step beyond loss and gradient norm.

    Attributes:
        every: Steps between two records of the token diagnostics.
        positions: Completion positions looked at per step, in tokens; a longer batch is sampled.
        bins: Completion positions per bin of the profiles of divergence and entropies (the paper's
            have 50); none records no profile.
    """

    every: PositiveInt = 1
    positions: PositiveInt = 2048
    bins: PositiveInt | None = None
