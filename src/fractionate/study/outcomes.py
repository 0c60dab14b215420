"""From the store to records: what a plan's finished stages left behind."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fractionate.records import (
    CellResult,
    EvalRecord,
    RlvrRecord,
    StepRecord,
    WeightRecord,
    read_jsonl,
)
from fractionate.study.cells import Cell
from fractionate.study.cost import TokenCounts, flops_of, forward_flops
from fractionate.study.plan import CellStages, Plan
from fractionate.study.store import Store, StoreError
from fractionate.study.workspace import hash_of

STEPS, ITEMS, WEIGHTS, SUMMARY = "steps.jsonl", "items.jsonl", "weights.json", "summary.json"
EXAMPLES, UPDATES = "examples.json", "rlvr.jsonl"


@dataclass(frozen=True)
class Outcomes:
    """The records of a study as far as it has got.

    Attributes:
        cells: Every cell that is finished with all its evaluations, in the plan's order.
        missing: Names of the others.
        teacher_evaluation: Items of the teacher, where they are there.
        examples: Completions by cell name, as `prompt`, `completion` and `verdict`.
        preflight: What the preflight found: probes and warnings.
        provenance: Packages, commit and machine of the finished stages, by stage name.
    """

    cells: tuple[CellResult, ...]
    missing: tuple[str, ...]
    teacher_evaluation: tuple[EvalRecord, ...]
    examples: Mapping[str, tuple[Mapping[str, str], ...]]
    preflight: Mapping[str, Any]
    provenance: Mapping[str, Any]


def read_outcomes(plan: Plan, store: Store) -> Outcomes:
    """Everything that a plan's finished stages recorded."""
    cells: list[CellResult] = []
    missing: list[str] = []
    for cell in plan.cells:
        stages = plan.cell_stages[cell.name]
        needed = (stages.training, *stages.evaluations.values(), *_follow_up(stages))
        if all(store.is_done(key) for key in needed):
            cells.append(_cell_result(cell, stages, plan, store))
        else:
            missing.append(cell.name)
    teacher = [s.key for s in plan.of_kind("teacher_evaluation") if store.is_done(s.key)]
    checked = [s.key for s in plan.of_kind("preflight") if store.is_done(s.key)]
    return Outcomes(
        cells=tuple(cells),
        missing=tuple(missing),
        teacher_evaluation=_items(store, teacher[0]) if teacher else (),
        examples=_examples(plan, store),
        preflight=_json(whole(store, checked[0], "preflight.json")) if checked else {},
        provenance=_provenance(plan, store),
    )


def _cell_result(cell: Cell, stages: CellStages, plan: Plan, store: Store) -> CellResult:
    last = int(_json(whole(store, stages.training, SUMMARY))["steps"])
    keys = {last if step == "last" else int(step): key for step, key in stages.evaluations.items()}
    evaluations = {step: _items(store, key) for step, key in keys.items()}
    if stages.base_evaluation is not None and store.is_done(stages.base_evaluation):
        evaluations = {0: _items(store, stages.base_evaluation), **evaluations}
    steps = tuple(read_jsonl(whole(store, stages.training, STEPS), StepRecord))
    own, shared = _flops(cell, stages, plan, steps)
    return CellResult(
        cell=cell.name,
        factors=cell.factors,
        seed=cell.seed,
        base=cell.base,
        steps=steps,
        evaluations=evaluations,
        weights={
            step: WeightRecord(**_json(whole(store, key, WEIGHTS)))
            for step, key in keys.items()
            if (store.path(key) / WEIGHTS).exists()
        },
        seconds=_seconds(store.path(stages.training)),
        flops=own,
        shared_flops=shared,
        rlvr=_updates(stages, store),
        rlvr_evaluations=_held_out(stages, store),
    )


def _follow_up(stages: CellStages) -> tuple[str, ...]:
    """Keys of the stages of a cell's RLVR."""
    return () if stages.rlvr is None else (stages.rlvr, *stages.rlvr_evaluations.values())


