"""Tiny random models of several architectures, with laws far from uniform."""

from collections.abc import Callable

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from fractionate.models.load import LanguageModel, wrap
from fractionate.rng import borrow_global
from tiny import llama, tokenizer

SPREAD = 0.3  # initializer range: far from uniform laws, so that greedy choices are clear
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def _qwen2() -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=SPREAD,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    with borrow_global(5, "qwen2"):
        module = Qwen2ForCausalLM(config)
        for layer in module.model.layers:
            for part in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
                torch.nn.init.normal_(part.bias, std=0.5)
    return module


def _gpt2() -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=32,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=128,
        initializer_range=SPREAD,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    with borrow_global(6, "gpt2"):
        return GPT2LMHeadModel(config)


MODULES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: llama(3, initializer_range=SPREAD),
    "llama3-rope": lambda: llama(4, initializer_range=SPREAD, rope_parameters=LLAMA3_ROPE),
    "qwen2": _qwen2,
    "gpt2": _gpt2,
}


@pytest.fixture(params=sorted(MODULES))
def any_model(request: pytest.FixtureRequest) -> LanguageModel:
    """A float64 model of each architecture in turn."""
    return wrap(MODULES[request.param]().double().eval(), tokenizer())


@pytest.fixture(scope="module")
def student() -> LanguageModel:
    return wrap(llama(1, initializer_range=SPREAD).double(), tokenizer())


@pytest.fixture(scope="module")
def teacher() -> LanguageModel:
    return wrap(llama(2, width=64, initializer_range=0.2).double(), tokenizer())
