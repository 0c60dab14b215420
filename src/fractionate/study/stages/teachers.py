"""Stages that make a teacher of its base model: supervised fine-tuning, then GRPO."""

import json

from fractionate.config import GrpoTraining, SftTraining
from fractionate.models.load import load_model, save_model
from fractionate.records import RlvrRecord, SftRecord, write_jsonl
from fractionate.rlvr.packages import check_trainers
from fractionate.rlvr.policy import Policy
from fractionate.rlvr.training import Hooks
from fractionate.study.stages.job import UNPACKED, Job
from fractionate.study.stages.rlvr import run_grpo

UPDATES = "updates.jsonl"


def train_teacher(job: Job) -> None:
    """One stage of a teacher's training; the result is a model folder, adapters merged.

    Raises:
        TrainerUnavailableError: A package or the precision is missing.
        DivergedTrainingError: The loss or a gradient is not finite.
    """
    settings = job.config["training"]
    kind = GrpoTraining if settings["kind"] == "grpo" else SftTraining
    config = kind.model_validate(settings)
    check_trainers(config.adaptation, device=job.device, field="teacher_training")
    location, revision = job.teacher_source()
    model = load_model(
        location,
        revision=revision,
        dtype=config.adaptation.dtype,
        device=job.device,
        kernel=job.kernel,
    )
    policy = Policy(model, config.adaptation, seed=config.seed)
    last = config.steps if config.use == "last" else config.use
    hooks = Hooks(job.workspace.scratch, progress=job.progress, stop_at=last)
    summary = {"steps": last, "too_long": 0}
    records: list[RlvrRecord] | list[SftRecord]
    if isinstance(config, GrpoTraining):
        records = run_grpo(job, policy, config, hooks)
    else:
        records, summary["too_long"] = _sft(job, policy, config, hooks)
    plain = policy.plain()
    save_model(plain.module, plain.tokenizer, job.workspace.path / UNPACKED)
    write_jsonl(job.workspace.path / UPDATES, records)
    text = json.dumps(summary, indent=2, sort_keys=True)
    (job.workspace.path / "summary.json").write_text(text, encoding="utf-8")


def _sft(
    job: Job, policy: Policy, config: SftTraining, hooks: Hooks
) -> tuple[list[SftRecord], int]:
    from fractionate.teachers.sft import lessons, train_sft  # TRL takes seconds to import

    every = int(job.stage.runtime["every"])
    settings = config.model_copy(update={"checkpoint_every": every})
    kwargs = job.config["chat_template_kwargs"]
    learnt = lessons(policy, job.task, job.task.problems("train"), settings, kwargs)
    if learnt.too_long:
        job.report(
            {
                "warning": f"{learnt.too_long} demonstrations exceed "
                f"teacher_training.completion ({config.completion} tokens) and were left out"
            }
        )
    return train_sft(policy, learnt, settings, hooks, device=job.device), learnt.too_long
