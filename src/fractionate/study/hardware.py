"""What "auto" means on the machine that runs a study, and how fast its GPU would be.

Device and adaptation are settled by the plan, so that keys hold them.
"""

import importlib.util
import os
from collections.abc import Mapping

from fractionate.config import Adaptation, StudyFileError

PEAK_FLOPS: Mapping[str, float] = {
    "a100": 312e12,
    "l40s": 362e12,
    "h100": 989e12,
    "h200": 989e12,
    "b200": 2250e12,
    "mi300x": 1307e12,
}
"""Dense bfloat16 operations per second at most, by accelerator, from the vendors' data sheets."""

UTILISATION = 0.2
"""Share of the peak that hours are reckoned with, training and decoding together: an assumption.

Training comes above it; decoding, which most of a study's operations are, reads all weights for a
few tokens and comes below it where few rows decode together."""

_DEVICES = ("cpu", "cuda")


def gpu_hours(flops: float, kind: str) -> float:
    """Hours of one accelerator at `UTILISATION` of its peak.

    Raises:
        ValueError: The accelerator is unknown; lists those there are.
    """
    if kind not in PEAK_FLOPS:
        raise ValueError(f"no accelerator '{kind}' is known. Known: {', '.join(PEAK_FLOPS)}")
    return flops / (UTILISATION * PEAK_FLOPS[kind]) / 3600


def device_of_runs(device: str | None) -> str:
    """The device type of stages: the one given, else FRACTIONATE_DEVICE, else the CPU.

    Raises:
        StudyFileError: It is neither "cpu" nor "cuda".
    """
    chosen = device or os.environ.get("FRACTIONATE_DEVICE") or "cpu"
    if chosen not in _DEVICES:
        raise StudyFileError(
            f"the device of runs is '{chosen}'. Set FRACTIONATE_DEVICE to cpu or cuda"
        )
    return chosen


def settled(adaptation: Adaptation, *, device: str, field: str) -> Adaptation:
    """Settings without "auto".

    Four-bit bases and eight-bit moments need a GPU and bitsandbytes. Where one of them is missing
    the base keeps the computing precision and the moments are in float32: dearer, not coarser.

    Args:
        adaptation: As the study has them.
        device: Device type on which the stage runs, "cpu" or "cuda".
        field: Field of the study, for messages.

    Raises:
        StudyFileError: Four or eight bits are demanded on a CPU; names the field.
    """
    on_gpu = device == "cuda"
    small = on_gpu and importlib.util.find_spec("bitsandbytes") is not None
    choices = {
        "quantization": "nf4" if small and adaptation.lora is not None else "none",
        "optimizer": "adamw_8bit" if small else "adamw",
        "dtype": "bfloat16" if on_gpu else "float32",
    }
    given = dict(adaptation)
    settings = {n: choice if given[n] == "auto" else given[n] for n, choice in choices.items()}
    for name, small_value in (("quantization", "nf4"), ("optimizer", "adamw_8bit")):
        if settings[name] == small_value and not on_gpu:
            raise StudyFileError(
                f"{field}.adaptation.{name}: '{small_value}' needs a GPU, but the device is "
                f"'{device}'. Set it to 'auto', which falls back to '{choices[name]}' there"
            )
    return adaptation.model_copy(update=settings)


def fallback_note(adaptation: Adaptation, resolved: Adaptation, *, field: str) -> str | None:
    """What "auto" became where it is not what the paper did; none if nothing fell back."""
    if adaptation.lora is None:
        return None
    wanted = (("quantization", "four-bit base", "none"), ("optimizer", "8-bit AdamW", "adamw"))
    fell = [
        what
        for name, what, value in wanted
        if dict(adaptation)[name] == "auto" and dict(resolved)[name] == value
    ]
    if not fell:
        return None
    return (
        f"{field}: no {' and no '.join(fell)} here (they need a GPU and bitsandbytes): the base is "
        f"kept in {resolved.dtype}, the moments in float32"
    )