def _updates(stages: CellStages, store: Store) -> tuple[RlvrRecord, ...]:
    if stages.rlvr is None:
        return ()
    return tuple(read_jsonl(whole(store, stages.rlvr, UPDATES), RlvrRecord))


def _held_out(stages: CellStages, store: Store) -> dict[int, tuple[EvalRecord, ...]]:
    if stages.rlvr is None:
        return {}
    last = int(_json(whole(store, stages.rlvr, SUMMARY))["steps"])
    return {
        last if step == "last" else int(step): _items(store, key)
        for step, key in stages.rlvr_evaluations.items()
    }


def _flops(
    cell: Cell, stages: CellStages, plan: Plan, steps: Sequence[StepRecord]
) -> tuple[float | None, float | None]:
    """Operations of the cell's own training, and its share of the corpus that it reads."""
    student = plan.dimensions(plan.stage(stages.base))
    teacher = plan.dimensions(plan.of_kind("teacher")[0])
    if student is None or teacher is None or not steps:
        return None, None
    tokens = TokenCounts(
        generated=sum(step.tokens_generated for step in steps),
        scored=sum(step.tokens_scored for step in steps),
        trained=sum(step.tokens_trained for step in steps),
        prompts=sum(step.prompt_tokens for step in steps),
    )
    completions = sum(step.completions for step in steps)
    length = sum(step.completions * step.mean_length for step in steps)
    context = (tokens.prompts + length / 2) / completions
    writer = student if cell.study.method.rollout.kind in ("student", "dataset") else teacher
    own = flops_of(tokens, student=student, teacher=teacher, writer=writer, context=context)
    if stages.corpus is None:
        return own, 0.0
    readers = sum(other.corpus == stages.corpus for other in plan.cell_stages.values())
    corpus = forward_flops(teacher, tokens.prompts + length, context=context, laws=length)
    return own, corpus / readers


def _examples(plan: Plan, store: Store) -> dict[str, tuple[Mapping[str, str], ...]]:
    """What the cells of the first seed wrote at their last evaluated step."""
    found: dict[str, tuple[Mapping[str, str], ...]] = {}
    for cell in plan.cells:
        stages = plan.cell_stages[cell.name]
        if cell.seed != plan.cells[0].seed or not stages.evaluations:
            continue
        key = list(stages.evaluations.values())[-1]
        if store.is_done(key):
            found[cell.name] = tuple(json.loads(whole(store, key, EXAMPLES).read_text("utf-8")))
    return found


def whole(store: Store, key: str, name: str) -> Path:
    """A file of a finished stage, after a look at its checksum.

    Raises:
        StoreError: The file has changed since it was written; names it and the mend.
    """
    path = store.path(key) / name
    if hash_of(path) != store.manifest(key)["files"][name]["sha256"]:
        raise StoreError(
            f"{path} has changed since it was written: its checksum differs. Run the study again: "
            "only this stage is computed anew"
        )
    return path


def _items(store: Store, key: str) -> tuple[EvalRecord, ...]:
    return tuple(read_jsonl(whole(store, key, ITEMS), EvalRecord))


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _seconds(folder: Path) -> float | None:
    path = folder / "provenance.json"
    return float(_json(path)["seconds"]) if path.exists() else None


def _provenance(plan: Plan, store: Store) -> dict[str, Any]:
    """Versions and commits behind the results, each once, when they were made, the total time."""
    seen: list[dict[str, Any]] = []
    finished: list[str] = []
    seconds = 0.0
    for stage in plan.stages:
        path = store.folder(stage) / "provenance.json"
        if not path.exists():
            continue
        known = _json(path)
        seconds += float(known["seconds"])
        finished.append(str(known["finished"]))
        entry = {name: known[name] for name in ("commit", "packages", "python")}
        if entry not in seen:
            seen.append(entry)
    when = {"first": min(finished), "last": max(finished)} if finished else {}
    return {"runs": seen, "finished": when, "seconds": round(seconds, 1)}
