"""What a plan costs before it runs, and what a run cost afterwards.

Floating-point operations count a multiplication and an addition as two. A token that goes forward
costs two operations for every parameter of the blocks and 4 * layers * heads * head_dim for every
token it attends to; where its next-token law is wanted, two more for every parameter of the head.
The backward pass costs twice the forward pass. Lengths are the limits of the study, so that every
figure of a plan is an upper bound; memory is an estimate.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fractionate.study.dimensions import Dimensions, dimensions_of
from fractionate.study.errors import StoreFullError
from fractionate.study.keys import Stage
from fractionate.study.store import Store
from fractionate.study.units import human_bytes

_BYTES = {"float32": 4, "bfloat16": 2}
_SKILLS, _SKILL_TOKENS = 14, 8
_STEP_RECORD, _ITEM_RECORD = 1024, 512
"""Bytes of one line of records, generously."""
_LOGIT_ROWS = 1024
"""Positions whose logits exist at once in the fused loss."""
FREE_RESERVE = 64 * 2**20
"""Bytes of disk that a run leaves free."""


@dataclass(frozen=True)
class TokenCounts:
    """Tokens of a stage.

    Attributes:
        generated: Decoded.
        scored: Completion tokens that the teacher scored.
        trained: Tokens in the loss.
        prompts: Prompt tokens that went forward before generating; scoring and training take as
            many again where they happen.
    """

    generated: int = 0
    scored: int = 0
    trained: int = 0
    prompts: int = 0

    def __add__(self, other: "TokenCounts") -> "TokenCounts":
        return TokenCounts(
            self.generated + other.generated,
            self.scored + other.scored,
            self.trained + other.trained,
            self.prompts + other.prompts,
        )


def forward_flops(model: Dimensions, tokens: float, *, context: float, laws: float) -> float:
    """Operations of a forward pass.

    Args:
        model: The model.
        tokens: Tokens that go through the blocks.
        context: Tokens that each of them attends to, on average.
        laws: How many of them get a next-token law.
    """
    attention = 4.0 * model.layers * model.heads * model.head_dim * context
    return tokens * (2.0 * model.block_parameters + attention) + laws * 2.0 * model.head_parameters


def flops_of(
    tokens: TokenCounts,
    *,
    student: Dimensions,
    teacher: Dimensions,
    writer: Dimensions,
    context: float,
) -> float:
    """Operations of distillation steps, from their token counts.

    Args:
        tokens: What was generated, scored and trained.
        student: Trained: forward and backward, three times the forward pass.
        teacher: Scores.
        writer: Generates.
        context: Tokens that a completion token attends to, on average.
    """

    def one_pass(model: Dimensions, completion: int) -> float:
        prompts = tokens.prompts if completion else 0
        return forward_flops(model, completion + prompts, context=context, laws=completion)

    return (
        one_pass(writer, tokens.generated)
        + one_pass(teacher, tokens.scored)
        + 3.0 * one_pass(student, tokens.trained)
    )


@dataclass(frozen=True)
class StageCost:
    """An estimate for one stage.

    Attributes:
        key: Key of the stage.
        kind: Its kind.
        tokens: At most.
        flops: Floating-point operations, at most; 0 where a model's size is unknown.
        memory: Peak bytes of weights, gradients, optimizer, cache and activations.
        disk: Bytes that stay, at most.
        scratch: Bytes of disk needed while it runs, at most.
    """

    key: str
    kind: str
    tokens: TokenCounts = TokenCounts()
    flops: float = 0.0
    memory: float = 0.0
    disk: float = 0.0
    scratch: float = 0.0


@dataclass(frozen=True)
class PlanCost:
    """Estimates for all stages of a plan.

    Attributes:
        stages: In the order of the plan.
        cached: Keys of those that the store has already.
        unknown: Models whose size cannot be told, so that their operations are not counted.
    """

    stages: tuple[StageCost, ...]
    cached: frozenset[str]
    unknown: tuple[str, ...]

    @property
    def left(self) -> tuple[StageCost, ...]:
        """The stages that have yet to run."""
        return tuple(stage for stage in self.stages if stage.key not in self.cached)

    @property
    def tokens(self) -> TokenCounts:
        """Of all stages."""
        return sum((stage.tokens for stage in self.stages), TokenCounts())

    @property
    def flops(self) -> float:
        """Of all stages."""
        return sum(stage.flops for stage in self.stages)

    @property
    def flops_left(self) -> float:
        """Of the stages that have yet to run."""
        return sum(stage.flops for stage in self.left)

    @property
    def memory(self) -> float:
        """Of the largest stage."""
        return max((stage.memory for stage in self.stages), default=0.0)

    @property
    def disk(self) -> float:
        """Of all results."""
        return sum(stage.disk for stage in self.stages)

    @property
    def disk_left(self) -> float:
        """Disk that the stages yet to run need, the largest one's scratch space included."""
        scratch = max((stage.scratch for stage in self.left), default=0.0)
        return sum(stage.disk for stage in self.left) + scratch

    @cached_property
    def flops_by_key(self) -> Mapping[str, float]:
        """Operations by stage."""
        return {stage.key: stage.flops for stage in self.stages}


