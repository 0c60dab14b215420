"""Running one stage: find its code, give it a workspace, let the store keep the result."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fractionate.study.keys import Stage
from fractionate.study.stages.job import Job
from fractionate.study.stages.measuring import (
    evaluate_base,
    evaluate_cell,
    evaluate_rlvr,
    evaluate_teacher,
)
from fractionate.study.stages.preflight import preflight
from fractionate.study.stages.rlvr import train_rlvr
from fractionate.study.stages.teachers import train_teacher
from fractionate.study.stages.training import describe_model, make_teacher_corpus, train_cell
from fractionate.study.store import Store

STAGES: Mapping[str, Callable[[Job], None]] = {
    "student_base": describe_model,
    "teacher": describe_model,
    "preflight": preflight,
    "corpus": make_teacher_corpus,
    "cell": train_cell,
    "base_evaluation": evaluate_base,
    "teacher_evaluation": evaluate_teacher,
    "cell_evaluation": evaluate_cell,
    "teacher_training": train_teacher,
    "rlvr": train_rlvr,
    "rlvr_evaluation": evaluate_rlvr,
}


def run_stage(stage: Stage, store: Store, report: Callable[[dict[str, Any]], None]) -> None:
    """Compute a stage, unless the store has it.

    Args:
        stage: What to compute; its parents are in the store.
        store: Where results are.
        report: Called with progress, `{"step": ..., "total": ...}`, warnings,
            `{"warning": ...}`, and `{"there": True}` if the store had the result after all.

    Raises:
        ValueError: A model, a checkpoint or data cannot be used; names the file and the mend.
        RuntimeError: Training diverged.
    """
    torch.set_num_threads(int(stage.execution["threads"]))
    torch.use_deterministic_algorithms(stage.execution["device"] == "cpu")
    # it would also fill every new tensor with NaN: a quarter of a short rollout, and no number's
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue] - a module that is a property
    waiting = {"warning": f"another process is at work on {stage.name}: waiting for it"}
    with store.open_stage(stage, lambda: report(waiting)) as workspace:
        if workspace.done:
            report({"there": True})
        else:
            STAGES[stage.kind](Job(stage, store, workspace, report))
