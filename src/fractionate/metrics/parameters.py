"""Which parameters of a model are compared, and what each of them is."""

import re
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
_MATRICES: Mapping[str, str] = {
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "o_proj": "o",
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "lm_head": "head",
}

Weights = Mapping[str, Tensor]
Tied = Sequence[str | Sequence[str]]


def layer_of(name: str) -> str:
    """The layer of a parameter: its index, "embedding", "norm" or "head"."""
    found = _LAYER.search(name)
    return found.group(1) if found else matrix_of(name)


def matrix_of(name: str) -> str:
    """The matrix type of a parameter: "q", "k", ..., "norm", "embedding", "bias" or its own name.

    Names of Llama and Qwen models are known; a name that is not gives its module's last part.
    """
    parts = name.split(".")
    owner = parts[-2] if len(parts) > 1 else parts[0]
    if "norm" in owner or owner.startswith("ln_"):
        return "norm"
    if parts[-1] == "bias":
        return "bias"
    if "embed" in owner or owner in ("wte", "wpe"):
        return "embedding"
    return _MATRICES.get(owner, owner)


def counted_names(before: Weights, after: Weights, tied: Tied = ()) -> list[str]:
    """Names of the parameters of two models of one architecture, each parameter once.

    Args:
        before: Name to tensor.
        after: Name to tensor.
        tied: Groups of names that are one parameter, or single names that repeat another tensor (a
            bare name counts as one of these); tensors that share storage, and are equal on both
            sides, are found by themselves.

    Raises:
        ValueError: Other names or shapes, tied tensors that differ, or no parameter.
    """
    _check_names(before, after)
    named = (tied,) if isinstance(tied, str) else tied
    repeated = set(_named_repeats(before, after, named)) | set(_shared_repeats(before, after))
    names = [name for name in before if name not in repeated and before[name].numel()]
    if not names:
        raise ValueError("before holds no parameter: pass the named parameters of a model")
    return names


def _check_names(before: Weights, after: Weights) -> None:
    for name in before:
        if name not in after:
            raise ValueError(f"'{name}' is in before but not in after: compare one architecture")
        if before[name].shape != after[name].shape:
            raise ValueError(
                f"'{name}' has shape {tuple(before[name].shape)} before and "
                f"{tuple(after[name].shape)} after: compare one architecture"
            )
    for name in after:
        if name not in before:
            raise ValueError(f"'{name}' is in after but not in before: compare one architecture")


def _equal(first: Tensor, second: Tensor) -> bool:
    return _location(first) == _location(second) or torch.equal(first, second)


def _location(tensor: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _same_parameter(before: Weights, after: Weights, first: str, second: str) -> bool:
    return (
        before[first].shape == before[second].shape
        and _equal(before[first], before[second])
        and _equal(after[first], after[second])
    )


def _shared_repeats(before: Weights, after: Weights) -> Iterator[str]:
    """Names whose tensor shares storage with an earlier one, and has stayed equal to it."""
    for side in (before, after):
        seen: dict[tuple[int, tuple[int, ...], tuple[int, ...]], str] = {}
        for name, tensor in side.items():
            first = seen.setdefault(_location(tensor), name)
            if first != name and tensor.numel() and _same_parameter(before, after, first, name):
                yield name


def _named_repeats(before: Weights, after: Weights, tied: Tied) -> Iterator[str]:
    for entry in tied:
        for name in [entry] if isinstance(entry, str) else entry:
            if name not in before:
                raise ValueError(f"tied names '{name}', which is no parameter here")
    for entry in tied:
        if not isinstance(entry, str):
            first, *others = entry
            for name in others:
                if not _same_parameter(before, after, first, name):
                    raise ValueError(
                        f"tied says that '{first}' and '{name}' are one, but they differ"
                    )
                yield name
    yield from _lone_repeats(before, after, [entry for entry in tied if isinstance(entry, str)])


def _lone_repeats(before: Weights, after: Weights, names: Sequence[str]) -> Iterator[str]:
    """Single names: each repeats some tensor that is itself counted."""
    dropped: set[str] = set()
    for name in names:
        twins = [
            other
            for other in before
            if other != name and _same_parameter(before, after, name, other)
        ]
        if not twins:
            raise ValueError(f"tied names '{name}', but no other tensor equals it")
        if any(twin not in dropped for twin in twins):
            dropped.add(name)
            yield name
