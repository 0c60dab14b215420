"""Stand-ins for public models: the same classes and tokenizer interface, random weights, tiny.

They show whether a study runs, and nothing else. Student and teacher of a family share a tokenizer
whose pieces are learnt from the text below; bytes are its alphabet, so that any text has tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from fractionate.models.load import save_model
from fractionate.rng import borrow_global

Family = Literal["llama", "qwen2"]
_PIECES: Final = 384
_CONTEXT: Final = 32_768
_TEXT: Final = (
    "You are a careful solver of questions. You think before you answer. Answer the question below "
    "by choosing the one right option out of four. Write your reasoning inside the think tags. "
    "Then write the letter of the option inside the answer tags: the letter only. "
    "Example of the form: <think>your reasoning</think><answer>B</answer> Question: Options: "
    "Reach the target from the numbers with + - * /. Use each number exactly once. The numbers are "
    "given as a list and the target as a value. Reason step by step, and put the final answer of "
    "the problem in a box. Solve the problem. Try: that is the target. Write the equations."
)

_LLAMA_TEMPLATE: Final = (
    "{{ bos_token }}<|start_header_id|>system<|end_header_id|>\n\n"
    "Today Date: {{ date_string or '26 Jul 2024' }}\n\n"
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] | trim }}{% endif %}"
    "<|eot_id|>{% for message in messages %}{% if not (loop.first and message['role'] == 'system') "
    "%}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] | trim }}<|eot_id|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_QWEN_TEMPLATE: Final = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant."
    "<|im_end|>\n{% endif %}{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class _Speech:
    """How a family's tokenizer behaves.

    Attributes:
        special: Its special tokens.
        roles: Which of them is which for `transformers`; Llama has no padding token.
        stops: Those that end a completion, in the order of the generation config.
        template: A chat template of the family's form.
    """

    special: tuple[str, ...]
    roles: Mapping[str, str]
    stops: tuple[str, ...]
    template: str


_SPEECH: Final[Mapping[Family, _Speech]] = {
    "llama": _Speech(
        special=(
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eom_id|>",
            "<|eot_id|>",
        ),
        roles={"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        stops=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        template=_LLAMA_TEMPLATE,
    ),
    "qwen2": _Speech(
        special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        roles={"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        stops=("<|im_end|>", "<|endoftext|>"),
        template=_QWEN_TEMPLATE,
    ),
}


def write_miniature(folder: Path, family: Family, *, tied: bool, wide: bool, seed: int = 0) -> None:
    """Write a model folder with random weights, a function of the arguments alone.

    Args:
        folder: Where.
        family: Llama with grouped queries and Llama 3's rotary positions, or Qwen2 with biases and
            a row of logits beyond the tokenizer.
        tied: Whether embedding and head are one matrix.
        wide: Width 64 in place of 32, as a teacher is wider than its student.
        seed: Of the weights.
    """
    tokenizer = _tokenizer(family)
    config = _config(family, tokenizer, tied=tied, wide=wide)
    ids = tokenizer.convert_tokens_to_ids(list(_SPEECH[family].stops))
    with borrow_global(seed, "miniature"):
        model: PreTrainedModel = (
            Qwen2ForCausalLM(config)
            if isinstance(config, Qwen2Config)
            else LlamaForCausalLM(config)
        )
    model.generation_config = GenerationConfig(
        eos_token_id=ids, bos_token_id=tokenizer.bos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    save_model(model, tokenizer, folder)


def _config(
    family: Family, tokenizer: PreTrainedTokenizerFast, *, tied: bool, wide: bool
) -> LlamaConfig | Qwen2Config:
    tokens, hidden = len(tokenizer), 64 if wide else 32
    sizes: dict[str, Any] = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": _CONTEXT,
        "tie_word_embeddings": tied,
        "dtype": torch.bfloat16,
    }
    if family == "qwen2":
        return Qwen2Config(vocab_size=tokens + 1, **sizes)
    positions = {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": _CONTEXT // 8,
    }
    return LlamaConfig(vocab_size=tokens, rope_parameters=positions, **sizes)


def _tokenizer(family: Family) -> PreTrainedTokenizerFast:
    speech = _SPEECH[family]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_PIECES,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator([_TEXT], trainer)
    core.add_special_tokens(list(speech.special))
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        additional_special_tokens=[s for s in speech.special if s not in speech.roles.values()],
        clean_up_tokenization_spaces=False,
        model_max_length=_CONTEXT,
        chat_template=speech.template,
        **speech.roles,
    )
