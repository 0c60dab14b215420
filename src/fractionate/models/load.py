"""Loading and saving models: a hub id, a local Hugging Face folder or a `.gguf` file."""

import contextlib
import dataclasses
import importlib.util
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from fractionate.models.hidden import check_linear_head, head_weight
from fractionate.models.prompts import terminator

DTYPES: Final[dict[str, torch.dtype]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
_UNREADABLE = (
    OSError,
    ValueError,
    RuntimeError,
    LookupError,
    ImportError,
    TypeError,
    EOFError,
    struct.error,
)
"""What the libraries raise on files that are not what they seem."""
_SECRET = re.compile(r"hf_[A-Za-z0-9]+")
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


class ModelLoadError(ValueError):
    """A model or tokenizer that cannot be used; the message names the path and the mend."""


@dataclass(frozen=True)
class LanguageModel:
    """A causal language model with what sampling and scoring need to know of it.

    Attributes:
        module: The Hugging Face model, in eval mode.
        tokenizer: Its tokenizer.
        stop_ids: Every token that ends a completion: the union of the terminators that the
            generation config, the model config, the tokenizer and the chat template name.
        end_id: The token that ends an answer written for this model: the chat template's
            terminator, else the tokenizer's.
        pad_id: A token for padding; masks come from lengths, so it may equal a stop token.
        vocab_size: Effective vocabulary: logits beyond it are cut off before any softmax.
        source: Where it was loaded from.
        kernel: What decodes with it, and computes the parts of its layers when it scores: torch,
            or the native kernel of `models.native`; "compiled" decodes by torch and scores by the
            module's own forward pass, compiled.
    """

    module: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    stop_ids: tuple[int, ...]
    end_id: int
    pad_id: int
    vocab_size: int
    source: str
    kernel: Literal["torch", "native", "compiled"] = "torch"

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.module.device


def load_model(
    source: str | Path,
    *,
    dtype: str = "float32",
    revision: str | None = None,
    device: str = "cpu",
    tokenizer: PreTrainedTokenizerBase | None = None,
    kernel: Literal["torch", "native", "compiled"] = "torch",
) -> LanguageModel:
    """Load a causal language model and its tokenizer.

    Args:
        source: Hub id, local folder or `.gguf` file (dequantised to `dtype`).
        dtype: Of the weights: "float32", "bfloat16" or "float64".
        revision: Commit or tag on the hub.
        device: Torch device.
        tokenizer: Takes the place of the source's own tokenizer.
        kernel: What decodes and scores with it.

    Raises:
        ModelLoadError: The source is missing or unreadable, lacks weights, or does not fit its
            tokenizer.
    """
    if dtype not in DTYPES:
        raise ModelLoadError(f"dtype '{dtype}' is unknown. Use one of {', '.join(DTYPES)}")
    where = _arguments(source, revision)
    if "gguf_file" in where:  # never leave the weights packed: they are trained and compared
        where["quantization_config"] = GgufConfig(dequantize=True)
    tokenizer = tokenizer if tokenizer is not None else load_tokenizer(source, revision)
    with _explained(source), _no_progress_bars():
        load: Any = AutoModelForCausalLM.from_pretrained
        loaded, info = load(
            **where, dtype=DTYPES[dtype], attn_implementation="sdpa", output_loading_info=True
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelLoadError(
            f"{source}: the weights lack {len(missing)} tensors, first '{missing[0]}'. "
            "Fetch or save the checkpoint again"
        )
    module: PreTrainedModel = loaded.to(device).eval()
    quantizer: Any = getattr(module, "hf_quantizer", None)
    if quantizer is not None:  # of a GGUF file: dequantised by now, a plain model from here on
        quantizer.remove_quantization_config(module)
    return dataclasses.replace(wrap(module, tokenizer, source=str(source)), kernel=kernel)


def wrap(
    module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, source: str = "memory"
) -> LanguageModel:
    """A LanguageModel of a module and a tokenizer that are already in memory.

    Raises:
        ModelLoadError: The tokenizer knows ids that the model has no row for, nothing ends a
            completion, or the model's logits are not hidden states times a matrix.
    """
    try:
        rows = head_weight(module).shape[0]
        check_linear_head(module)
    except ValueError as error:
        raise ModelLoadError(f"{source}: {error}") from None
    if len(tokenizer) > rows:
        raise ModelLoadError(
            f"{source}: the tokenizer has {len(tokenizer)} ids, but the model only {rows} rows in "
            "its vocabulary. Use the tokenizer that the model was trained with"
        )
    end = terminator(tokenizer)
    stop_ids = _stop_ids(module, tokenizer, end)
    if not stop_ids:
        raise ModelLoadError(
            f"{source}: no token ends a completion. Set eos_token_id in generation_config.json"
        )
    pad = _as_ids(tokenizer.pad_token_id)
    return LanguageModel(
        module=module,
        tokenizer=tokenizer,
        stop_ids=stop_ids,
        end_id=end if end is not None else stop_ids[0],
        pad_id=pad[0] if pad else stop_ids[0],
        vocab_size=len(tokenizer),
        source=source,
    )


def load_tokenizer(source: str | Path, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a hub id, a local folder or a `.gguf` file.

    Raises:
        ModelLoadError: The source is missing or holds no usable tokenizer.
    """
    where = _arguments(source, revision)
    with _explained(source), _no_progress_bars():
        return AutoTokenizer.from_pretrained(**where)


def save_model(
    module: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    *,
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a standard Hugging Face folder: config, safetensors, tokenizer, chat template.

    Args:
        module: The model; its weights are written unless `state` is given.
        tokenizer: Its tokenizer.
        folder: Made if it does not exist.
        state: Weights to write in place of the module's own, by parameter name.
    """
    with _no_progress_bars():
        module.save_pretrained(folder, state_dict=dict(state) if state is not None else None)
        tokenizer.save_pretrained(folder)


def _arguments(source: str | Path, revision: str | None) -> dict[str, Any]:
    """The arguments by which transformers finds a source; local ones are checked first."""
    path = Path(source).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelLoadError(f"{source}: no such file. Check the path of the .gguf file")
        if importlib.util.find_spec("gguf") is None:
            raise ModelLoadError(
                f"{source}: reading .gguf files needs the package 'gguf': pip install gguf"
            )
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelLoadError(
                f"{source}: the folder has no config.json. Point to a folder written by "
                "save_pretrained, or to a .gguf file"
            )
        return {"pretrained_model_name_or_path": str(path)}
    if path.exists() or not _HUB_ID.fullmatch(str(source)):
        raise ModelLoadError(
            f"{source}: no such folder. Give a folder written by save_pretrained, a .gguf file "
            "or a hub id"
        )
    return {"pretrained_model_name_or_path": str(source), "revision": revision or "main"}


@contextlib.contextmanager
def _explained(source: str | Path) -> Iterator[None]:
    """Turn what the libraries raise on a bad source into one sentence with a mend."""
    local = Path(source).expanduser().exists()
    try:
        yield
    except SafetensorError as error:
        raise ModelLoadError(
            f"{source}: a safetensors file is corrupt or cut short ({error}). Fetch or save the "
            "checkpoint again"
        ) from None
    except _UNREADABLE as error:
        reason = _SECRET.sub("hf_...", (str(error).strip() or type(error).__name__).split("\n")[0])
        mend = (
            "Check that the folder or file is complete and of a known architecture"
            if local
            else "It is no local folder, and the hub did not serve it: check the name, the "
            "connection or the offline cache (HF_HOME), and for a gated model the login"
        )
        raise ModelLoadError(f"{source}: cannot be loaded ({reason}). {mend}") from None


@contextlib.contextmanager
def _no_progress_bars() -> Iterator[None]:
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _as_ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(item) for item in value] if isinstance(value, list) else [int(value)]


def _stop_ids(
    module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, end: int | None
) -> tuple[int, ...]:
    generation = module.generation_config.eos_token_id if module.generation_config else None
    named = [generation, module.config.eos_token_id, tokenizer.eos_token_id, end]
    return tuple(sorted({index for value in named for index in _as_ids(value)}))
