"""Teacher training, distillation and RLVR as stages of one study over tiny models."""

import json
from collections import Counter
from pathlib import Path

import pytest

from fractionate.api import plan, run
from fractionate.config.files import parse_study
from fractionate.records import RlvrRecord, SftRecord, read_jsonl
from fractionate.study.store import Store
from tiny import save_pair

ADAPTED = {"lora": {"rank": 4, "alpha": 4}, "recompute": False}
GRPO = {
    "steps": 2,
    "lr": 1e-3,
    "warmup": 0,
    "group": 2,
    "generation_batch": 4,
    "micro_batch": 4,
    "accumulation": 1,
    "prompt": 16,
    "completion": 6,
    "adaptation": ADAPTED,
}
SFT = {
    "kind": "sft",
    "steps": 3,
    "warmup": 1,
    "batch": 4,
    "micro_batch": 2,
    "prompt": 16,
    "completion": 3,
    "adaptation": ADAPTED,
    "use": 2,
}


def _study(folder: Path):
    student, teacher = save_pair(folder)
    rows = [
        {
            "prompt": f"{3 + i % 20} {4 + i % 17} {i % 9}",
            "answer": str(i % 7),
            "text": " ".join(["5"] * (1 + i % 3)),
            "key": i,
        }
        for i in range(40)
    ]
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "kind": "table",
        "path": str(data),
        "prompt": "prompt",
        "answer": "answer",
        "completion": "text",
        "key": "key",
        "selection": 8,
        "test": 8,
    }
    return parse_study(
        {
            "name": "trained",
            "models": {"student": str(student), "teacher": str(teacher)},
            "task": task,
            "teacher_training": [SFT, {"kind": "grpo", **GRPO}],
            "optimizer": {"lr": 1e-3, "warmup": 0, "compute_dtype": "float32"},
            "budget": {"steps": 2, "prompts_per_step": 2},
            "lengths": {"prompt": 16, "completion": 6, "evaluation": 6},
            "vary": {"rollout": [{"kind": "student"}, {"kind": "teacher"}]},
            "seeds": [1],
            "evaluate": {"at": ["last"], "accuracy": {"items": 4}, "sparsity": None},
            "rlvr": {
                **GRPO,
                "task": task,
                "cells": {"rollout": ["teacher"]},
                "evaluate": {"at": [0, 1, "last"], "accuracy": {"items": 4}},
            },
        }
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    study = _study(folder)
    return plan(study), Store(folder / "runs"), run(plan(study), store=folder / "runs")


def test_every_stage_stands_on_the_trained_teacher(ran):
    made, _, _ = ran
    counts = Counter(stage.kind for stage in made.stages)
    assert counts["teacher_training"] == 2
    assert (counts["rlvr"], counts["rlvr_evaluation"]) == (1, 3)
    base = made.of_kind("teacher")[0].key
    first, last = (stage.key for stage in made.of_kind("teacher_training"))
    assert made.stage(first).parents == (base,)
    assert made.stage(last).parents == (first,)
    for kind in ("preflight", "corpus", "cell", "teacher_evaluation"):
        for stage in made.of_kind(kind):
            assert last in stage.parents
            assert base not in stage.parents


def test_the_teacher_stops_where_its_weights_are_used_and_long_lessons_are_counted(ran):
    made, store, _ = ran
    sft, grpo = (store.path(stage.key) for stage in made.of_kind("teacher_training"))
    losses = [record.loss for record in read_jsonl(sft / "updates.jsonl", SftRecord)]
    assert len(losses) == 2
    summary = json.loads((sft / "summary.json").read_text())
    assert summary["steps"] == 2
    assert summary["too_long"] > 0  # three words and the end are four tokens
    updates = read_jsonl(grpo / "updates.jsonl", RlvrRecord)
    assert [record.completions for record in updates] == [4, 4]


def test_a_cell_has_its_updates_and_held_out_items(ran):
    _, _, results = ran
    by_label = {cell.factors["method.rollout"]: cell for cell in results.outcomes.cells}
    followed, other = by_label["teacher"], by_label["student"]
    assert [record.step for record in followed.rlvr] == [1, 2]
    assert all(0 <= record.correct <= record.completions for record in followed.rlvr)
    assert {step: len(items) for step, items in followed.rlvr_evaluations.items()} == {
        0: 4,
        1: 4,
        2: 4,
    }
    assert other.rlvr == ()
    assert other.rlvr_evaluations == {}
