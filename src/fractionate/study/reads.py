"""What each kind of stage reads of a study: its configuration, complete and no more.

A stage that does not read a field does not change with it: a corpus ignores the divergence, a cell
ignores the evaluation. Values are plain (JSON), defaults included.
"""

from collections.abc import Sequence, Set
from typing import Any, Literal

from fractionate.config import (
    Config,
    Evaluate,
    Harness,
    Lengths,
    Rlvr,
    Study,
    TeacherTraining,
)
from fractionate.config.vary import Plain
from fractionate.study.cells import Cell
from fractionate.study.dimensions import Dimensions

At = int | Literal["last"]
HIDDEN_LIMIT = 8 * 2**30
"""Bytes of teacher hidden states that a corpus may store; a larger corpus is scored again."""


def _plain(config: Config | None, *, exclude: Set[str] = frozenset()) -> Plain:
    return None if config is None else config.model_dump(mode="json", exclude=set(exclude))


def _task(study: Study) -> dict[str, Any]:
    """The task; local data counts by its content, which is an input, and not by its path."""
    plain = _plain(study.task, exclude={"path"})
    for field in ("source", "test_source", "exclude"):
        for source in plain.get(field, ()):
            del source["path"]
    return plain


def _text(study: Study) -> dict[str, Any]:
    """How a problem becomes tokens."""
    if study.models is None:
        return {"world": "sandbox", "chat_template_kwargs": {}}
    return {
        "world": None,
        "chat_template_kwargs": study.models.model_dump(mode="json")["chat_template_kwargs"],
    }


def _teacher_view(study: Study) -> dict[str, Any]:
    pair = study.models or study.world
    context = pair.teacher_context if pair is not None else None
    return {"teacher_context": _plain(context)}


def _vocabulary(study: Study) -> dict[str, Any]:
    return {"vocabulary": study.models.vocabulary if study.models is not None else "tokenizer"}


def _lengths(study: Study, *names: str) -> dict[str, Any]:
    return {"lengths": {name: dict(study.lengths)[name] for name in names}}


def _precision(study: Study) -> dict[str, Any]:
    optimizer = study.optimizer
    return {
        "precision": {
            "param_dtype": optimizer.param_dtype,
            "compute_dtype": optimizer.compute_dtype,
        }
    }


def student_base(study: Study) -> dict[str, Any]:
    """The untrained student: only its files, which are an input."""
    return _text(study)


def teacher(study: Study) -> dict[str, Any]:
    """The teacher's files and the precision it is loaded in."""
    dtype = study.models.teacher_dtype if study.models is not None else "float32"
    return {**_text(study), "teacher_dtype": dtype}


def preflight(study: Study, cells: Sequence[Cell], settings: Rlvr | None) -> dict[str, Any]:
    """One small step of every distinct method and precision of the study, and of its RLVR."""
    methods = _distinct([_plain(cell.study.method) for cell in cells])
    optimizers = _distinct([_plain(cell.study.optimizer, exclude={"lr"}) for cell in cells])
    return {
        **_text(study),
        **_teacher_view(study),
        **_vocabulary(study),
        **_lengths(study, "prompt", "completion", "evaluation"),
        "task": _task(study),
        "methods": methods,
        "optimizers": optimizers,
        "budget": _plain(study.budget),
        "prompt_order": study.prompt_order,
        "evaluate": _measures(study),
        **({} if settings is None else {"rlvr": rlvr(study, settings)}),
    }


def _distinct(values: Sequence[Any]) -> list[Any]:
    return [value for i, value in enumerate(values) if value not in values[:i]]


def _measures(study: Study) -> dict[str, Any]:
    """The measurements that any model can take, the sandbox's skills with their size."""
    evaluate = study.evaluate
    return {
        "accuracy": _plain(evaluate.accuracy),
        "coverage": _plain(evaluate.coverage),
        "forgetting": _forgetting(evaluate),
        "skill_items": evaluate.skill_items if evaluate.forgetting == "skills" else None,
        "harder": _plain(evaluate.harder),
        "style": _plain(evaluate.style),
        "seed": evaluate.seed,
    }


