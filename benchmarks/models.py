"""Random models of a given size, their tokenizer and prompts, the same for both sides.

One channel of the residual stream is held constant: every embedding has the same number there and
no block writes to it. The head's row of the stop token reads it, so that a row stops with the
chance that a benchmark asks for at every position, on either side and from the weights alone; 0
makes every row run to its limit.
"""

import copy
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from fractionate.models.load import LanguageModel, load_model, wrap
from fractionate.rng import borrow_global, stream
from fractionate.study.dimensions import PUBLISHED, Dimensions, dimensions_of

PAD, BOS, EOS = 0, 1, 2
SMOLLM2 = Path("models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
_SPECIAL = ("<pad>", "<bos>", "<eos>")
_NEVER = -40.0
_CONSTANT = 0.5


@dataclass(frozen=True)
class Sizes:
    """The models of a benchmark and the work of one step.

    Attributes:
        student: Sizes of the student.
        teacher: Sizes of the teacher.
        rows: Prompts, and completions, of a step.
        new_tokens: Tokens of a completion.
        prompt: Shortest and longest prompt, in tokens.
    """

    student: Dimensions
    teacher: Dimensions
    rows: int = 32
    new_tokens: int = 96
    prompt: tuple[int, int] = (16, 32)


def _llama(
    hidden: int, layers: int, heads: int, kv_heads: int, wide: int, vocab: int
) -> Dimensions:
    return Dimensions(hidden, layers, heads, kv_heads, hidden // heads, wide, vocab, tied=False)


STUDENT = _llama(128, 4, 4, 2, 512, 256)
TEACHER = _llama(256, 6, 8, 4, 1024, 256)
MIDDLE = _llama(256, 4, 8, 4, 1024, 49152)
TINY = _llama(32, 2, 4, 2, 64, 64)

SMALL = Sizes(STUDENT, TEACHER)
WIDE = Sizes(MIDDLE, MIDDLE, rows=8)
PAPER = Sizes(
    PUBLISHED["meta-llama/Llama-3.2-1B"],
    PUBLISHED["meta-llama/Llama-3.1-8B"],
    rows=8,
    new_tokens=512,
    prompt=(96, 128),
)
QUICK = Sizes(TINY, replace(TINY, hidden=64, head_dim=16), rows=2, new_tokens=4, prompt=(3, 5))


def tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Whole numbers as words; every id has one."""
    words = {word: i for i, word in enumerate(_SPECIAL)}
    words |= {str(i): i for i in range(len(_SPECIAL), vocabulary)}
    core = Tokenizer(WordLevel(words, unk_token="<pad>"))
    core.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        padding_side="left",
        model_max_length=8192,
        chat_template="{% for m in messages %}{{ m['content'] }} {% endfor %}",
    )


def random_model(
    sizes: Dimensions,
    *,
    seed: int,
    stop: float = 0.0,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    words: PreTrainedTokenizerFast | None = None,
) -> LanguageModel:
    """A Llama with random weights.

    Args:
        sizes: Of the model.
        seed: Of its weights.
        stop: Chance that a completion stops at a token; 0 is never.
        dtype: Of its weights.
        device: Where they are.
        words: Its tokenizer, if one is there already.
    """
    config = LlamaConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        intermediate_size=sizes.intermediate,
        max_position_embeddings=4096,
        tie_word_embeddings=sizes.tied,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    with borrow_global(seed, "benchmark model"), torch.device(device):
        module = LlamaForCausalLM(config).eval()
    module.generation_config = GenerationConfig(
        bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD
    )
    _set_stop(module, stop)
    cast(torch.nn.Module, module).to(dtype)
    return wrap(module, words or tokenizer(sizes.vocabulary))


@torch.no_grad()
def _set_stop(module: LlamaForCausalLM, chance: float) -> None:
    """Hold channel 0 constant and let the stop token's logit be a multiple of it."""
    module.model.embed_tokens.weight[:, 0] = _CONSTANT
    block: Any
    for block in module.model.layers:
        block.self_attn.o_proj.weight[0] = 0
        block.mlp.down_proj.weight[0] = 0
    head = module.lm_head.weight
    if not module.config.tie_word_embeddings:
        head[:, 0] = 0
    common = float(head[EOS, 0])
    head[EOS] = 0
    ids = torch.tensor([prompt_ids(64, module.config.vocab_size, 0)], device=head.device)
    hidden = module.model(input_ids=ids).last_hidden_state[0]
    logits = hidden @ head.T
    logits[:, EOS] = -torch.inf
    channel = float(hidden[:, 0].mean())
    others = float(logits.logsumexp(-1).mean())
    wanted = others + math.log(chance / (1 - chance)) if chance else common * channel + _NEVER
    head[EOS, 0] = wanted / channel


def pair(sizes: Sizes, *, device: str = "cpu") -> tuple[LanguageModel, LanguageModel]:
    """A student and a teacher that share a tokenizer; rows run to their limit."""
    words = tokenizer(sizes.student.vocabulary)
    student = random_model(sizes.student, seed=1, device=device, words=words)
    teacher = random_model(sizes.teacher, seed=2, device=device, words=words)
    teacher.module.requires_grad_(requires_grad=False)
    return student, teacher


def prompts(sizes: Sizes, steps: int = 1) -> list[tuple[int, ...]]:
    """Prompts of some steps; their lengths are the same in every step."""
    shortest, longest = sizes.prompt
    span = longest - shortest + 1
    lengths = [shortest + i % span for i in range(sizes.rows)] * steps
    vocabulary = sizes.student.vocabulary
    return [tuple(prompt_ids(n, vocabulary, i)) for i, n in enumerate(lengths)]


def prompt_ids(length: int, vocabulary: int, number: int) -> list[int]:
    """Ids of a random prompt without special tokens, beginning with bos."""
    words = stream(0, "prompt", number).integers(len(_SPECIAL), vocabulary, size=length - 1)
    return [BOS, *(int(i) for i in words)]


def smollm2() -> LanguageModel | None:
    """SmolLM2-135M, if `make real` has fetched it; its stop token is one that it never writes."""
    if not SMOLLM2.exists():
        return None
    model = load_model(SMOLLM2)
    unused = model.tokenizer.convert_tokens_to_ids("<empty_output>")
    assert isinstance(unused, int)
    model.tokenizer.eos_token = "<empty_output>"
    for settings in (model.module.config, model.module.generation_config):
        settings.eos_token_id = unused
    return replace(model, stop_ids=(unused,), end_id=unused)


def like_a_step(model: LanguageModel) -> None:
    """Write to every weight without changing it, as an optimizer does: what is cached is stale."""
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.mul_(1.0)


def smollm2_sizes() -> Sizes:
    """A step of 8 prompts and 64 tokens with SmolLM2 on both sides."""
    sizes = dimensions_of(str(SMOLLM2))
    assert sizes is not None
    return Sizes(sizes, sizes, rows=8, new_tokens=64)


def copied(model: LanguageModel) -> LanguageModel:
    """The same model with weights of its own."""
    return replace(model, module=copy.deepcopy(model.module).requires_grad_(requires_grad=True))


def scaled(sizes: Sizes, field: str, value: int) -> Sizes:
    """The same step with another number of rows or new tokens, or another vocabulary."""
    if field != "vocabulary":
        return replace(sizes, **{field: value})
    student = replace(sizes.student, vocabulary=value)
    return replace(sizes, student=student, teacher=replace(sizes.teacher, vocabulary=value))
