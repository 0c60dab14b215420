"""Which kernel works in a study, and what the processor lacks: found out about without torch."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from fractionate.config import StudyFileError
from fractionate.models.native.compiler import find_compiler
from fractionate.study.dimensions import PUBLISHED
from fractionate.study.gguf_header import read_gguf_header

Kernel = Literal["torch", "native", "compiled"]
_ARCHITECTURES = ("llama", "qwen2")
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")


def settled_kernel(
    wanted: Literal["auto"] | Kernel, models: Sequence[str], *, device: str, threads: int
) -> Kernel:
    """The kernel that decodes and computes steps: native where it can, if the study does not say.

    Args:
        wanted: `kernel` of the study.
        models: Folder, .gguf file or hub id of every model that may write.
        device: Device type of the stages.
        threads: Threads of a stage; the native kernel has one, so "auto" takes torch for more.

    Raises:
        StudyFileError: The native kernel is demanded and cannot be had here.
    """
    if wanted in ("torch", "compiled"):
        return wanted
    obstacle = _obstacle(models, device)
    if wanted == "auto":
        return "native" if obstacle is None and threads == 1 else "torch"
    if obstacle is not None:
        raise StudyFileError(f"kernel: 'native' cannot work here ({obstacle}). Set kernel: torch")
    return "native"


def slow_in_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor is known to lack products of bfloat16; false where nothing tells.

    Args:
        cpuinfo: Where Linux says what an x86 processor can do.
    """
    try:
        line = cpuinfo.read_text(encoding="utf-8").partition("\nflags")[2].partition("\n")[0]
    except OSError:
        return False
    flags = line.partition(":")[2].split()
    return bool(flags) and not any(flag.endswith("_bf16") for flag in flags)


def _obstacle(models: Sequence[str], device: str) -> str | None:
    if device != "cpu":
        return f"the device is {device}, and it is for CPUs"
    for source in models:
        if not _is_known(source):
            return f"{source} is no Llama or Qwen2 model with rotary positions of a static kind"
    if find_compiler() is None:
        return "there is no C compiler: cc, gcc or clang"
    return None


def _is_known(source: str) -> bool:
    """What cannot be read is not known: the plan says what is wrong with it."""
    path = Path(source)
    try:
        if path.is_file():
            return read_gguf_header(path).values.get("general.architecture") in _ARCHITECTURES
        if not path.is_dir():
            return source.removesuffix("-Instruct") in PUBLISHED
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and _is_known_config(cast("dict[str, Any]", config))


def _is_known_config(config: Mapping[str, Any]) -> bool:
    rope = cast(
        "Mapping[str, Any]", config.get("rope_parameters") or config.get("rope_scaling") or {}
    )
    layer_types = cast("Sequence[str]", config.get("layer_types") or ())
    return (
        config.get("model_type") in _ARCHITECTURES
        and config.get("hidden_act", "silu") == "silu"
        and not config.get("use_sliding_window", False)
        and all(kind == "full_attention" for kind in layer_types)
        and rope.get("rope_type", rope.get("type", "default")) in _STATIC_ROPE
        and rope.get("partial_rotary_factor", 1.0) == 1.0
    )
