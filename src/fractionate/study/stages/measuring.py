"""Stages that measure: the untrained student, the teacher, and every kept step of every cell."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fractionate.config import Evaluate, Lengths, Optimizer, Temperature
from fractionate.distill.prompts import conditioned
from fractionate.distill.student import DTYPES
from fractionate.evaluate import Reference, Suite, evaluate
from fractionate.metrics.sparsity import weight_record
from fractionate.models.load import LanguageModel, load_model
from fractionate.records import WeightRecord, write_jsonl
from fractionate.study.stages.job import Job
from fractionate.study.stages.training import weights_folder
from fractionate.tasks.build import build_harder, build_skills

ITEMS, WEIGHTS = "items.jsonl", "weights.json"
EVALUATION_SEED = 42


def evaluate_base(job: Job) -> None:
    """The untrained student, in the precision in which cells start from it."""
    model = _rounded(job, job.base())
    drift = job.config.get("drift")
    # its own drift from itself is zero and tells nothing
    _measure(job, Reference(model), base=None, drift=drift and {**drift, "to_base": False})


def evaluate_teacher(job: Job) -> None:
    """The teacher as it teaches, in its own context."""
    _measure(job, _teacher(job), base=None, drift=None)


def evaluate_cell(job: Job) -> None:
    """One kept step of a cell: its answers, its drift, its weights against the base."""
    folder = weights_folder(job.parent("cell"), job.config["step"])
    model = load_model(folder, dtype=job.config["precision"]["compute_dtype"], device=job.device)
    base = _rounded(job, job.base())
    _measure(job, Reference(model), base=base, drift=job.config["drift"])
    if job.config["sparsity"] is not None:
        record = _weights(job, base, folder)
        path = job.workspace.path / WEIGHTS
        path.write_text(json.dumps(dataclasses.asdict(record), indent=2), encoding="utf-8")


def _measure(
    job: Job,
    subject: Reference,
    *,
    base: LanguageModel | None,
    drift: Mapping[str, Any] | None,
) -> None:
    config = job.config
    measures = {name: value for name, value in config["evaluate"].items() if value is not None}
    wanted = Evaluate.model_validate(
        {"accuracy": None, **measures, "drift": drift, "sparsity": None}
    )
    harder, world = wanted.harder, job.world
    suite = Suite(
        task=job.task,
        harder=None if harder is None else build_harder(harder, job.task_config, world),
        skills=() if world is None or wanted.forgetting is None else build_skills(world),
        chat_template_kwargs=config["chat_template_kwargs"],
    )
    records = evaluate(
        subject,
        config=wanted,
        suite=suite,
        lengths=Lengths.model_validate(config["lengths"]),
        base=base,
        teacher=_teacher(job) if wanted.drift is not None and wanted.drift.to_teacher else None,
        temperature=Temperature.model_validate(config.get("drift_temperature") or {}),
        seed=EVALUATION_SEED,
        report=lambda info: job.progress(info["done"], info["of"]),
    )
    write_jsonl(job.workspace.path / ITEMS, records)


def _teacher(job: Job) -> Reference:
    """The teacher and what it sees of a problem."""
    context = job.teacher_context
    return Reference(job.teacher(), lambda problem: conditioned(problem, job.task, context))


def _rounded(job: Job, model: LanguageModel) -> LanguageModel:
    precision = job.config["precision"]
    model.module.to(DTYPES[precision["param_dtype"]]).to(DTYPES[precision["compute_dtype"]])
    return model


def _weights(job: Job, base: LanguageModel, folder: Path) -> WeightRecord:
    optimizer = Optimizer.model_validate(job.config["optimizer"])
    stored = DTYPES[optimizer.param_dtype]
    trained = load_model(folder, dtype=optimizer.param_dtype, device=job.device)
    before = {name: p.detach().to(stored) for name, p in base.module.named_parameters()}
    after = {name: p.detach() for name, p in trained.module.named_parameters()}
    step = _step(folder)
    return weight_record(
        before,
        after,
        lr=optimizer.lr,
        steps=step,
        warmup=optimizer.warmup,
        param_dtype=_updated_dtype(optimizer),
        thresholds=tuple(job.config["sparsity"]["thresholds"]),
        seed=job.config["seed"],
    )


def _updated_dtype(optimizer: Optimizer) -> str:
    """The rounding null is that of the tensor that takes the updates."""
    return "float32" if optimizer.master_weights == "float32" else optimizer.param_dtype


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))
