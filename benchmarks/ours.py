"""Our side of a training step: the parts that a study puts together, on models in memory."""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fractionate import rollouts
from fractionate.config import Budget, Diagnostics, Method, Optimizer
from fractionate.distill.corpus import Corpus, make_corpus
from fractionate.distill.journal import RECORDS, Journal
from fractionate.distill.loop import distill
from fractionate.distill.objective import Objective
from fractionate.distill.prompts import Prompt
from fractionate.distill.run import Distillation
from fractionate.distill.scoring import Scorer
from fractionate.distill.sources import CachedRollouts, FreshRollouts, RolloutSource
from fractionate.distill.student import Student
from fractionate.models.load import LanguageModel
from fractionate.models.native.compiler import find_compiler
from fractionate.rollouts.completions import Completions
from fractionate.study.kernels import Kernel
from fractionate.tasks.base import Problem

FLOAT32 = {"param_dtype": "float32", "state_dtype": "float32", "compute_dtype": "float32"}
BFLOAT16 = {
    "param_dtype": "bfloat16",
    "master_weights": "float32",
    "state_dtype": "float32",
    "compute_dtype": "bfloat16",
    "logits_dtype": "bfloat16",
}


@dataclass(frozen=True)
class OurRun:
    """One training run of ours.

    Attributes:
        student: Trained.
        teacher: Frozen.
        steps: Optimizer steps.
        rows: Prompts of a step.
        new_tokens: Longest completion.
        divergence: "forward" or "reverse".
        lr: Learning rate.
        precision: Of the optimizer.
        diagnostics: Completion positions looked at besides, per step; TRL looks at none.
    """

    student: LanguageModel
    teacher: LanguageModel
    steps: int
    rows: int
    new_tokens: int
    divergence: str = "reverse"
    lr: float = 1e-5
    precision: tuple[tuple[str, str], ...] = tuple(FLOAT32.items())
    diagnostics: int = 1

    def method(self, *, cached: bool) -> Method:
        """The method: one temperature everywhere, one mean over all tokens, as TRL has it."""
        rollout = {"kind": "teacher"} if cached else {"kind": "student"}
        ones = dict.fromkeys(
            ("student_rollout", "teacher_rollout", "student_loss", "teacher_loss"), 1.0
        )
        return Method.model_validate(
            {
                "rollout": rollout,
                "temperature": ones,
                "divergence": {"kind": self.divergence},
                "reduction": "token_mean",
            }
        )


def as_prompts(ids: Sequence[Sequence[int]]) -> list[Prompt]:
    """Prompts that both models read alike."""
    return [Prompt(Problem(str(i), (), {}), tuple(row), tuple(row)) for i, row in enumerate(ids)]


def on_policy(
    run: OurRun, prompts: Sequence[Sequence[int]], step_done: Callable[[], None] = lambda: None
) -> float:
    """Train on the student's own completions; returns the tokens of a step, on average."""
    source = FreshRollouts(
        run.method(cached=False),
        student=run.student,
        teacher=run.teacher,
        max_new_tokens=run.new_tokens,
        seed=0,
    )
    return _train(run, as_prompts(prompts), source, step_done)


def shared_corpus(run: OurRun, prompts: Sequence[Sequence[int]], folder: Path) -> None:
    """Teacher completions and hidden states of all steps, made once for any number of cells."""
    asked = as_prompts(prompts)
    make_corpus(
        folder,
        teacher=run.teacher,
        steps=[asked[i : i + run.rows] for i in range(0, len(asked), run.rows)],
        temperature=run.method(cached=True).temperature,
        max_new_tokens=run.new_tokens,
        seed=0,
        keep_hidden=True,
        progress=lambda *_: None,
    )


def off_policy(
    run: OurRun,
    prompts: Sequence[Sequence[int]],
    corpus: Path,
    step_done: Callable[[], None] = lambda: None,
) -> float:
    """Train on a shared corpus; returns the tokens of a step, on average."""
    return _train(run, as_prompts(prompts), CachedRollouts(Corpus(corpus)), step_done)


def _train(
    run: OurRun, prompts: Sequence[Prompt], source: RolloutSource, step_done: Callable[[], None]
) -> float:
    is_cached = isinstance(source, CachedRollouts)
    optimizer = Optimizer.model_validate({"lr": run.lr, "warmup": 0, **dict(run.precision)})
    deterministic = run.student.device.type == "cpu"
    torch.use_deterministic_algorithms(deterministic)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        student = Student(run.student, optimizer)
        distill(
            Distillation(
                student=student,
                scorer=Scorer(
                    student=run.student,
                    teacher=run.teacher,
                    vocab_size=run.student.vocab_size,
                    product_dtype=student.product_dtype,
                ),
                source=source,
                objective=Objective(run.method(cached=is_cached), max_length=run.new_tokens),
                prompts=lambda step: list(prompts[step * run.rows : (step + 1) * run.rows]),
                budget=Budget(steps=run.steps, prompts_per_step=run.rows),
                diagnostics=Diagnostics(every=run.steps, positions=run.diagnostics),
                seed=0,
                journal=Journal(folder, folder),
                checkpoint_every=run.steps,
                save_at=frozenset(),
                save=lambda *_: None,
            ),
            progress=lambda *_: _let_others(step_done, deterministic),
        )
        torch.use_deterministic_algorithms(mode=False)
        lines = (folder / RECORDS).read_text(encoding="utf-8").splitlines()
    return sum(json.loads(line)["tokens_trained"] for line in lines) / len(lines)


def _let_others(step_done: Callable[[], None], deterministic: bool) -> None:  # noqa: FBT001
    """Hand the turn over; a study runs with deterministic algorithms, its peers need not."""
    torch.use_deterministic_algorithms(mode=False)
    step_done()
    torch.use_deterministic_algorithms(deterministic)


def kernels(model: LanguageModel) -> list[Kernel]:
    """The decoders that can run this model here: torch, and the native one on a CPU."""
    native = model.device.type == "cpu" and find_compiler() is not None
    return ["torch", "native"] if native else ["torch"]


def fastest(model: LanguageModel) -> LanguageModel:
    """The model with the kernel that a study on this machine chooses."""
    return replace(model, kernel=kernels(model)[-1])


def sample(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    seed: int,
    kernel: Kernel = "torch",
) -> Completions:
    """Completions at temperature 1."""
    return rollouts.sample(
        replace(model, kernel=kernel),
        prompts,
        temperature=1.0,
        max_new_tokens=max_new_tokens,
        seed=seed,
    ).completions
