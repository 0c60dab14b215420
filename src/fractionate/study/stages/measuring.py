"""Stages that measure: the untrained student, the teacher, and every kept step of every cell."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch import nn

from fractionate.config import Evaluate, Lengths, Optimizer, Temperature
from fractionate.distill.prompts import conditioned
from fractionate.distill.student import DTYPES
from fractionate.evaluate import Reference, Suite, evaluate
from fractionate.metrics.forgetting import benchmark_table
from fractionate.metrics.harness import load_benchmarks
from fractionate.metrics.sparsity import weight_record
from fractionate.metrics.verdicts import read_answers
from fractionate.models.load import LanguageModel, load_model
from fractionate.models.prompts import render, render_text
from fractionate.records import WeightRecord, write_jsonl
from fractionate.rollouts.draw import sample
from fractionate.study.stages.job import Job
from fractionate.study.stages.training import weights_folder
from fractionate.tasks.build import build_harder, build_skills

ITEMS, WEIGHTS, EXAMPLES = "items.jsonl", "weights.json", "examples.json"
BENCHMARKS = "benchmarks.json"
EXAMPLE_ITEMS, EXAMPLE_TEMPERATURE = 3, 0.5


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
    dtype = job.config["precision"]["compute_dtype"]
    model = load_model(folder, dtype=dtype, device=job.device, kernel=job.kernel)
    base = _rounded(job, job.base())
    _measure(job, Reference(model), base=base, drift=job.config["drift"])
    if job.config["sparsity"] is not None:
        record = _weights(job, base, folder)
        path = job.workspace.path / WEIGHTS
        path.write_text(json.dumps(dataclasses.asdict(record), indent=2), encoding="utf-8")


def evaluate_rlvr(job: Job) -> None:
    """A policy after an update of RLVR, on its own task; update 0 is the distilled student."""
    step = job.config["step"]
    folder = weights_folder(job.parent("cell" if step == 0 else "rlvr"), step or "last")
    dtype = job.config["precision"]["compute_dtype"]
    model = load_model(folder, dtype=dtype, device=job.device, kernel=job.kernel)
    _measure(job, Reference(model), base=None, drift=None)


def _measure(
    job: Job,
    subject: Reference,
    *,
    base: LanguageModel | None,
    drift: Mapping[str, Any] | None,
) -> None:
    config = job.config
    measures = {name: value for name, value in config["evaluate"].items() if value is not None}
    beside: Mapping[str, Any] = config.get("beside") or {}
    wanted = Evaluate.model_validate(
        {"accuracy": None, "sparsity": None, **measures, "drift": drift, **beside}
    )
    harder, world, asked = wanted.harder, job.world, job.harness
    benchmarks = None if asked is None else load_benchmarks(asked)
    reads_teacher = bool(beside) or (wanted.drift is not None and wanted.drift.to_teacher)
    suite = Suite(
        task=job.task,
        harder=None if harder is None else build_harder(harder, job.task_config, world),
        skills=() if world is None or wanted.forgetting is None else build_skills(world),
        benchmarks=benchmarks,
        chat_template_kwargs=config["chat_template_kwargs"],
    )
    records = evaluate(
        subject,
        config=wanted,
        suite=suite,
        lengths=Lengths.model_validate(config["lengths"]),
        base=base,
        teacher=_teacher(job) if reads_teacher else None,
        temperature=Temperature.model_validate(_temperature(config)),
        seed=wanted.seed,
        report=lambda info: job.progress(info["done"], info["of"]),
    )
    write_jsonl(job.workspace.path / ITEMS, records)
    if benchmarks is not None:
        table = {**benchmarks.describe(), "scores": benchmark_table(records)}
        text = json.dumps(table, indent=2, sort_keys=True)
        (job.workspace.path / BENCHMARKS).write_text(text, encoding="utf-8")
    examples = json.dumps(_examples(job, subject), indent=1, ensure_ascii=False)
    (job.workspace.path / EXAMPLES).write_text(examples, encoding="utf-8")


def _temperature(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The method's temperatures, as far as the measurements use them."""
    return {**(config.get("drift_temperature") or {}), **(config.get("method_temperature") or {})}


def _examples(job: Job, subject: Reference) -> list[dict[str, str]]:
    """A few test problems with what the model wrote, for people to read."""
    model, kwargs = subject.model, job.config["chat_template_kwargs"]
    problems = list(job.task.problems("test"))[:EXAMPLE_ITEMS]
    completions = sample(
        model,
        [render(model.tokenizer, subject.messages_of(p), kwargs) for p in problems],
        temperature=EXAMPLE_TEMPERATURE,
        max_new_tokens=job.config["lengths"]["evaluation"],
        seed=job.config["evaluate"]["seed"],
    ).completions
    answers = read_answers(model, completions)
    return [
        {
            "prompt": render_text(model.tokenizer, subject.messages_of(problem), kwargs),
            "completion": answer.text,
            "verdict": job.task.grade(problem, answer.text).reason,
        }
        for problem, answer in zip(problems, answers, strict=True)
    ]


def _teacher(job: Job) -> Reference:
    """The teacher and what it sees of a problem."""
    context = job.teacher_context
    return Reference(job.teacher(), lambda problem: conditioned(problem, job.task, context))


def _rounded(job: Job, model: LanguageModel) -> LanguageModel:
    precision = job.config["precision"]
    module = cast(nn.Module, model.module)
    module.to(DTYPES[precision["param_dtype"]]).to(DTYPES[precision["compute_dtype"]])
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