def _forgetting(evaluate: Evaluate) -> Plain:
    """Task files of one's own count by their content, which is an input, and not by their path."""
    if isinstance(evaluate.forgetting, Harness):
        return _plain(evaluate.forgetting, exclude={"include"})
    return evaluate.forgetting


def measures_anything(study: Study) -> bool:
    """Whether a model is measured at all."""
    evaluate = study.evaluate
    parts = (
        evaluate.accuracy,
        evaluate.coverage,
        evaluate.forgetting,
        evaluate.harder,
        evaluate.style,
    )
    return any(part is not None for part in parts)


def _evaluation(study: Study) -> dict[str, Any]:
    names = ["prompt", "evaluation"]
    names += ["harder"] if study.evaluate.harder is not None else []
    return {
        **_text(study),
        **_lengths(study, *names),
        "task": _task(study),
        "evaluate": _measures(study),
    }


def _drift(study: Study) -> dict[str, Any]:
    """Drift, with the sampling and loss temperatures that it uses."""
    drift = study.evaluate.drift
    if drift is None:
        return {"drift": None}
    temperature = study.method.temperature
    used = ["student_loss", "teacher_loss", "teacher_rollout", "top_p"] if drift.to_teacher else []
    return {
        **_teacher_view(study),
        **_vocabulary(study),
        "drift": _plain(drift),
        "drift_temperature": {name: dict(temperature)[name] for name in used},
    }


def _beside_teacher(study: Study, step: At) -> dict[str, Any]:
    """Measurements in which the teacher takes part besides the drift; empty without one."""
    evaluate, found = study.evaluate, dict[str, Any]()
    gradients, more = evaluate.gradients, dict[str, Any]()
    if gradients is not None and (gradients.at is None or _asked_at(study, gradients.at, step)):
        length = gradients.max_new_tokens or study.lengths.completion
        found["gradients"] = {**_plain(gradients, exclude={"at"}), "max_new_tokens": length}
        more = {"method_temperature": _plain(study.method.temperature)}
    if evaluate.resampling is not None:
        found["resampling"] = _plain(evaluate.resampling)
    if not found:
        return {}
    return {**_teacher_view(study), **_vocabulary(study), **more, "beside": found}


def _asked_at(study: Study, at: Sequence[At], step: At) -> bool:
    return step in at or (step == "last" and any(_is_last(study, asked) for asked in at))


def evaluation_reads_teacher(study: Study, step: At) -> bool:
    """Whether a student is compared with the teacher at a step."""
    return _drifts_to_teacher(study) or bool(_beside_teacher(study, step))


def base_evaluation(study: Study) -> dict[str, Any]:
    """The untrained student, in the precision in which cells train it."""
    drift = _drift(study) if _drifts_to_teacher(study) else {"drift": None}
    return {**_evaluation(study), **_precision(study), **drift, **_beside_teacher(study, 0)}


def _drifts_to_teacher(study: Study) -> bool:
    return study.evaluate.drift is not None and study.evaluate.drift.to_teacher


def teacher_evaluation(study: Study) -> dict[str, Any]:
    """The teacher as it teaches: with its context."""
    return {**_evaluation(study), **_teacher_view(study)}


def corpus(study: Study, seed: int, dimensions: Dimensions | None) -> dict[str, Any]:
    """The teacher's completions for every prompt of every step of a seed."""
    temperature = study.method.temperature
    return {
        **_text(study),
        **_teacher_view(study),
        **_lengths(study, "prompt", "completion"),
        "task": _task(study),
        "seed": seed,
        "temperature": {"teacher_rollout": temperature.teacher_rollout, "top_p": temperature.top_p},
        "budget": {
            "steps": study.budget.steps,
            "prompts_per_step": study.budget.prompts_per_step,
        },
        "prompt_order": study.prompt_order,
        "hidden": "stored" if _hidden_fits(study, dimensions) else "rescored",
    }


def _hidden_fits(study: Study, dimensions: Dimensions | None) -> bool:
    """Storing a hidden state costs less time than scoring its token again, while disk lasts."""
    if dimensions is None:
        return False
    budget = study.budget
    tokens = budget.steps * budget.prompts_per_step * study.lengths.completion
    return tokens * dimensions.hidden * 4 <= HIDDEN_LIMIT


