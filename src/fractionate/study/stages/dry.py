"""A study in miniature: every stage and every method of it on tiny random models and made-up rows.

What a configuration can get wrong shows so before a GPU is booked. Its numbers mean nothing.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from fractionate.config import (
    DRY_SUFFIX,
    DataTask,
    Harness,
    Models,
    Study,
    StudyFileError,
    Task,
    resolve,
)
from fractionate.config.files import parse_study
from fractionate.models.miniature import Family, write_miniature
from fractionate.rng import derive_seed
from fractionate.study.dimensions import PUBLISHED, dimensions_of
from fractionate.study.identity import student_source, teacher_source
from fractionate.tasks.miniature import HELD_OUT, ROWS, write_rows

STEPS: Final = 3
PROMPTS: Final = 4
_ITEMS, _TOKENS, _PROMPT = 2, 8, 8192
_CUT: Final = ("optimizer.lr",)
"""Factors of which one level is enough: the others run the same code."""
_DROPPED: Final = "budget."
"""Factors whose levels would undo the small budget begin so."""


def dry(study: Study, folder: Path) -> Study:
    """The study in miniature, its inputs written into a folder.

    Rollouts, divergences and what else varies stay; of the rates and seeds one does. Models become
    random ones of the same class, data a few rows of the same layout, benchmarks two local tasks.
    The sandbox keeps its models and problems, which are small enough.

    Args:
        study: Any study.
        folder: For models, rows and benchmark tasks; the same study writes the same files.

    Returns:
        A study whose name ends in `DRY_SUFFIX`.

    Raises:
        StudyFileError: The class of a model, or the columns of a table on the hub, cannot be told.
    """
    tree = study.model_dump(mode="python")
    vary, real = _factors(study), study.world is None
    small: dict[str, Any] = {
        "name": f"{study.name[: 80 - len(DRY_SUFFIX)]}{DRY_SUFFIX}",
        "question": f"Plumbing only, no result: does every stage of '{study.name}' run?",
        "task": _task(study.task, folder / "data", "task") if real else tree["task"],
        "teacher_training": [_trained(stage) for stage in tree["teacher_training"]],
        "optimizer": {**tree["optimizer"], "warmup": min(1, study.optimizer.warmup)},
        "budget": {
            **tree["budget"],
            "steps": STEPS,
            "tokens": None,
            "prompts_per_step": PROMPTS,
            "tokens_per_micro_batch": 1024,
        },
        "lengths": {
            "prompt": _PROMPT,
            "completion": _TOKENS,
            "evaluation": _TOKENS,
            "harder": _TOKENS,
        },
        "vary": vary,
        "rates": None,
        "seeds": study.seeds[:1],
        "evaluate": _evaluate(study, folder / "benchmarks"),
        "checkpoints": _checkpoints(study),
        "hypotheses": [],
        "rlvr": _rlvr(study, folder / "rlvr"),
    }
    if study.models is not None:
        small["models"] = {**tree["models"], **_models(study, study.models, folder / "models")}
    return parse_study({**tree, **small}, source=f"{study.name}, in miniature")


def _factors(study: Study) -> dict[str, Any]:
    return {
        name: levels[:1] if resolve(name) in _CUT else levels
        for name, levels in study.vary.items()
        if not resolve(name).startswith(_DROPPED)
    }


# ---------------------------------------------------------------- models


def _models(study: Study, models: Models, folder: Path) -> dict[str, Any]:
    """Stand-ins for both models; a teacher that is the student stays so."""
    student = _stand_in(student_source(study), "student", folder, wide=False)
    teacher = "student"
    if models.teacher not in ("student", models.student):
        teacher = _stand_in(teacher_source(study), "teacher", folder, wide=True)
    return {
        "student": student,
        "teacher": teacher,
        "student_revision": None,
        "teacher_revision": None,
    }


def _stand_in(source: str, role: str, folder: Path, *, wide: bool) -> str:
    sizes = dimensions_of(source)
    if sizes is None:
        raise StudyFileError(
            f"models.{role}: what kind of model {source} is cannot be told without the hub, so it "
            f"has no miniature. Name a local folder, or one of {', '.join(PUBLISHED)} (-Instruct)"
        )
    family: Family = "qwen2" if sizes.qkv_bias else "llama"
    place = folder / role / Path(source).name
    seed = derive_seed(0, "miniature", role)
    write_miniature(place, family, tied=sizes.tied, wide=wide, seed=seed)
    return str(place.resolve())


# ---------------------------------------------------------------- data and training


def _task(task: Task, folder: Path, field: str) -> dict[str, Any]:
    plain = task.model_dump(mode="python")
    if task.kind == "countdown":
        return {**plain, "train": ROWS, "selection": HELD_OUT, "test": HELD_OUT}
    if task.kind != "table":
        return {**plain, **_rows(task, folder)}
    if any(source.hub for source in task.inputs.values()):
        raise StudyFileError(
            f"{field}: which values the columns of a table on the hub have is not known here. Save "
            f"a few rows and name them: {field}.path"
        )
    return plain


def _rows(task: DataTask, folder: Path) -> dict[str, Any]:
    return write_rows(task, folder)


def _adaptation(plain: Mapping[str, Any]) -> dict[str, Any]:
    lora = plain["lora"] and {**plain["lora"], "rank": 4, "alpha": 4}
    on_a_gpu = {"quantization": "nf4", "optimizer": "adamw_8bit"}
    anywhere = {name: "auto" for name, value in on_a_gpu.items() if plain[name] == value}
    return {**plain, "lora": lora, **anywhere}


def _trained(stage: Mapping[str, Any]) -> dict[str, Any]:
    """A stage of the teacher's training, or of RLVR, in two updates."""
    small = {**stage, "steps": 2, "warmup": min(1, stage["warmup"]), "prompt": _PROMPT}
    small |= {"adaptation": _adaptation(stage["adaptation"]), "checkpoint_every": 1}
    if stage.get("use", "last") != "last":
        small["use"] = 1
    if "group" not in stage:
        return {**small, "batch": 4, "micro_batch": 2}
    sampled = {"group": 2, "generation_batch": 4, "micro_batch": 2, "accumulation": 2}
    return {**small, **sampled, "completion": _TOKENS}


