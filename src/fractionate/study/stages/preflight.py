"""Before any budget is spent: load everything, take a small step of each kind."""

import json
from dataclasses import dataclass
from typing import Any

import torch

from fractionate.config import Method, Optimizer
from fractionate.config.measure import CODE_BENCHMARKS
from fractionate.config.sizes import check_step
from fractionate.distill.objective import Objective
from fractionate.distill.scoring import Scorer
from fractionate.distill.sources import DatasetRollouts, FreshRollouts, RolloutSource
from fractionate.distill.student import Student
from fractionate.metrics.harness import load_benchmarks
from fractionate.metrics.verdicts import read_answers
from fractionate.models.prompts import check_same_prompts, template_warnings
from fractionate.models.vocabulary import check_dropped_mass, measure_dropped_mass
from fractionate.records import StopReason
from fractionate.rollouts.draw import sample
from fractionate.study.stages.job import Job, Pair
from fractionate.study.stages.rlvr import try_rlvr
from fractionate.tasks.collection import Collection

PROBE_ITEMS, PROBE_PROMPTS, PROBE_TOKENS = 32, 2, 16
SMALLEST_GAP = 0.10  # teacher - student accuracy under which a study has little to show
MOST_TRUNCATED = 0.20


@dataclass(frozen=True)
class Probe:
    """A model on a few problems of the selection split.

    Attributes:
        accuracy: Share of right answers.
        truncated: Share of completions that met the length limit.
        mean_length: Mean completion length in tokens.
    """

    accuracy: float
    truncated: float
    mean_length: float


def preflight(job: Job) -> None:
    """Check the pair, probe both models, try every kind of step; warnings go to the report.

    Raises:
        ValueError: Something would fail later: it fails here, by name.
    """
    _rows(job)
    pair = job.pair()
    warnings = [*pair.vocabulary.warnings, *_prompts(job, pair), *_left_out(job)]
    warnings += _dropped(job, pair)
    warnings += _benchmarks(job, pair)
    probes = {"student": _probe(job, pair, "student"), "teacher": _probe(job, pair, "teacher")}
    warnings += _gap(job, probes)
    for method in job.config["methods"]:
        for optimizer in job.config["optimizers"]:
            _try_step(job, Method.model_validate(method), Optimizer.model_validate(optimizer))
    if "rlvr" in job.config:
        try_rlvr(job)
    for warning in warnings:
        job.report({"warning": warning})
    result: dict[str, Any] = {name: vars(probe) for name, probe in probes.items()}
    result["warnings"] = warnings
    path = job.workspace.path / "preflight.json"
    path.write_text(json.dumps(result, indent=2, sort_keys=True), encoding="utf-8")


def _rows(job: Job) -> None:
    """Whether the data holds enough for every step, before a model is loaded."""
    train = job.task.problems("train")
    check_step(len(train), job.config["budget"]["prompts_per_step"])
    kinds = {method["rollout"]["kind"] for method in job.config["methods"]}
    context = job.teacher_context
    if "dataset" in kinds or (context is not None and context.demonstration):
        for problem in train:
            job.task.demonstration(problem, seed=0)


def _prompts(job: Job, pair: Pair) -> tuple[str, ...]:
    """Whether both models are asked the same, and whether they will be asked it again tomorrow."""
    kwargs = job.config["chat_template_kwargs"]
    asked = [problem.messages for problem in job.task.problems("train")[:PROBE_ITEMS]]
    if job.teacher_context is None:
        check_same_prompts(pair.student.tokenizer, pair.teacher.tokenizer, asked, kwargs)
    return template_warnings(pair.student.tokenizer, asked[0], kwargs)


def _left_out(job: Job) -> list[str]:
    """How many rows of the data are no problem of the task."""
    task = job.task
    return [task.summary()] if isinstance(task, Collection) and task.left_out else []