@dataclass(frozen=True)
class Models:
    """The models behind a stage; one whose size is unknown has none."""

    student: Dimensions | None
    teacher: Dimensions | None
    teacher_bytes: int


def estimate(stages: Sequence[Stage], store: Store | None = None) -> PlanCost:
    """Estimate every stage of a plan.

    Args:
        stages: Parents before children.
        store: Where results may already be.
    """
    sizes: dict[str, Dimensions | None] = {}
    unknown: dict[str, None] = {}
    for stage in stages:
        if stage.kind in ("student_base", "teacher"):
            location = stage.inputs["model"].location
            sizes[stage.key] = dimensions_of(location)
            if sizes[stage.key] is None:
                unknown[location] = None
    by_key = {stage.key: stage for stage in stages}
    costs = tuple(_ESTIMATES[stage.kind](stage, _models(stage, by_key, sizes)) for stage in stages)
    done = frozenset(s.key for s in stages if store is not None and store.is_done(s.key))
    return PlanCost(costs, done, tuple(unknown))


def require_disk(cost: PlanCost, store: Store) -> None:
    """Refuse a run whose results may not fit; one with nothing left to do needs no room.

    Raises:
        StoreFullError: The disk has less room than the plan may need.
    """
    folder = store.root.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if cost.left and cost.disk_left + FREE_RESERVE > free:
        raise StoreFullError(
            f"this run may need {human_bytes(cost.disk_left)} of disk at its peak, with "
            f"{human_bytes(FREE_RESERVE)} more kept free, and {folder} has {human_bytes(free)} "
            "left. Nothing was started. Make room, name another store, keep "
            "fewer checkpoints (checkpoints.keep), or lower lengths.completion"
        )


def _models(
    stage: Stage, by_key: Mapping[str, Stage], sizes: Mapping[str, Dimensions | None]
) -> Models:
    student = teacher = None
    dtype = "float32"
    for key in (stage.key, *stage.parents):
        parent = by_key[key]
        if parent.kind == "student_base":
            student = sizes[key]
        elif parent.kind == "teacher":
            teacher, dtype = sizes[key], str(parent.config["teacher_dtype"])
    return Models(student, teacher, _BYTES[dtype])


# ---------------------------------------------------------------- one function per kind of stage


def _weights(stage: Stage, models: Models) -> StageCost:
    model = models.student if stage.kind == "student_base" else models.teacher
    return StageCost(stage.key, stage.kind, memory=4.0 * model.parameters if model else 0.0)


def _preflight(stage: Stage, models: Models) -> StageCost:
    """One step of every kind of cell on a few prompts."""
    config = stage.config
    rows = len(config["methods"]) * len(config["optimizers"])
    return _training(stage, models, rows * min(4, config["budget"]["prompts_per_step"]))


def _corpus(stage: Stage, models: Models) -> StageCost:
    config, model = stage.config, models.teacher
    prompt, completion = config["lengths"]["prompt"], config["lengths"]["completion"]
    rows = config["budget"]["steps"] * config["budget"]["prompts_per_step"]
    tokens = TokenCounts(generated=rows * completion, prompts=rows * prompt)
    cost = StageCost(stage.key, stage.kind, tokens, disk=float(tokens.generated * 16))
    if model is None:
        return cost
    hidden = 4 * model.hidden if config["hidden"] == "stored" else 0
    cache = config["budget"]["prompts_per_step"] * (prompt + completion) * model.cache_per_token
    return replace(
        cost,
        flops=forward_flops(
            model,
            tokens.generated + tokens.prompts,
            context=prompt + completion / 2,
            laws=tokens.generated,
        ),
        memory=float(models.teacher_bytes * (model.parameters + cache)),
        disk=cost.disk + tokens.generated * hidden,
    )


def _cell(stage: Stage, models: Models) -> StageCost:
    budget = stage.config["budget"]
    return _training(stage, models, budget["steps"] * budget["prompts_per_step"])


