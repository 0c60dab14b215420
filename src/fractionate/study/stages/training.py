"""Stages that make something: model cards of the inputs, teacher completions, trained students."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fractionate.config import Budget, Diagnostics, Method, Optimizer, Temperature
from fractionate.distill.corpus import Corpus, make_corpus
from fractionate.distill.journal import Journal
from fractionate.distill.lag import LaggedRollouts
from fractionate.distill.loop import distill
from fractionate.distill.objective import Objective
from fractionate.distill.prompts import Order, Prompt, PromptBook, prompt_indices
from fractionate.distill.run import Distillation
from fractionate.distill.scoring import Scorer
from fractionate.distill.sources import FreshRollouts, rollout_source
from fractionate.distill.student import Student
from fractionate.models.load import load_model, save_model
from fractionate.study.stages.job import UNPACKED, Job, Pair


def weights_folder(cell: Path, step: int | str) -> Path:
    """Where a finished cell keeps the weights of a step; "last" is the last one it took."""
    if step == "last":
        step = int(json.loads((cell / "summary.json").read_text("utf-8"))["steps"])
    return cell / "weights" / f"step-{step:06d}"


def describe_model(job: Job) -> None:
    """Load an input model once, so that an unreadable one fails here, and note what it is.

    A .gguf file takes long to unpack, so its weights are kept for the stages that follow.
    """
    role = "teacher" if job.stage.kind == "teacher" else "student"
    where = job.stage.runtime[role]
    model = load_model(
        where["location"], revision=where["revision"], dtype=where["dtype"], device=job.device
    )
    if str(where["location"]).endswith(".gguf"):
        save_model(model.module, model.tokenizer, job.workspace.path / UNPACKED)
    _write(
        job.workspace.path / "model.json",
        {
            "architecture": type(model.module).__name__,
            "parameters": sum(p.numel() for p in model.module.parameters()),
            "vocabulary": model.vocab_size,
            "stop_ids": list(model.stop_ids),
        },
    )


def make_teacher_corpus(job: Job) -> None:
    """Every completion that the off-policy cells of a seed train on."""
    config = job.config
    teacher = job.teacher()
    book = job.prompts(teacher, "train", None)
    budget = config["budget"]
    steps = [
        _prompts(book, step, budget["prompts_per_step"], config["prompt_order"], config["seed"])
        for step in range(budget["steps"])
    ]
    tokens = make_corpus(
        job.workspace.path,
        teacher=teacher,
        steps=steps,
        temperature=Temperature.model_validate(config["temperature"]),
        max_new_tokens=config["lengths"]["completion"],
        seed=config["seed"],
        keep_hidden=config["hidden"] == "stored",
        progress=job.progress,
    )
    _write(job.workspace.path / "summary.json", {"tokens_generated": tokens})


def train_cell(job: Job) -> None:
    """One controlled distillation, from a base to the weights of the kept steps."""
    pair = job.pair()
    run = build_run(job, pair)
    steps = distill(run, progress=job.progress)
    _save(job, run.student, steps)
    _write(job.workspace.path / "summary.json", {"steps": steps})


def build_run(job: Job, pair: Pair) -> Distillation:
    """Everything the loop needs, from the stage's configuration."""
    config = job.config
    method = Method.model_validate(config["method"])
    budget = Budget.model_validate(config["budget"])
    seed, completion = config["seed"], config["lengths"]["completion"]
    student = Student(pair.student, Optimizer.model_validate(config["optimizer"]))
    book = job.prompts(pair.student, "train", None)
    source = rollout_source(
        method,
        task=job.task,
        student=pair.student,
        teacher=pair.teacher,
        corpus=_corpus(job, method),
        max_new_tokens=completion,
        seed=seed,
    )

    def prompts(step: int) -> list[Prompt]:
        return _prompts(book, step, budget.prompts_per_step, config["prompt_order"], seed)

    lag = method.rollout.lag if method.rollout.kind == "student" else 0
    if lag and isinstance(source, FreshRollouts):
        source = LaggedRollouts(source, lag=lag, steps=budget.steps, prompts=prompts)
    return Distillation(
        student=student,
        scorer=Scorer(
            student=pair.student,
            teacher=pair.teacher,
            vocab_size=pair.vocabulary.size,
            activation_bytes=budget.activation_bytes,
            product_dtype=student.product_dtype,
        ),
        source=source,
        objective=Objective(method, max_length=completion),
        prompts=prompts,
        budget=budget,
        diagnostics=Diagnostics.model_validate(config["diagnostics"]),
        seed=seed,
        journal=Journal(job.workspace.path, job.workspace.scratch),
        checkpoint_every=int(job.stage.runtime["every"]),
        save_at=frozenset(step for step in config["keep"] if step != "last"),
        save=lambda step, trained: _save(job, trained, step),
    )


def _corpus(job: Job, method: Method) -> Corpus | None:
    if method.rollout.kind != "teacher" or not method.rollout.cached:
        return None
    return Corpus(job.parent("corpus"))


def _prompts(
    book: PromptBook, step: int, prompts_per_step: int, order: Order, seed: int
) -> list[Prompt]:
    indices = prompt_indices(
        step, n_problems=len(book), prompts_per_step=prompts_per_step, order=order, seed=seed
    )
    return [book[index] for index in indices]


def _save(job: Job, student: Student, step: int) -> None:
    folder = job.workspace.path / "weights" / f"step-{step:06d}"
    save_model(student.model.module, student.model.tokenizer, folder, state=student.weights())


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(dict(values), indent=2, sort_keys=True), encoding="utf-8")
