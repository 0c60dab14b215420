"""A plan in words and as plain values."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from fractionate.study.cost import FREE_RESERVE, PlanCost, StageCost
from fractionate.study.kernels import slow_in_bfloat16
from fractionate.study.keys import STAGE_VERSIONS
from fractionate.study.units import counted, human_bytes, human_count

if TYPE_CHECKING:
    from fractionate.study.plan import Plan

_KIND_NAMES = {
    "student_base": "student bases",
    "teacher": "teacher",
    "teacher_training": "trainings of the teacher",
    "preflight": "preflight",
    "base_evaluation": "evaluations of untrained students",
    "teacher_evaluation": "evaluation of the teacher",
    "corpus": "sets of teacher completions",
    "cell": "training runs",
    "cell_evaluation": "evaluations of trained students",
    "rlvr": "RLVR runs",
    "rlvr_evaluation": "evaluations in RLVR",
}


def text(plan: "Plan", cost: PlanCost) -> str:
    """What `fractionate plan` prints."""
    sections = [
        _cells(plan),
        _stages(plan, cost),
        _cost(cost),
        [f"confounded: {confound_text(plan, i)}" for i in range(len(plan.confounds))],
        [f"note: {note}" for note in (*plan.notes, *_processor(plan))],
        [f"plan {plan.key[:16]}, hypotheses {plan.hypotheses_hash[:16]}"],
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def _processor(plan: "Plan") -> list[str]:
    """What this machine, rather than the study, makes slow."""
    narrow = any(
        stage.config["optimizer"]["compute_dtype"] == "bfloat16"
        for stage in plan.stages
        if stage.kind == "cell"
    )
    if not narrow or plan.stages[0].execution["device"] != "cpu" or not slow_in_bfloat16():
        return []
    note = (
        "this processor has no products of bfloat16: a step in it takes about seven times as long "
        "as one in float32. Set optimizer.compute_dtype: float32, which computes on the same "
        "rounded weights, or run on a GPU"
    )
    return [note]


def confound_text(plan: "Plan", index: int) -> str:
    """One confound in a sentence."""
    confound = plan.confounds[index]
    a, b = confound.levels
    return (
        f"{confound.factor} '{a}' against '{b}' also changes {confound.also}. "
        f"For matched cells: {confound.offer}"
    )


def _cells(plan: "Plan") -> list[str]:
    study = plan.study
    levels: dict[str, dict[str, None]] = {}
    for cell in plan.cells:
        for path, label in cell.factors.items():
            levels.setdefault(path, {})[label] = None
    sizes = [str(len(labels)) for labels in levels.values()] + [str(len(study.seeds))]
    lines = [f"study {study.name}: {counted(len(plan.cells), 'cell')} ({' x '.join(sizes)})"]
    lines += [f"  {path}: {', '.join(labels)}" for path, labels in levels.items()]
    lines.append(f"  seeds: {', '.join(str(seed) for seed in study.seeds)}")
    for hypothesis in study.hypotheses:
        margin = hypothesis.equivalence_margin
        lines.append(
            f"  declared: {hypothesis.outcome}, {hypothesis.factor} {hypothesis.treatment} - "
            f"{hypothesis.control}" + (f", equivalent within {margin:g}" if margin else "")
        )
    return lines


def _stages(plan: "Plan", cost: PlanCost) -> list[str]:
    total = Counter(stage.kind for stage in plan.stages)
    done = Counter(stage.kind for stage in plan.stages if stage.key in cost.cached)
    kernel = plan.stages[0].execution["kernel"]
    lines = [f"stages: {len(plan.stages)}, of which {sum(done.values())} done; kernel: {kernel}"]
    lines += [
        f"  {total[kind]:4d} {_KIND_NAMES[kind]} ({done[kind]} done)"
        for kind in STAGE_VERSIONS
        if total[kind]
    ]
    return lines


def _cost(cost: PlanCost) -> list[str]:
    tokens = cost.tokens
    counts = (
        f"{human_count(tokens.generated)} generated, {human_count(tokens.scored)} scored, "
        f"{human_count(tokens.trained)} trained"
    )
    work, work_left = human_count(cost.flops, "FLOP"), human_count(cost.flops_left, "FLOP")
    lines = [
        "cost, at most (every completion at its length limit):",
        f"  tokens: {counts}",
        f"  operations: {work}, {work_left} to do",
        f"  memory: about {human_bytes(cost.memory)} per worker",
        f"  disk: {human_bytes(cost.disk)} of results in all; {_disk_left(cost)}",
    ]
    if cost.unknown:
        lines.append(f"  not counted: models of unknown size ({', '.join(cost.unknown)})")
    return lines


def _disk_left(cost: PlanCost) -> str:
    if not cost.left:
        return "nothing to do"
    return (
        f"what is to do needs {human_bytes(cost.disk_left)} at its peak, scratch included, and "
        f"{human_bytes(FREE_RESERVE)} more kept free"
    )


def plain(plan: "Plan", cost: PlanCost) -> dict[str, Any]:
    """What `fractionate plan --json` prints."""
    return {
        "study": plan.study.name,
        "key": plan.key,
        "hypotheses_hash": plan.hypotheses_hash,
        "cells": [_plain_cell(plan, name) for name in plan.cell_stages],
        "stages": [
            {**stage.to_dict(), "done": stage.key in cost.cached, "cost": _plain_cost(stage_cost)}
            for stage, stage_cost in zip(plan.stages, cost.stages, strict=True)
        ],
        "confounds": [confound_text(plan, i) for i in range(len(plan.confounds))],
        "notes": list(plan.notes),
        "cost": {
            "tokens_generated": cost.tokens.generated,
            "tokens_scored": cost.tokens.scored,
            "tokens_trained": cost.tokens.trained,
            "flops": cost.flops,
            "flops_left": cost.flops_left,
            "memory_bytes": cost.memory,
            "disk_bytes": cost.disk,
            "disk_bytes_left": cost.disk_left,
            "disk_bytes_reserve": FREE_RESERVE if cost.left else 0,
            "unknown_models": list(cost.unknown),
        },
    }


def _plain_cost(cost: StageCost) -> dict[str, Any]:
    return {
        "tokens_generated": cost.tokens.generated,
        "tokens_scored": cost.tokens.scored,
        "tokens_trained": cost.tokens.trained,
        "flops": cost.flops,
        "memory_bytes": cost.memory,
        "disk_bytes": cost.disk,
    }


def _plain_cell(plan: "Plan", name: str) -> dict[str, Any]:
    stages = plan.cell_stages[name]
    return {
        "name": name,
        "factors": dict(stages.cell.factors),
        "seed": stages.cell.seed,
        "base": stages.cell.base,
        "training": stages.training,
        "student_base": stages.base,
        "corpus": stages.corpus,
        "base_evaluation": stages.base_evaluation,
        "evaluations": {str(step): key for step, key in stages.evaluations.items()},
    }
