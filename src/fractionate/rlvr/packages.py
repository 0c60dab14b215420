"""The third-party trainers, which are an extra: are they here, and do they fit the settings?"""

import importlib.util

import torch

from fractionate.config import Adaptation

TRAINERS = ("trl", "peft", "accelerate", "datasets")


class TrainerUnavailableError(ValueError):
    """A package or a device that the settings need is missing; says how to get it."""


def check_trainers(adaptation: Adaptation, *, device: str, field: str) -> None:
    """Refuse settings that this machine cannot run, before anything is spent.

    Args:
        adaptation: What is to be trained, resolved: without "auto".
        device: Device type of the stage.
        field: Configuration field of the stage, for the message.

    Raises:
        TrainerUnavailableError: A package is missing, or the device lacks the precision.
    """
    missing = [name for name in TRAINERS if importlib.util.find_spec(name) is None]
    if missing:
        raise TrainerUnavailableError(
            f"{field} needs the packages {', '.join(TRAINERS)}, of which {', '.join(missing)} "
            "cannot be found. Install them: pip install 'fractionate[train]'"
        )
    small = [
        f"{field}.adaptation.{name} '{value}'"
        for name, value in (
            ("quantization", adaptation.quantization),
            ("optimizer", adaptation.optimizer),
        )
        if value in ("nf4", "adamw_8bit")
    ]
    if small and importlib.util.find_spec("bitsandbytes") is None:
        raise TrainerUnavailableError(
            f"{' and '.join(small)} need the package bitsandbytes. Install it, or set 'auto', "
            "which the plan resolves on the machine that runs the study"
        )
    if device == "cuda" and adaptation.dtype == "bfloat16" and not torch.cuda.is_bf16_supported():
        raise TrainerUnavailableError(
            f"{field}.adaptation.dtype 'bfloat16': this GPU does not compute in it. Set float32"
        )
