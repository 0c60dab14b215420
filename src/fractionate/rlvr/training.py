"""What GRPO and supervised fine-tuning share of a trainer: quiet, seeded, resumable."""

import contextlib
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback
from transformers.utils import logging as transformers_logging

from fractionate.config import Adaptation
from fractionate.rng import borrow_global

_WHOLE = "whole"
_OPTIMIZERS: Mapping[str, str] = {"adamw": "adamw_torch_fused", "adamw_8bit": "adamw_bnb_8bit"}


def _nothing(*_: int) -> None:
    """Nobody wants to know."""


class DivergedTrainingError(RuntimeError):
    """A loss or gradient is NaN or infinite; names the update and the mend."""


@dataclass(frozen=True)
class Hooks:
    """What a stage wants of a training.

    Attributes:
        folder: For resumable checkpoints; a run that finds one there goes on from it.
        keep: Updates after which `save` is called.
        save: Keeps the weights after an update.
        progress: Called after every update with its number and the number of all.
        stop_at: The update after which training ends, before its schedule does; none runs it all.
    """

    folder: Path
    keep: frozenset[int] = frozenset()
    save: Callable[[int], None] = _nothing
    progress: Callable[[int, int], None] = _nothing
    stop_at: int | None = None


def common_arguments(adaptation: Adaptation, hooks: Hooks, *, device: str) -> dict[str, Any]:
    """Arguments of every trainer: one record per update, one checkpoint, nothing reported."""
    return {
        "output_dir": str(hooks.folder),
        "lr_scheduler_type": "cosine",
        "weight_decay": 0.0,
        "optim": _OPTIMIZERS[adaptation.optimizer],
        "bf16": adaptation.dtype == "bfloat16",
        "gradient_checkpointing": adaptation.recompute,
        "use_cpu": device == "cpu",
        "dataloader_pin_memory": False,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "steps",
        "save_total_limit": 1,
        "report_to": "none",
        "disable_tqdm": True,
    }


def run_trainer(trainer: Trainer, hooks: Hooks, *, seed: int) -> list[dict[str, Any]]:
    """Train, from the last whole checkpoint if there is one.

    Returns:
        What was logged of every update.

    Raises:
        DivergedTrainingError: The loss or the gradient norm of an update is not finite.
    """
    trainer.remove_callback(PrinterCallback)  # library code prints nothing
    trainer.add_callback(_Stage(hooks))
    checkpoint = _last_whole(hooks.folder)
    with quiet(), borrow_global(seed, "trainer"):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return [entry for entry in trainer.state.log_history if "loss" in entry]


@final
class _Stage(TrainerCallback):
    """Calls the hooks; marks checkpoints that are written whole."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def on_step_end(self, args: Any, state: Any, control: Any, **also: Any) -> None:  # noqa: ARG002 - the trainer's signature
        weights = (p for p in also["model"].parameters() if p.requires_grad)
        if not all(bool(torch.isfinite(weight).all()) for weight in weights):
            raise DivergedTrainingError(
                f"update {state.global_step} made a weight infinite or NaN. Lower lr"
            )
        if state.global_step in self._hooks.keep:
            self._hooks.save(state.global_step)
        if state.global_step == self._hooks.stop_at:
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002 - the trainer's signature
        if "loss" not in logs:
            return
        for name in ("loss", "grad_norm"):
            if not math.isfinite(logs[name]):
                raise DivergedTrainingError(
                    f"{name} is {logs[name]} at update {state.global_step}. Lower lr, or clip"
                )
        self._hooks.progress(state.global_step, self._hooks.stop_at or args.max_steps)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - the trainer's signature
        (_checkpoint(Path(args.output_dir), state.global_step) / _WHOLE).touch()


def _checkpoint(folder: Path, step: int) -> Path:
    return folder / f"checkpoint-{step}"


def _last_whole(folder: Path) -> Path | None:
    steps = [int(p.parent.name.rpartition("-")[2]) for p in folder.glob(f"checkpoint-*/{_WHOLE}")]
    return _checkpoint(folder, max(steps)) if steps else None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the trainers' own notes from the terminal.

    TRL 1.16 calls what transformers 5.24 deprecates, and calls its own `rollout_func` experimental.
    """
    shown = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    noisy = logging.getLogger("trl")
    level = noisy.level
    noisy.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You are using 'rollout_func'", UserWarning)
            warnings.filterwarnings("ignore", r".*gradient_checkpointing", FutureWarning)
            yield
    finally:
        transformers_logging.set_verbosity(shown)
        if bars:
            transformers_logging.enable_progress_bar()
        noisy.setLevel(level)
