"""Completions on disk: one safetensors file, rows packed by length, an exact round trip."""

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fractionate.records import StopReason
from fractionate.rollouts.completions import Completions

_FORMAT: Final = "fractionate.completions.1"
_HEADER: Final = "completions"
_STOPS: Final = tuple(StopReason)


class CorpusError(ValueError):
    """A file of completions that cannot be used; the message names it."""


def save_completions(path: str | Path, completions: Completions) -> None:
    """Write completions, and their hidden states where kept; padding is not stored.

    Args:
        path: Of the file; its folder exists.
        completions: What to store. The tokens beyond a length come back as the first one stored.
    """
    mask = completions.mask
    tensors = {
        "tokens": completions.tokens[mask],
        "lengths": completions.lengths,
        "log_probs": completions.log_probs[mask],
        "source": completions.source[mask],
        "stop": torch.tensor([_STOPS.index(stop) for stop in completions.stop], dtype=torch.uint8),
    }
    if completions.hidden is not None:
        tensors["hidden"] = completions.hidden[mask]
    header = {
        "format": _FORMAT,
        "width": completions.tokens.shape[1],
        "pad": _pad_id(completions),
    }
    save_file(
        {name: tensor.contiguous().cpu() for name, tensor in tensors.items()},
        str(path),
        # one entry only: safetensors writes several in random order, and equal completions are
        # equal files
        metadata={_HEADER: json.dumps(header)},
    )


def load_completions(path: str | Path, device: str | torch.device = "cpu") -> Completions:
    """Read completions as they were saved.

    Raises:
        CorpusError: The file is missing, cut short, of another kind, or contradicts itself.
    """
    if not Path(path).is_file():
        raise CorpusError(f"{path}: no such file. Run the corpus stage again")
    try:
        with safe_open(str(path), framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CorpusError(
            f"{path}: cannot be read ({error}). Delete it and run the corpus stage again"
        ) from None
    header = json.loads(metadata.get(_HEADER, "{}"))
    if header.get("format") != _FORMAT:
        raise CorpusError(f"{path}: is not a file of completions (no '{_FORMAT}' in its header)")
    return _unpack(Path(path), tensors, header)


def _pad_id(completions: Completions) -> int:
    padding = completions.tokens[~completions.mask]
    return int(padding[0]) if len(padding) else 0


def _unpack(path: Path, tensors: dict[str, Tensor], shape: dict[str, Any]) -> Completions:
    missing = {"tokens", "lengths", "log_probs", "source", "stop"} - set(tensors)
    if missing:
        raise CorpusError(f"{path}: lacks {sorted(missing)}. Delete it and run the stage again")
    lengths, total = tensors["lengths"], int(tensors["lengths"].sum())
    packed = {name: tensors[name] for name in tensors if name not in ("lengths", "stop")}
    wrong = [name for name, tensor in packed.items() if tensor.shape[0] != total]
    if wrong or tensors["stop"].shape != lengths.shape:
        raise CorpusError(
            f"{path}: contradicts itself: lengths add up to {total} tokens, {wrong or ['stop']} "
            "holds another number. Delete it and run the stage again"
        )
    rows = torch.arange(lengths.shape[0], device=lengths.device).repeat_interleave(lengths)
    starts = lengths.cumsum(0) - lengths
    at = torch.arange(total, device=lengths.device) - starts[rows]

    def spread(flat: Tensor, fill: int = 0) -> Tensor:
        dense = flat.new_full((lengths.shape[0], shape["width"], *flat.shape[1:]), fill)
        dense[rows, at] = flat
        return dense

    return Completions(
        tokens=spread(tensors["tokens"], shape["pad"]),
        lengths=lengths,
        log_probs=spread(tensors["log_probs"]),
        source=spread(tensors["source"]),
        stop=tuple(_STOPS[index] for index in tensors["stop"].tolist()),
        hidden=spread(tensors["hidden"]) if "hidden" in tensors else None,
    )