def _rlvr(study: Study, folder: Path) -> dict[str, Any] | None:
    if study.rlvr is None:
        return None
    plain = study.rlvr.model_dump(mode="python")
    kept = {resolve(name): labels for name, labels in plain["cells"].items()}
    cells = {name: labels for name, labels in kept.items() if name not in _CUT}
    evaluate = {**plain["evaluate"], **_answers(plain["evaluate"])}
    evaluate |= {"at": _at(study.rlvr.evaluate.at), "skill_items": _ITEMS}
    return {
        **_trained(plain),
        "task": plain["task"] if study.world else _task(study.rlvr.task, folder, "rlvr.task"),
        "cells": cells,
        "evaluate": evaluate,
    }


# ---------------------------------------------------------------- measurements


def _at(steps: Sequence[int | str]) -> list[int | str]:
    """The first step, one between and the last, as far as they are asked for."""
    asked = [step if step in (0, "last") else 1 for step in steps]
    return list(dict.fromkeys(asked))


def _checkpoints(study: Study) -> dict[str, Any]:
    keep = study.checkpoints.keep
    return {"every": 1, "keep": keep if keep == "last" else [1]}


def _answers(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Accuracy and coverage of a few items."""
    small: dict[str, Any] = {}
    if plain["accuracy"]:
        small["accuracy"] = {**plain["accuracy"], "items": HELD_OUT}
    if plain["coverage"]:
        small["coverage"] = {**plain["coverage"], "items": _ITEMS, "samples": 2, "k": [1, 2]}
    return small


def _evaluate(study: Study, folder: Path) -> dict[str, Any]:
    plain = study.evaluate.model_dump(mode="python")
    small: dict[str, Any] = {**_answers(plain), "at": _at(study.evaluate.at), "skill_items": _ITEMS}
    if plain["harder"]:
        small["harder"] = {**plain["harder"], "items": _ITEMS, "samples": 2}
    for name in ("drift", "resampling", "style"):
        if plain[name]:
            small[name] = {**plain[name], "items": _ITEMS}
    if plain["gradients"]:
        asked = plain["gradients"]["at"]
        small["gradients"] = {
            **plain["gradients"],
            "prompts": 1,
            "batches": 2,
            "max_new_tokens": _TOKENS,
            "at": None if asked is None else _at(asked),
        }
    if isinstance(study.evaluate.forgetting, Harness):
        small["forgetting"] = _benchmarks(plain["forgetting"], folder)
    return {**plain, **small}


def _benchmarks(plain: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """One local task that compares likelihoods and one that generates, in place of the public."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (task, rows) in _LOCAL_TASKS.items():
        data = f"{name}.json"
        shared = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": data}},
            "test_split": "test",
            "doc_to_text": "{{question}}",
            "metadata": {"version": 1.0},
        }
        text = yaml.safe_dump({**shared, **task}, sort_keys=True)
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
        (folder / data).write_text(json.dumps(rows), encoding="utf-8")
    return {
        **plain,
        "tasks": list(_LOCAL_TASKS),
        "limit": _ITEMS,
        "num_fewshot": {},
        "results": {},
        "include": str(folder.resolve()),
        "allow_code": False,
    }


_LOCAL_TASKS: Final[Mapping[str, tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]]] = {
    "miniature_choice": (
        {
            "output_type": "multiple_choice",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "gold",
            "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        },
        [
            {"question": "Is ice cold?", "choices": ["yes", "no"], "gold": 0},
            {"question": "Is fire cold?", "choices": ["yes", "no"], "gold": 1},
        ],
    ),
    "miniature_words": (
        {
            "output_type": "generate_until",
            "doc_to_target": "{{answer}}",
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4, "do_sample": False},
            "metric_list": [
                {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
            ],
        },
        [{"question": "1 + 1 =", "answer": "2"}, {"question": "2 + 2 =", "answer": "4"}],
    ),
}
