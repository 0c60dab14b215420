"""Pre-training of the sandbox's teacher and students, from the project's own code, in steps.

Next-token cross-entropy on responses, weighted by token, over packed rows whose examples do not
see one another. Every batch is a function of (seed, stage, step), so a run that was killed
continues from its last checkpoint bit for bit.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import LlamaForCausalLM, PreTrainedModel

from fractionate.models.sandbox import new_model, save, shipped_folder
from fractionate.rng import stream
from fractionate.teachers.sandbox_data import Packed, packed_batch
from fractionate.teachers.sandbox_recipes import RECIPES, Phase, Recipe, Stage

CHECKPOINT = "checkpoint.pt"
CHECKPOINT_EVERY = 250


@dataclass(frozen=True)
class Progress:
    """Where a pre-training stands after a step.

    Attributes:
        stage: Name of the stage.
        step: Steps of the stage done.
        steps: Steps of the stage.
        loss: Weighted cross-entropy of the step, nats per unit of weight.
    """

    stage: str
    step: int
    steps: int
    loss: float


ProgressCallback = Callable[[Progress], None]


@dataclass
class _Cursor:
    """The state of a pre-training between steps; what a checkpoint holds."""

    model: PreTrainedModel
    stage: int = 0
    step: int = 0
    optimizer: dict[str, Any] | None = None


def build_model(
    name: str,
    *,
    seed: int,
    out: Path,
    steps_scale: float = 1.0,
    progress: ProgressCallback | None = None,
) -> Path:
    """Pre-train a model of the sandbox and write it as a `transformers` folder.

    Args:
        name: Of a recipe: `teacher`, `bilingual`, a kind of student (`components`, `latent`,
            `naive`), or one of the second family (`qwen-teacher`, `qwen-components`).
        seed: Seed of the initialisation and of the data. Students of one seed share their
            initialisation and first stages, whatever their kind.
        out: Folder to write to. A checkpoint in it is continued, and removed at the end.
        steps_scale: Factor on the steps of every stage, for small models in tests.
        progress: Called after every step.

    Returns:
        `out`.

    Raises:
        ValueError: Unknown name, or a checkpoint of another seed or scale lies in `out`.
    """
    if name not in RECIPES:
        message = f"sandbox model {name!r} is unknown; there are {', '.join(RECIPES)}"
        raise ValueError(message)
    recipe = RECIPES[name]
    out.mkdir(parents=True, exist_ok=True)
    identity = {"seed": seed, "steps_scale": steps_scale}
    cursor = _load(recipe, identity, out / CHECKPOINT)
    while cursor.stage < len(recipe.stages):
        _train_stage(recipe, cursor, identity, out / CHECKPOINT, progress)
        cursor.stage, cursor.step, cursor.optimizer = cursor.stage + 1, 0, None
        _store(cursor, identity, out / CHECKPOINT)
    save(cursor.model, out)
    (out / CHECKPOINT).unlink()
    return out


def scaled_steps(stage: Stage, steps_scale: float) -> int:
    """Steps of a stage in a run of another size, at least one."""
    return max(1, round(stage.steps * steps_scale))


def learning_rate(stage: Stage, step: int, steps: int) -> float:
    """Rate of a step: linear warm-up, constant, then linear to `last` times the peak."""
    warm_up = max(1, round(stage.warm_up * steps / stage.steps))
    decay_from = stage.constant * steps
    done = max(0.0, (step - decay_from) / max(1.0, steps - decay_from))
    return stage.rate * min(1.0, (step + 1) / warm_up) * (1 - (1 - stage.last) * done)


def phase_of(stage: Stage, step: int, steps: int) -> Phase:
    """The phase a step belongs to."""
    return [phase for phase in stage.phases if phase.begins * steps <= step][-1]


def weighted_loss(model: PreTrainedModel, batch: Packed) -> torch.Tensor:
    """Weighted mean of the next-token cross-entropy, nats."""
    logits = model(
        input_ids=batch.tokens,
        attention_mask=batch.mask,
        position_ids=batch.positions,
        use_cache=False,
    ).logits[:, :-1]
    weights = batch.weights[:, 1:].flatten()
    losses = functional.cross_entropy(
        logits.flatten(0, 1).float(), batch.tokens[:, 1:].flatten(), reduction="none"
    )
    return (weights * losses).sum() / weights.sum()


def _batches(recipe: Recipe, stage: Stage, seed: int, steps: range) -> Iterator[Packed]:
    """The batches of a stage's steps, each from a stream of its own."""
    for step in steps:
        phase = phase_of(stage, step, steps.stop)
        generator = stream(seed, "sandbox", "pretraining", stage.name, step)
        yield packed_batch(phase.mix, phase.order, recipe.rows, recipe.row_length, generator)


def _train_stage(
    recipe: Recipe,
    cursor: _Cursor,
    identity: dict[str, Any],
    checkpoint: Path,
    progress: ProgressCallback | None,
) -> None:
    stage = recipe.stages[cursor.stage]
    steps = scaled_steps(stage, identity["steps_scale"])
    model = cursor.model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=recipe.betas, weight_decay=recipe.weight_decay
    )
    if cursor.optimizer is not None:
        optimizer.load_state_dict(cursor.optimizer)
    for batch in _batches(recipe, stage, identity["seed"], range(cursor.step, steps)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(stage, cursor.step, steps)
        loss = weighted_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        optimizer.zero_grad()
        cursor.step += 1
        if progress is not None:
            progress(Progress(stage.name, cursor.step, steps, loss.item()))
        if cursor.step % CHECKPOINT_EVERY == 0:
            cursor.optimizer = optimizer.state_dict()
            _store(cursor, identity, checkpoint)


def _store(cursor: _Cursor, identity: dict[str, Any], path: Path) -> None:
    """Write a checkpoint beside the old one, then put it in its place."""
    state = {
        "identity": identity,
        "stage": cursor.stage,
        "step": cursor.step,
        "model": cursor.model.state_dict(),
        "optimizer": cursor.optimizer,
    }
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, path)  # noqa: PTH105 - atomic, and Path.replace says no more


def _load(recipe: Recipe, identity: dict[str, Any], path: Path) -> _Cursor:
    """The state in a checkpoint, or a new model where there is none."""
    model: PreTrainedModel
    if recipe.start is None:
        model = new_model(recipe.architecture, identity["seed"])
    else:
        model = LlamaForCausalLM.from_pretrained(shipped_folder(recipe.start, identity["seed"]))
    if not path.exists():
        return _Cursor(model)
    state = torch.load(path, weights_only=True)
    if state["identity"] != identity:
        message = f"{path} belongs to {state['identity']}, not {identity}; choose another folder"
        raise ValueError(message)
    model.load_state_dict(state["model"])
    return _Cursor(model, state["stage"], state["step"], state["optimizer"])
