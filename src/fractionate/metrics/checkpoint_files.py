"""Tensors of checkpoints on disk, read block by block: safetensors files, shards, LoRA adapters."""

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

BLOCK = 1 << 22
"""Elements of each checkpoint held at a time: 16 MiB in float32."""

ADAPTER = "adapter_config.json"
_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"


class CheckpointError(ValueError):
    """A checkpoint that cannot be compared; the message names the file and the mend."""


class Tensors(Protocol):
    """What a comparison needs of a checkpoint."""

    @property
    def path(self) -> Path:
        """Where it is."""
        ...

    @property
    def ties_head(self) -> bool:
        """Whether its head is its embedding."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors, in order."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        ...

    def blocks(self, name: str) -> Iterator[Tensor]:
        """A tensor in blocks of rows, at most `BLOCK` elements or one row each."""
        ...


@final
class Checkpoint:
    """The tensors of a safetensors file, or of a model folder with one or several of them.

    Raises:
        CheckpointError: There is none, or a file is unreadable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stack = contextlib.ExitStack()
        self._files: dict[str, Any] = {}
        for file in _files_of(path):
            try:
                handle = self._stack.enter_context(safe_open(file, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise CheckpointError(
                    f"{file} cannot be read ({error}). Fetch or save the checkpoint again"
                ) from None
            self._files |= dict.fromkeys(handle.keys(), handle)
        self.ties_head = _ties_head(path)

    def close(self) -> None:
        """Close all files."""
        self._stack.close()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors, in order."""
        return tuple(sorted(self._files))

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return tuple(self._files[name].get_slice(name).get_shape())

    def whole(self, name: str) -> Tensor:
        """A small tensor at once.

        Raises:
            CheckpointError: There is none of that name.
        """
        if name not in self._files:
            raise CheckpointError(f"{self.path} lacks '{name}'. Save the adapter again")
        return self._files[name].get_tensor(name)

    def blocks(self, name: str) -> Iterator[Tensor]:
        """A tensor in blocks of rows, at most `BLOCK` elements or one row each."""
        shape = self.shape(name)
        if len(shape) == 0:
            yield self._files[name].get_tensor(name).reshape(1)
            return
        row = max(1, torch.Size(shape[1:]).numel())
        step = max(1, BLOCK // row)
        part = self._files[name].get_slice(name)
        for start in range(0, shape[0], step):
            yield part[start : start + step]


@final
class MergedAdapter:
    """A LoRA adapter of PEFT merged into its base, W + scale B A, a block at a time.

    The product is taken in float32 and rounded to the adapter's dtype, the sum to `dtype`: what
    `merge_and_unload` gives. Modules that the adapter trained in full replace the base's.

    Raises:
        CheckpointError: The adapter is of another kind, or does not fit the base.
    """

    def __init__(self, path: Path, base: Checkpoint, dtype: torch.dtype | None) -> None:
        """Open the adapter.

        Args:
            path: Folder written by PEFT.
            base: What it was trained on; stays open as long as this is used.
            dtype: Of the merged weights; none takes the base's.
        """
        self.path = path
        self._base, self._dtype = base, dtype
        self._config = _json(path / ADAPTER)
        _check_adapter(path, self._config)
        self._adapter = Checkpoint(path)
        self.ties_head = base.ties_head
        self._whole, self._factors = self._read_names()

    def close(self) -> None:
        """Close the adapter's files."""
        self._adapter.close()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the base."""
        return self._base.names

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self._base.shape(name)

    def blocks(self, name: str) -> Iterator[Tensor]:
        """A merged tensor in blocks of rows."""
        if name in self._whole:
            yield from self._adapter.blocks(self._whole[name])
            return
        if name not in self._factors:
            for block in self._base.blocks(name):
                yield block if self._dtype is None else block.to(self._dtype)
            return
        module = self._factors[name]
        a, b = (self._adapter.whole(module + part) for part in (_A, _B))
        scale, start = self._scale(module, a.shape[0]), 0
        for block in self._base.blocks(name):
            rows = b[start : start + block.shape[0]]
            start += block.shape[0]
            delta = (scale * (rows.float() @ a.float())).to(a.dtype)
            merged = (block.to(self._dtype) if self._dtype is not None else block) + delta
            yield merged.to(self._dtype or block.dtype)

    def _read_names(self) -> tuple[dict[str, str], dict[str, str]]:
        """Base tensors that the adapter replaces, and modules whose factors it has, by tensor."""
        whole: dict[str, str] = {}
        factors: dict[str, str] = {}
        for stored in self._adapter.names:
            if stored.endswith(_B):
                continue
            module = stored.removesuffix(_A)
            name = module.removeprefix(_PREFIX) + (".weight" if module != stored else "")
            if name not in self._base.names:
                raise CheckpointError(
                    f"{self.path} adapts '{name}', which {self._base.path} does not have. Compare "
                    "it with the base it was trained on"
                )
            if module == stored:
                whole[name] = stored
            else:
                factors[name] = module
        return whole, factors

    def _scale(self, module: str, rank: int) -> float:
        name = module.removeprefix(_PREFIX)
        alpha = _patterned(self._config.get("alpha_pattern"), name, self._config["lora_alpha"])
        return alpha / (math.sqrt(rank) if self._config.get("use_rslora") else rank)


def _patterned(pattern: Mapping[str, Any] | None, name: str, default: float) -> float:
    """A setting of a module: that of the first pattern that its name ends with, as PEFT matches."""
    found = [v for key, v in (pattern or {}).items() if re.match(rf"(.*\.)?({key})$", name)]
    return float(found[0] if found else default)


def _check_adapter(path: Path, config: Mapping[str, Any]) -> None:
    kind = str(config.get("peft_type"))
    odd = [field for field in ("use_dora", "fan_in_fan_out") if config.get(field)]
    if kind != "LORA" or odd or config.get("bias", "none") != "none":
        what = ", ".join([*odd, *([] if kind == "LORA" else [kind])]) or "trained biases"
        raise CheckpointError(
            f"{path} is an adapter with {what}, which is not merged here. Merge it with PEFT's "
            "merge_and_unload, save the model, and compare that"
        )


@contextlib.contextmanager
def open_checkpoint(
    path: Path, *, base: Checkpoint | None = None, merge_dtype: torch.dtype | None = None
) -> Iterator[Tensors]:
    """Open a checkpoint, or an adapter merged into its base.

    Args:
        path: Model folder, safetensors file or PEFT folder.
        base: Needed for an adapter.
        merge_dtype: Of the merged weights; none takes the base's.

    Raises:
        CheckpointError: It is unreadable, or an adapter without a base.
    """
    if not (path / ADAPTER).is_file():
        with contextlib.closing(Checkpoint(path)) as whole:
            yield whole
    elif base is None:
        raise CheckpointError(
            f"{path} is a LoRA adapter, not a whole model. Name its base first, and the adapter as "
            "the trained side"
        )
    else:
        with contextlib.closing(MergedAdapter(path, base, merge_dtype)) as merged:
            yield merged


def _files_of(path: Path) -> list[Path]:
    if path.is_file() and path.suffix == ".safetensors":
        return [path]
    if path.is_file() and path.suffix in (".bin", ".pt", ".pth"):
        raise CheckpointError(
            f"{path} is a format that can run code when opened. Load the model with "
            "from_pretrained, save it with save_pretrained, and name that folder"
        )
    if not path.is_dir():
        raise CheckpointError(
            f"{path} is no checkpoint. Name a model folder with safetensors files, or such a file"
        )
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        files = sorted(path.glob("*.safetensors"))
        if not files:
            pickled = sorted(file.name for file in path.glob("*.bin"))
            found = f" but {pickled[0]}, a format that can run code when opened" if pickled else ""
            raise CheckpointError(
                f"{path} holds no safetensors file{found}. Load the model with from_pretrained and "
                "save it with save_pretrained, or fetch the safetensors files"
            )
        return files
    names = set(_json(index).get("weight_map", {}).values())
    missing = sorted(name for name in names if not (path / name).is_file())
    if missing or not names:
        raise CheckpointError(
            f"{index} names {', '.join(missing) or 'no file'}, which is not there. Fetch the "
            "checkpoint again"
        )
    return sorted(path / name for name in names)


def _ties_head(path: Path) -> bool:
    config = (path if path.is_dir() else path.parent) / "config.json"
    return config.is_file() and bool(_json(config).get("tie_word_embeddings", False))


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}). Fetch it again") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is no JSON object. Fetch it again")
    return found
