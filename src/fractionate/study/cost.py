"""What a plan costs before it runs, and what a run cost afterwards.

Counted in the units of `operations`. Lengths are the limits of the study, so that every figure of a
plan is an upper bound; memory is an estimate.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fractionate.config import Harness
from fractionate.study.dimensions import Dimensions, dimensions_of
from fractionate.study.errors import StoreFullError
from fractionate.study.keys import Stage
from fractionate.study.memory import recomputes, training_memory
from fractionate.study.operations import (
    BYTES,
    Models,
    StageCost,
    TokenCounts,
    flops_of,
    forward_flops,
)
from fractionate.study.store import Store
from fractionate.study.training_cost import rlvr_cost, teacher_training_cost
from fractionate.study.units import human_bytes

_SKILLS, _SKILL_TOKENS = 14, 8
_BENCHMARK_SIZE, _BENCHMARK_TASKS = 1_000, {"mmlu_pro": 14}
"""Documents of a benchmark whose size only the harness knows; tasks of the groups among them."""
_STEP_RECORD, _ITEM_RECORD = 1024, 512
"""Bytes of one line of records, generously."""
_WAVE_BYTES: Mapping[str, int] = {"cpu": 2**29, "cuda": 2**34}
"""What the decoder's caches may take, by device: `rollouts.decode.BUDGETS` without torch."""
FREE_RESERVE = 64 * 2**20
"""Bytes of disk that a run leaves free."""


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
        elif stage.kind == "teacher_training":
            sizes[stage.key] = sizes[stage.parents[0]]
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
    dtype, stored = "float32", False
    for key in (stage.key, *stage.parents):
        parent = by_key[key]
        if parent.kind == "student_base":
            student = sizes[key]
        elif parent.kind in ("teacher", "teacher_training"):
            teacher, dtype = sizes[key], str(parent.config["teacher_dtype"])
        elif parent.kind == "corpus":
            stored = parent.config["hidden"] == "stored"
    return Models(student, teacher, BYTES[dtype], states_stored=stored)


# ---------------------------------------------------------------- one function per kind of stage


def _weights(stage: Stage, models: Models) -> StageCost:
    own = stage.kind == "student_base"
    model = models.student if own else models.teacher
    size = BYTES["float32"] if own else models.teacher_bytes
    return StageCost(stage.key, stage.kind, memory=float(size * model.parameters) if model else 0.0)


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
    wave = _wave(stage, cache * models.teacher_bytes)
    return replace(
        cost,
        flops=forward_flops(
            model,
            tokens.generated + tokens.prompts,
            context=prompt + completion / 2,
            laws=tokens.generated,
        ),
        memory=float(models.teacher_bytes * model.parameters + wave),
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
    scored = 0 if models.states_stored else made
    tokens = TokenCounts(written, scored, trained, rows * prompt)
    cost = StageCost(stage.key, stage.kind, tokens, disk=_STEP_RECORD * config["budget"]["steps"])
    student, teacher = models.student, models.teacher
    if student is None or teacher is None:
        return cost
    writer = student if rollout["kind"] in ("student", "dataset") else teacher
    optimizer = config["optimizer"] if "optimizer" in config else config["optimizers"][0]
    weights = student.parameters * BYTES[optimizer["param_dtype"]]
    return replace(
        cost,
        flops=flops_of(
            tokens,
            student=student,
            teacher=teacher,
            writer=writer,
            context=prompt + completion / 2,
            recomputed=recomputes(config, optimizer, student),
        ),
        memory=training_memory(config, optimizer, models),
        disk=cost.disk + weights * len(config.get("keep", ())),
        scratch=float(weights + _state(student, optimizer)),
    )


def _state(student: Dimensions, optimizer: Mapping[str, Any]) -> int:
    """Bytes of the two moments and of the master copy."""
    master = 4 if optimizer["master_weights"] == "float32" else 0
    return student.parameters * (2 * BYTES[optimizer["state_dtype"]] + master)


def _evaluation(stage: Stage, models: Models) -> StageCost:
    config = stage.config
    evaluate, lengths = config["evaluate"], config["lengths"]
    model = models.teacher if stage.kind == "teacher_evaluation" else models.student
    rows, generated = _answers(evaluate, lengths)
    drift = config.get("drift")
    drifted = drift["items"] * (drift["to_base"] + drift["to_teacher"]) if drift else 0
    resampled, trained = _beside(config.get("beside") or {}, lengths)
    scored = drifted * lengths["evaluation"] + resampled + trained // 2
    tokens = TokenCounts(generated, scored, trained, prompts=rows * lengths["prompt"])
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
    compared += 3 * forward_flops(model, trained, context=context, laws=trained)
    own = forward_flops(model, generated + tokens.prompts, context=context, laws=generated)
    cache = rows * (lengths["prompt"] + longest) * model.cache_per_token
    size, beside = _widths(stage, models)
    weights = size * model.parameters + beside * other.parameters
    return replace(cost, flops=own + compared, memory=float(weights + _wave(stage, size * cache)))


def _widths(stage: Stage, models: Models) -> tuple[int, int]:
    """Bytes of a weight of the model that is measured, and of the one beside it."""
    if stage.kind == "teacher_evaluation":
        return models.teacher_bytes, 0
    own = BYTES[stage.config["precision"]["compute_dtype"]]
    return own, models.teacher_bytes if models.teacher is not None else BYTES["float32"]


def _wave(stage: Stage, cache: int) -> int:
    """Bytes of the caches that exist at once: rows decode in waves that keep to a budget."""
    return min(cache, _WAVE_BYTES.get(str(stage.execution["device"]), _WAVE_BYTES["cpu"]))


def _beside(beside: Mapping[str, Any], lengths: Mapping[str, int]) -> tuple[int, int]:
    """Tokens of the resampled prompts, and of the gradients: each rollout goes back twice."""
    resampling, gradients = beside.get("resampling"), beside.get("gradients")
    resampled = trained = 0
    if resampling:
        rows = resampling["items"] * len(resampling["temperatures"])
        resampled = rows * lengths["evaluation"]
    if gradients:
        rollouts = 2 * gradients["prompts"] * gradients["batches"]
        trained = 2 * rollouts * gradients["max_new_tokens"]
    return resampled, trained


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
    if isinstance(evaluate["forgetting"], Mapping):
        asked = Harness.model_validate(evaluate["forgetting"])
        documents = sum(
            (asked.limit or _BENCHMARK_SIZE) * _BENCHMARK_TASKS.get(name, 1) for name in asked.names
        )
        rows, tokens = rows + documents, tokens + documents * lengths["evaluation"]
    elif evaluate["forgetting"]:
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
    "teacher_training": teacher_training_cost,
    "rlvr": rlvr_cost,
    "rlvr_evaluation": _evaluation,
}