def _training(stage: Stage, models: Models, rows: int) -> StageCost:
    config = stage.config
    prompt, completion = config["lengths"]["prompt"], config["lengths"]["completion"]
    made = rows * completion
    trained = min(made, config["budget"]["tokens"] or made)
    rollout = config["method"]["rollout"] if "method" in config else {"kind": "student"}
    written = 0 if rollout["kind"] == "dataset" or rollout.get("cached") else made
    tokens = TokenCounts(written, made, trained, rows * prompt)
    cost = StageCost(stage.key, stage.kind, tokens, disk=_STEP_RECORD * config["budget"]["steps"])
    student, teacher = models.student, models.teacher
    if student is None or teacher is None:
        return cost
    writer = student if rollout["kind"] in ("student", "dataset") else teacher
    optimizer = config["optimizer"] if "optimizer" in config else config["optimizers"][0]
    weights = student.parameters * _BYTES[optimizer["param_dtype"]]
    return replace(
        cost,
        flops=flops_of(
            tokens,
            student=student,
            teacher=teacher,
            writer=writer,
            context=prompt + completion / 2,
        ),
        memory=_training_memory(config, optimizer, models),
        disk=cost.disk + weights * len(config.get("keep", ())),
        scratch=float(weights + _state(student, optimizer)),
    )


def _state(student: Dimensions, optimizer: Mapping[str, Any]) -> int:
    """Bytes of the two moments and of the master copy."""
    master = 4 if optimizer["master_weights"] == "float32" else 0
    return student.parameters * (2 * _BYTES[optimizer["state_dtype"]] + master)


def _training_memory(
    config: Mapping[str, Any], optimizer: Mapping[str, Any], models: Models
) -> float:
    """Weights, gradients, moments, teacher, activations of a micro-batch, cache and logits."""
    student, teacher = models.student, models.teacher
    assert student is not None
    assert teacher is not None
    stored, computed = _BYTES[optimizer["param_dtype"]], _BYTES[optimizer["compute_dtype"]]
    budget, lengths = config["budget"], config["lengths"]
    longest = lengths["prompt"] + lengths["completion"]
    in_batch = max(budget["tokens_per_micro_batch"], longest)
    per_token = student.layers * (16 * student.hidden + 4 * student.intermediate)
    cache = budget["prompts_per_step"] * longest * student.cache_per_token
    return float(
        2 * stored * student.parameters
        + _state(student, optimizer)
        + models.teacher_bytes * teacher.parameters
        + computed * (in_batch * per_token + cache)
        + 4 * 4 * _LOGIT_ROWS * student.vocabulary
    )


def _evaluation(stage: Stage, models: Models) -> StageCost:
    config = stage.config
    evaluate, lengths = config["evaluate"], config["lengths"]
    model = models.teacher if stage.kind == "teacher_evaluation" else models.student
    rows, generated = _answers(evaluate, lengths)
    drift = config.get("drift")
    drifted = drift["items"] * (drift["to_base"] + drift["to_teacher"]) if drift else 0
    scored = drifted * lengths["evaluation"]
    tokens = TokenCounts(generated, scored, prompts=rows * lengths["prompt"])
    cost = StageCost(stage.key, stage.kind, tokens, disk=float(rows * _ITEM_RECORD))
    if model is None:
        return cost
    longest = max(lengths["evaluation"], lengths.get("harder", 0))
    context = lengths["prompt"] + longest / 2
    other = models.teacher or model
    compared = 0.0
    if scored:  # the other model writes and both score
        compared = 2 * forward_flops(other, scored, context=context, laws=scored)
        compared += forward_flops(model, scored, context=context, laws=scored)
    own = forward_flops(model, generated + tokens.prompts, context=context, laws=generated)
    batch = min(rows, 256)
    cache = batch * (lengths["prompt"] + longest) * model.cache_per_token
    return replace(
        cost, flops=own + compared, memory=4.0 * (model.parameters + other.parameters + cache)
    )


def _answers(evaluate: Mapping[str, Any], lengths: Mapping[str, int]) -> tuple[int, int]:
    """Completions of an evaluation and their tokens, at most."""
    rows = tokens = 0
    if evaluate["accuracy"]:
        rows += evaluate["accuracy"]["items"]
    if evaluate["coverage"]:
        coverage = evaluate["coverage"]
        rows += coverage["items"] * coverage["samples"] * len(coverage["temperatures"])
    tokens += rows * lengths["evaluation"]
    if evaluate["harder"]:
        harder = evaluate["harder"]["items"] * evaluate["harder"]["samples"]
        rows, tokens = rows + harder, tokens + harder * lengths["harder"]
    if evaluate["forgetting"]:
        skills = _SKILLS * evaluate["skill_items"]
        rows, tokens = rows + skills, tokens + skills * _SKILL_TOKENS
    return rows, tokens


_ESTIMATES: Mapping[str, Callable[[Stage, Models], StageCost]] = {
    "student_base": _weights,
    "teacher": _weights,
    "preflight": _preflight,
    "base_evaluation": _evaluation,
    "teacher_evaluation": _evaluation,
    "corpus": _corpus,
    "cell": _cell,
    "cell_evaluation": _evaluation,
}