def reads_corpus(study: Study) -> bool:
    """Whether a cell trains on the cached completions of its teacher."""
    rollout = study.method.rollout
    return rollout.kind == "teacher" and rollout.cached


def cell(study: Study) -> dict[str, Any]:
    """A training run. `keep` names the steps whose weights stay: the evaluated ones among them."""
    return {
        **_text(study),
        **_teacher_view(study),
        **_vocabulary(study),
        **_lengths(study, "prompt", "completion"),
        "task": _task(study),
        "seed": study.seeds[0],
        "method": _plain(study.method),
        "optimizer": _plain(study.optimizer),
        "budget": _plain(study.budget),
        "prompt_order": study.prompt_order,
        "diagnostics": _plain(study.diagnostics),
        "keep": list(kept_steps(study)),
    }


def kept_steps(study: Study) -> tuple[At, ...]:
    """Steps whose weights stay: `checkpoints.keep` and the evaluated ones, the last step last."""
    keep = study.checkpoints.keep
    return (*_inner(study, (*(() if keep == "last" else keep), *study.evaluate.at)), "last")


def evaluated_steps(study: Study) -> tuple[At, ...]:
    """Steps at which cells are evaluated, without 0, each once, the last step last."""
    at = study.evaluate.at
    last = any(_is_last(study, step) for step in at)
    return (*_inner(study, at), "last") if last else _inner(study, at)


def _inner(study: Study, steps: Sequence[At]) -> tuple[int, ...]:
    """The steps between the first and the last, each once, in order."""
    between = {step for step in steps if step != "last" and not _is_last(study, step)}
    return tuple(sorted(between - {0}))


def _is_last(study: Study, step: At) -> bool:
    """A budget in tokens may end before `budget.steps`; only a budget in steps knows its last."""
    return step == "last" or (study.budget.tokens is None and step == study.budget.steps)


def cell_evaluation(study: Study, step: At) -> dict[str, Any]:
    """One checkpoint of a cell: its answers, its drift and its weights against the base."""
    sparsity = study.evaluate.sparsity
    return {
        **_evaluation(study),
        **_precision(study),
        **_drift(study),
        **_beside_teacher(study, step),
        "step": step,
        "seed": study.seeds[0],
        "sparsity": _plain(sparsity),
        "optimizer": _plain(study.optimizer) if sparsity is not None else None,
        "budget": _plain(study.budget) if sparsity is not None else None,
    }


# ---------------------------------------------------------------- training by other means


def teacher_training(study: Study, stage: TeacherTraining) -> dict[str, Any]:
    """One stage of the teacher's training, resolved: its adaptation holds no "auto"."""
    return {
        **teacher(study),
        "task": _task(study),
        "training": _plain(stage, exclude={"checkpoint_every"}),
    }


def rewarded(study: Study, settings: Rlvr) -> Study:
    """A study as its RLVR sees it: its own task, lengths and measurements."""
    measures = settings.evaluate.model_dump(exclude={"at"})
    lengths = Lengths(
        prompt=settings.prompt, completion=settings.completion, evaluation=settings.completion
    )
    return study.model_copy(
        update={
            "task": settings.task,
            "lengths": lengths,
            "evaluate": Evaluate(at=(), sparsity=None, **measures),
        }
    )


def rlvr(study: Study, settings: Rlvr) -> dict[str, Any]:
    """RLVR from one distilled student; `settings` is resolved."""
    return {
        **_text(study),
        "task": _task(rewarded(study, settings)),
        "rlvr": _plain(settings, exclude={"task", "cells", "evaluate", "checkpoint_every"}),
        "keep": [*(s for s in rlvr_evaluated_steps(settings) if s not in (0, "last")), "last"],
    }


def rlvr_evaluated_steps(settings: Rlvr) -> tuple[At, ...]:
    """Updates after which a policy is evaluated, each once, in order, the last one as "last"."""
    at = settings.evaluate.at
    inner = sorted({step for step in at if step not in ("last", settings.steps)}, key=int)
    return (*inner, "last") if len(inner) < len(set(at)) else tuple(inner)


def rlvr_evaluation(study: Study, settings: Rlvr, step: At) -> dict[str, Any]:
    """Held-out evaluation of a policy on its own task."""
    return {**_evaluation(rewarded(study, settings)), **_precision(study), "step": step}
