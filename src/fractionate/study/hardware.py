"""What "auto" means on the machine that runs a study: settled by the plan, so that keys hold it."""

import importlib.util

from fractionate.config import Adaptation, StudyFileError


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
