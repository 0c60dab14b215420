"""Sizes of a decoder-only model, read from its configuration without loading it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from fractionate.study.gguf_header import GgufHeader, read_gguf_header

_SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
)
_OPTIONAL = ("num_key_value_heads", "head_dim")
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")


@dataclass(frozen=True)
class Dimensions:
    """A Llama-like decoder: grouped-query attention and a gated feed-forward block.

    Attributes:
        hidden: Width of the residual stream.
        layers: Number of blocks.
        heads: Query heads.
        kv_heads: Key and value heads.
        head_dim: Width of a head.
        intermediate: Width of the feed-forward block.
        vocabulary: Rows of the head.
        tied: Whether embedding and head are one matrix.
        qkv_bias: Whether query, key and value projections have a bias.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    qkv_bias: bool = False

    @property
    def head_parameters(self) -> int:
        """Parameters of the head: vocabulary times hidden."""
        return self.vocabulary * self.hidden

    @property
    def block_parameters(self) -> int:
        """Parameters of all blocks and the final norm."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * queries + 2 * keys)
        bias = queries + 2 * keys if self.qkv_bias else 0
        block = attention + bias + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.layers * block + self.hidden

    @property
    def parameters(self) -> int:
        """All parameters, tied ones once."""
        return self.block_parameters + self.head_parameters * (1 if self.tied else 2)

    @property
    def cache_per_token(self) -> int:
        """Numbers in the key-value cache for one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim


PUBLISHED: Mapping[str, Dimensions] = {
    "meta-llama/Llama-3.2-1B": Dimensions(2048, 16, 32, 8, 64, 8192, 128256, tied=True),
    "meta-llama/Llama-3.1-8B": Dimensions(4096, 32, 32, 8, 128, 14336, 128256, tied=False),
    "Qwen/Qwen2.5-1.5B": Dimensions(1536, 28, 12, 2, 128, 8960, 151936, tied=True, qkv_bias=True),
    "Qwen/Qwen2.5-3B": Dimensions(2048, 36, 16, 2, 128, 11008, 151936, tied=True, qkv_bias=True),
    "Qwen/Qwen2.5-Math-1.5B": Dimensions(
        1536, 28, 12, 2, 128, 8960, 151936, tied=True, qkv_bias=True
    ),
    "Qwen/Qwen2.5-Math-7B": Dimensions(
        3584, 28, 28, 4, 128, 18944, 152064, tied=False, qkv_bias=True
    ),
    "Qwen/Qwen2.5-7B": Dimensions(3584, 28, 28, 4, 128, 18944, 152064, tied=False, qkv_bias=True),
}
"""Architecture numbers of the public models of the study, for planning without a hub."""


def dimensions_of(source: str) -> Dimensions | None:
    """Sizes of a model folder, a GGUF file or a published model; none where they cannot be told.

    Args:
        source: Model folder, .gguf file, or hub id (an `-Instruct` model has its base's sizes).

    Raises:
        ValueError: The configuration or the GGUF file cannot be read; names it.
    """
    path = Path(source)
    if path.is_dir():
        return read_dimensions(path / "config.json")
    if path.is_file():
        return _from_gguf(read_gguf_header(path))
    return PUBLISHED.get(source.removesuffix("-Instruct"))


def require_weights(source: str) -> None:
    """Refuse a model folder without any file of weights; files and hub ids pass.

    Raises:
        ValueError: The folder has none; names it.
    """
    folder = Path(source)
    if folder.is_dir() and not any(True for ending in _WEIGHTS for _ in folder.glob(ending)):
        raise ValueError(
            f"{folder} has a config.json but no weights (*.safetensors or *.bin). Save the model "
            "there with save_pretrained, or finish its download"
        )


def read_dimensions(path: Path) -> Dimensions | None:
    """Sizes from a Hugging Face `config.json`; none if it is no Llama-like configuration.

    Raises:
        ValueError: The file is missing, no JSON object, or gives an impossible size; names it.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as a model configuration ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(  # noqa: TRY004 - the file is wrong, whatever it holds
            f"{path} cannot be read as a model configuration (it is no JSON object)"
        )
    sizes = cast("dict[str, Any]", config)
    if not all(isinstance(sizes.get(name), int) for name in _SIZES):
        return None
    for name in (*_SIZES, *_OPTIONAL):
        size = sizes.get(name)
        if size is not None and (not isinstance(size, int) or size < 1):
            raise ValueError(f"{path}: {name} is {size!r}, which is no size of a model")
    return _from_config(sizes)


def _from_config(config: Mapping[str, Any]) -> Dimensions:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    return Dimensions(
        hidden=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        intermediate=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=config.get("model_type") == "qwen2" or bool(config.get("attention_bias", False)),
    )


def _from_gguf(header: GgufHeader) -> Dimensions | None:
    names = ("embedding_length", "block_count", "attention.head_count", "feed_forward_length")
    hidden, layers, heads, intermediate = (header.number(name) for name in names)
    vocabulary = header.lengths.get("tokenizer.ggml.tokens") or header.number("vocab_size")
    if not (hidden and layers and heads and intermediate and vocabulary):
        return None
    return Dimensions(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=header.number("attention.head_count_kv") or heads,
        head_dim=header.number("attention.key_length") or hidden // heads,
        intermediate=intermediate,
        vocabulary=vocabulary,
        tied="output.weight" not in header.tensors,
        qkv_bias="blk.0.attn_q.bias" in header.tensors,
    )
