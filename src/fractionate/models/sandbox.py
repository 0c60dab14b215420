"""The tiny models of the sandbox and their tokenizers, as ordinary `transformers` folders.

There are two families: Llama, and a Qwen2 with other sizes, grouped queries, biases and the words
of the vocabulary in another order, written as a Llama with biases.
"""

import copy
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from fractionate.rng import borrow_global
from fractionate.tasks.sandbox.vocabulary import (
    BOS,
    BOS_ID,
    EOS,
    EOS_ID,
    ID,
    LARGEST,
    PAD,
    PAD_ID,
    QWEN_TOKENS,
    TOKENS,
)

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %} {{ message['content'] }}"
    "{% if message['role'] == 'assistant' %} {{ eos_token }}{% endif %}{% endfor %}"
)
NUMBER_PERIODS = (2, 3, 5, 7, 10, 12, 20, 30, 50, 90, 180, 360)
NUMBER_SCALE = 1.4
SHIPPED = Path(__file__).parent / "sandbox_checkpoints"
"""Where the trained checkpoints are that come with the package."""
CONTEXT = 512


Family = Literal["llama", "qwen"]
VOCABULARIES: Final[dict[Family, tuple[str, ...]]] = {"llama": TOKENS, "qwen": QWEN_TOKENS}
"""The words of each family's tokenizer in the order of their ids: the same words."""


@dataclass(frozen=True)
class Architecture:
    """Sizes of a sandbox model.

    Attributes:
        hidden: Width.
        layers: Number of layers.
        heads: Attention heads.
        feed_forward: Width of the gated feed-forward part.
        kv_heads: Heads of keys and values; none is as many as attention heads.
        family: Llama, or Qwen2 with its biases in q, k and v.
    """

    hidden: int
    layers: int
    heads: int
    feed_forward: int
    kv_heads: int | None = None
    family: Family = "llama"


TEACHER = Architecture(hidden=128, layers=3, heads=4, feed_forward=344)
STUDENT = Architecture(hidden=64, layers=3, heads=4, feed_forward=192)
QWEN_TEACHER = Architecture(
    hidden=144, layers=3, heads=6, feed_forward=368, kv_heads=3, family="qwen"
)
QWEN_STUDENT = Architecture(
    hidden=80, layers=3, heads=4, feed_forward=208, kv_heads=2, family="qwen"
)


def config(architecture: Architecture) -> LlamaConfig | Qwen2Config:
    """The `transformers` configuration of a sandbox model (tied embeddings, float32)."""
    make = Qwen2Config if architecture.family == "qwen" else LlamaConfig
    return make(
        vocab_size=len(TOKENS),
        hidden_size=architecture.hidden,
        num_hidden_layers=architecture.layers,
        num_attention_heads=architecture.heads,
        num_key_value_heads=architecture.kv_heads or architecture.heads,
        intermediate_size=architecture.feed_forward,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
        dtype=torch.float32,
    )


def new_model(architecture: Architecture, seed: int) -> LlamaForCausalLM | Qwen2ForCausalLM:
    """A freshly initialised model, a function of the architecture and the seed alone.

    Its ids are those of `TOKENS` whatever the family; `save` puts them into the family's order.
    """
    settings = config(architecture)
    with borrow_global(seed, "sandbox model"):
        model = (
            Qwen2ForCausalLM(settings)
            if isinstance(settings, Qwen2Config)
            else LlamaForCausalLM(settings)
        )
    _initialise_numbers(model.model.embed_tokens.weight)
    generation = GenerationConfig(bos_token_id=BOS_ID, eos_token_id=EOS_ID, pad_token_id=PAD_ID)
    model.generation_config = generation
    return model


@torch.no_grad()
def _initialise_numbers(embedding: torch.Tensor) -> None:
    """Number n starts as cos and sin of 2 pi n / P for twelve periods P, in the first 24 places."""
    scale = NUMBER_SCALE / math.sqrt(embedding.shape[1])
    numbers = torch.arange(LARGEST + 1, dtype=torch.float64)[:, None]
    angles = 2 * math.pi * numbers / torch.tensor(NUMBER_PERIODS, dtype=torch.float64)
    waves = torch.stack([angles.cos(), angles.sin()], dim=-1).flatten(1)
    embedding[: LARGEST + 1, : waves.shape[1]] = (scale * waves).to(embedding.dtype)


def tokenizer(family: Family = "llama") -> PreTrainedTokenizerFast:
    """The tokenizer of a family: one token per word, words separated by white space.

    The chat template writes the beginning-of-sequence token and the contents of the messages; an
    assistant's message ends with the end-of-sequence token. A word outside the vocabulary raises.
    """
    tokens = VOCABULARIES[family]
    words = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
        chat_template=CHAT_TEMPLATE,
    )


def save(model: PreTrainedModel, folder: Path) -> None:
    """Write a model whose ids are those of `TOKENS`, and its tokenizer, for `from_pretrained`."""
    family: Family = "qwen" if model.config.model_type == "qwen2" else "llama"
    tokens = VOCABULARIES[family]
    if family == "qwen":
        model = _as_llama(_relabelled(model, tokens))
    model.save_pretrained(folder)
    save_tokenizer(folder, family)


@torch.no_grad()
def _relabelled(model: PreTrainedModel, tokens: tuple[str, ...]) -> PreTrainedModel:
    """A copy with the vocabulary in another order: an embedding is a set of rows."""
    model = copy.deepcopy(model)
    embedding = model.get_parameter("model.embed_tokens.weight")
    embedding.copy_(embedding[[ID[token] for token in tokens]])
    for name, token in {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}.items():
        setattr(model.config, name, tokens.index(token))
        setattr(model.generation_config, name, tokens.index(token))
    return model


@torch.no_grad()
def _as_llama(model: PreTrainedModel) -> LlamaForCausalLM:
    """A Qwen2 as a Llama with biases, whose output projections have zero ones: the same function.

    transformers gives every folder of type qwen2 the byte-level tokenizer of Qwen2, whatever the
    folder says; a Llama keeps its own.
    """
    settings = model.config.to_dict()
    kept = {name: settings[name] for name in LlamaConfig().to_dict() if name in settings}
    wide = LlamaConfig(**{**kept, "model_type": "llama", "attention_bias": True})
    with borrow_global(0, "sandbox model"):
        llama = LlamaForCausalLM(wide)
    for name, parameter in llama.named_parameters():
        parameter.zero_() if name.endswith("o_proj.bias") else parameter.copy_(
            model.get_parameter(name)
        )
    llama.generation_config = model.generation_config
    return llama


def save_tokenizer(folder: Path, family: Family = "llama") -> None:
    """Write the tokenizer's files into a model's folder."""
    tokenizer(family).save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    # The name that transformers 4 and 5 both know; 5 writes one that only it can load.
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(settings, indent=2) + "\n")


def shipped_folder(name: str, seed: int) -> Path:
    """The folder of a checkpoint that comes with the package, e.g. `components`, 0.

    Raises:
        ValueError: There is none of this name and seed.
    """
    folder = SHIPPED / f"{name}-{seed}"
    if not (folder / "config.json").exists():
        found = sorted(path.parent.name for path in SHIPPED.glob("*/config.json"))
        message = f"no checkpoint {folder.name!r} comes with the package; there are "
        raise ValueError(message + (", ".join(found) or "none") + ": build it or choose another")
    return folder
