"""Last hidden states of a Llama or Qwen2 model over rows of different lengths, without padding.

It computes what the transformers model computes, from the module's own parameters, forwards and
backwards: RMSNorm, rotary positions of the static kinds, grouped-query attention, gated
feed-forward, biases where there are any. Results differ from the module's own by rounding only.

Rows stand one behind the other, so every matrix product runs on tokens that exist; only attention
goes row by row. The last layer computes queries, and all that follows from them, only at positions
whose hidden state is asked for. Both passes walk over blocks of rows that stay in the processor's
cache, and a layer keeps seven tensors for its backward pass, or, with `checkpoint`, only its input.

Left out, and served by the module's own forward pass: other architectures, wrapped or hooked
layers, dropout, rotary kinds that depend on the length, sliding windows, devices other than CPUs.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import (
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2ForCausalLM,
)

from fractionate.models.arithmetic import is_plain_llama
from fractionate.models.layer import Block, Frame, Parameters, Row, run_layer
from fractionate.models.native.parts import NativeParts
from fractionate.models.parts import Parts, TorchParts, rms_norm

_ARCHITECTURES: Final = (LlamaForCausalLM, Qwen2ForCausalLM)
BLOCK_TOKENS: Final = 512
"""Tokens whose activations go through a layer together in float32, more in 16 bits; about what a
cache of 1 MiB holds."""


def runs_packed(module: PreTrainedModel) -> bool:
    """Whether `packed_hidden` computes what the module computes, in the module's present mode."""
    if type(module) not in _ARCHITECTURES or module.device.type != "cpu":
        return False
    config, body = module.config, cast(nn.Module, module.base_model)
    return (
        is_plain_llama(config)
        and not (module.training and config.attention_dropout)
        and all(_is_plain(part) for part in body.modules())
    )


def _is_plain(part: nn.Module) -> bool:
    """Whether a part is what its architecture made it: no adapter, no parametrisation, no hook."""
    ours = type(part).__module__.startswith(("torch.nn.", "transformers."))
    hooked = part._forward_hooks or part._forward_pre_hooks
    return ours and not hooked


def kept_per_token(config: PreTrainedConfig) -> int:
    """Numbers that the layers keep of a token for the backward pass, without `checkpoint`.

    Input, middle, queries, keys, values, attention, gate and up of every layer.
    """
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    layer = 2 * config.hidden_size + 2 * (heads + kv_heads) * head_dim
    return config.num_hidden_layers * (layer + 2 * config.intermediate_size)


# ---------------------------------------------------------------- which tokens


def blocks_of(lengths: Sequence[int], wanted: Sequence[int], size: int) -> list[Block]:
    """Cut rows into blocks of at most `size` tokens; a longer row stands alone.

    Padded to its longest row, which attention does, a block has at most twice as many.

    Args:
        lengths: Tokens of each row.
        wanted: How many of its last hidden states are asked for.
        size: Tokens of a block.
    """
    blocks: list[list[Row]] = []
    longest = 0
    for length, count in zip(lengths, wanted, strict=True):
        start = blocks[-1][-1].stop if blocks else 0
        longest = max(longest, length)
        padded = longest * (len(blocks[-1]) + 1) if blocks else 0
        if not blocks or start + length > size or padded > 2 * size:
            blocks.append([])
            start, longest = 0, length
        blocks[-1].append(Row(start, start + length, count))
    return [Block(tuple(rows)) for rows in blocks]


def packed_hidden(
    module: PreTrainedModel,
    texts: Sequence[Sequence[int]],
    wanted: Sequence[int],
    *,
    checkpoint: bool = False,
    kernel: Literal["torch", "native"] = "torch",
) -> Float[Tensor, "tokens hidden"]:
    """Hidden states after the final norm at the last `wanted` positions of every text.

    Args:
        module: A model for which `runs_packed` holds.
        texts: Token ids, at least one each.
        wanted: At least 1 and at most the length of its text, for every text.
        checkpoint: Keep only the input of each layer for the backward pass and compute the layer
            again there: the same gradients, bit for bit, for a third more operations.
        kernel: What computes norms, gates, positions and attention of a float32 model; other
            dtypes take torch.

    Raises:
        KernelError: The native kernel cannot be compiled here.
    """
    native = kernel == "native" and module.dtype == torch.float32
    parts = NativeParts() if native else TorchParts()
    size = BLOCK_TOKENS * 4 // module.dtype.itemsize
    blocks = blocks_of([len(text) for text in texts], wanted, size)
    ids = torch.tensor([index for text in texts for index in text])
    positions = torch.cat([torch.arange(len(text)) for text in texts])
    if torch.is_grad_enabled():
        return _run(module, ids, positions, blocks, parts, checkpoint=checkpoint)
    sizes = [block.tokens for block in blocks]
    pieces = zip(ids.split(sizes), positions.split(sizes), blocks, strict=True)
    return torch.cat(
        [_run(module, i, at, [block], parts, checkpoint=False) for i, at, block in pieces]
    )


def _run(
    module: PreTrainedModel,
    ids: Tensor,
    positions: Tensor,
    blocks: list[Block],
    parts: Parts,
    *,
    checkpoint: bool,
) -> Tensor:
    body: Any = module.base_model
    epsilon = float(module.config.rms_norm_eps)
    x = body.embed_tokens(ids)
    cos, sin = (table[0, :, None] for table in body.rotary_emb(x, positions[None]))
    for index, layer in enumerate(body.layers):
        last = index + 1 == len(body.layers)
        head_dim = layer.self_attn.head_dim
        frame = Frame(blocks, cos, sin, head_dim, epsilon, last, checkpoint, parts)
        x = run_layer(x, frame, _parameters(layer))
    return rms_norm(x, body.norm.weight, epsilon)


def _parameters(layer: Any) -> Parameters:
    attention, mlp = layer.self_attn, layer.mlp
    return Parameters(
        attention_norm=layer.input_layernorm.weight,
        mlp_norm=layer.post_attention_layernorm.weight,
        **{
            name: (getattr(part, f"{name}_proj").weight, getattr(part, f"{name}_proj").bias)
            for part, names in ((attention, "qkvo"), (mlp, ("gate", "up", "down")))
            for name in names
        },
    )
