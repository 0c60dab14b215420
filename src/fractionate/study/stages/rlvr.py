"""Reinforcement learning as a stage: GRPO from a distilled student, one step of it beforehand."""

import json
from dataclasses import replace

from fractionate.config import Grpo
from fractionate.models.load import load_model, save_model
from fractionate.records import RlvrRecord, write_jsonl
from fractionate.rlvr.packages import check_trainers
from fractionate.rlvr.policy import Policy
from fractionate.rlvr.rewards import Rewarder
from fractionate.rlvr.rollouts import GroupRollouts
from fractionate.rlvr.training import Hooks
from fractionate.study.stages.job import Job
from fractionate.study.stages.training import weights_folder

UPDATES = "rlvr.jsonl"
PROBE_TOKENS = 8


def train_rlvr(job: Job) -> None:
    """GRPO on the task's verifier, from the last step of a cell.

    Raises:
        TrainerUnavailableError: A package or the precision is missing.
        DivergedTrainingError: The loss or a gradient is not finite.
    """
    config = Grpo.model_validate(job.config["rlvr"])
    check_trainers(config.adaptation, device=job.device, field="rlvr")
    source = str(weights_folder(job.parent("cell"), "last"))
    dtype = config.adaptation.dtype
    model = load_model(source, dtype=dtype, device=job.device, kernel=job.kernel)
    policy = Policy(model, config.adaptation, seed=config.seed)

    def save(step: int) -> None:
        plain = policy.plain()
        folder = job.workspace.path / "weights" / f"step-{step:06d}"
        save_model(plain.module, plain.tokenizer, folder)

    hooks = Hooks(
        folder=job.workspace.scratch,
        keep=frozenset(step for step in job.config["keep"] if step != "last"),
        save=save,
        progress=job.progress,
    )
    records = run_grpo(job, policy, config, hooks)
    save(config.steps)
    write_jsonl(job.workspace.path / UPDATES, records)
    summary = json.dumps({"steps": config.steps}, indent=2)
    (job.workspace.path / "summary.json").write_text(summary, encoding="utf-8")


def try_rlvr(job: Job) -> None:
    """One small update from the untrained student, with nothing kept.

    Raises:
        TrainerUnavailableError: A package or the precision is missing.
        PromptTooLongError: A prompt exceeds `rlvr.prompt`.
    """
    own = follow_up(job)
    config = Grpo.model_validate(own.config["rlvr"])
    check_trainers(config.adaptation, device=job.device, field="rlvr")
    small = config.model_copy(
        update={
            "steps": 1,
            "warmup": 0,
            "group": 2,
            "generation_batch": 2,
            "micro_batch": 2,
            "accumulation": 1,
            "completion": min(PROBE_TOKENS, config.completion),
        }
    )
    policy = Policy(job.base(), config.adaptation, seed=config.seed)
    hooks = Hooks(job.workspace.scratch / "rlvr")
    run_grpo(own, policy, small, hooks)


def follow_up(job: Job) -> Job:
    """A preflight as its study's RLVR would be: that task, with its data."""
    stage = job.stage
    own = "rlvr."  # of the inputs, those of its own task
    data = {
        role.replace(own, "data.", 1): source
        for role, source in stage.inputs.items()
        if role.startswith(own)
    }
    return replace(job, stage=replace(stage, config=stage.config["rlvr"], inputs=data))


def run_grpo(job: Job, policy: Policy, config: Grpo, hooks: Hooks) -> list[RlvrRecord]:
    """GRPO on the training split of the stage's task."""
    from fractionate.rlvr.grpo import train_grpo  # TRL is an extra and takes seconds to import

    every = int(job.stage.runtime.get("every", config.checkpoint_every))
    settings = config.model_copy(update={"checkpoint_every": every})
    rollouts = GroupRollouts(
        policy,
        job.task.problems("train"),
        rewarder=Rewarder(job.task, correct=config.correct_reward, layout=config.format_reward),
        config=settings,
        chat_template_kwargs=job.config["chat_template_kwargs"],
    )
    return train_grpo(policy, rollouts, settings, hooks, device=job.device)