def _dropped(job: Job, pair: Pair) -> list[str]:
    book = job.prompts(pair.student, "train", PROBE_PROMPTS)
    prompts = [book[i].student for i in range(len(book))]
    found = [
        check_dropped_mass(measure_dropped_mass(model, prompts), source=model.source)
        for model in (pair.student, pair.teacher)
    ]
    return [warning for warning in found if warning is not None]


def _benchmarks(job: Job, pair: Pair) -> list[str]:
    """Every benchmark by name, result and data, before anything is trained."""
    config = job.harness
    if config is None:
        return []
    benchmarks = load_benchmarks(config)
    for model in (pair.student, pair.teacher):
        benchmarks.check(model)
    left_out = sorted(CODE_BENCHMARKS - set(config.names)) if config.tasks is None else []
    return [
        f"evaluate.forgetting leaves out {name}, which runs programs that the model writes: the "
        "mean is over the other benchmarks. Set allow_code: true to take it in"
        for name in left_out
    ]


def _probe(job: Job, pair: Pair, role: str) -> Probe:
    model = pair.student if role == "student" else pair.teacher
    split = "selection" if job.task.problems("selection") else "test"
    n = min(PROBE_ITEMS, len(job.task.problems(split)))
    book = job.prompts(pair.student, split, n)
    prompts = [book[i] for i in range(n)]
    sampled = sample(
        model,
        [p.student if role == "student" else p.teacher for p in prompts],
        samples=1,
        temperature=0.5,
        max_new_tokens=job.config["lengths"]["completion"],
        seed=0,
    )
    completions = sampled.completions
    answers = read_answers(model, completions)
    grades = [job.task.grade(p.problem, a.text) for p, a in zip(prompts, answers, strict=True)]
    return Probe(
        accuracy=sum(grade.correct for grade in grades) / n,
        truncated=sum(reason is StopReason.LENGTH for reason in completions.stop) / n,
        mean_length=float(completions.lengths.double().mean()),
    )


def _gap(job: Job, probes: dict[str, Probe]) -> list[str]:
    student, teacher = probes["student"], probes["teacher"]
    gap = teacher.accuracy - student.accuracy
    found: list[str] = []
    if gap < SMALLEST_GAP:
        found.append(
            f"on {PROBE_ITEMS} problems the teacher is right on {teacher.accuracy:.0%} and the "
            f"student on {student.accuracy:.0%}: with so small a gap there is little to distil"
        )
    found += [
        f"{probe.truncated:.0%} of the {role}'s completions meet lengths.completion "
        f"({job.config['lengths']['completion']} tokens): raise it, or expect truncated training"
        for role, probe in probes.items()
        if probe.truncated > MOST_TRUNCATED
    ]
    return found


def _try_step(job: Job, method: Method, optimizer: Optimizer) -> None:
    """One update on two prompts and a few tokens, with nothing kept."""
    pair = job.pair()
    student = Student(pair.student, optimizer)
    book = job.prompts(pair.student, "train", PROBE_PROMPTS)
    prompts = [book[i] for i in range(len(book))]
    length = min(PROBE_TOKENS, job.config["lengths"]["completion"])
    drawn = _source(job, method, pair, length).completions(0, prompts)
    objective = Objective(method, max_length=length)
    rows = list(range(len(prompts)))
    scorer = Scorer(
        student=pair.student,
        teacher=pair.teacher,
        vocab_size=pair.vocabulary.size,
        product_dtype=student.product_dtype,
    )
    laws = scorer.laws(prompts, drawn.completions, rows)
    loss = objective(
        laws,
        rollout=drawn.completions,
        loss_mask=objective.loss_mask(drawn.completions),
        rows=rows,
        uniforms=torch.full((len(laws.student_hidden),), 0.5, dtype=torch.float64),
    )
    torch.autograd.backward(loss)
    student.update(optimizer.lr)


def _source(job: Job, method: Method, pair: Pair, length: int) -> RolloutSource:
    if method.rollout.kind == "dataset":
        return DatasetRollouts(job.task, student=pair.student, max_tokens=length, seed=0)
    return FreshRollouts(
        method, student=pair.student, teacher=pair.teacher, max_new_tokens=length, seed=0
    )
