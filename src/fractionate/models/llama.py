"""A lean inference forward for Llama and Qwen2 models, made for batched decoding.

It computes what transformers computes, from the module's own tensors: RMSNorm in float32, rotary
positions of the static kinds, grouped-query attention, tied or separate heads, biases. Left out:
rotary kinds that depend on the length (dynamic, longrope), sliding windows and training.

16-bit weights on a CPU are widened once, exactly, and the arithmetic runs in float32: it is faster
there than 16-bit arithmetic, and the law is that of the same weights without rounding in between.

What makes it fast where models are tiny: one matrix product for q, k and v and one for gate and up,
a preallocated cache in which all rows write the same column (contexts are padded on the left, every
row keeps its own positions), and no mask where no row is padded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from fractionate.models.arithmetic import is_plain_llama
from fractionate.models.hidden import backbone, head_weight
from fractionate.models.load import LanguageModel
from fractionate.models.stepper import Outlook, Packed, pack

_FIRST_COLUMNS: Final = 64
_PREFILL_TOKENS: Final = 8192
_FUSE_BELOW: Final = 32_000_000
"""Parameters up to which projections are copied into one matrix; above, the copy costs more time
and memory than the fewer calls save."""

_WHOLE_HEAD: Final = 1024
_HEAD_SLICE: Final = 512
"""Rows of a wide head in one product on a CPU: slices that stay in the cache are a fifth faster."""


def runs_lean(module: PreTrainedModel) -> bool:
    """Whether this forward computes what the module computes."""
    config = module.config
    return is_plain_llama(config) and all(type(part) is nn.Linear for part in _linears(module))


def _linears(module: PreTrainedModel) -> Iterator[nn.Module]:
    """Every projection of every layer: an adapter around one is a forward of its own."""
    body: Any = backbone(module)
    for layer in body.layers:
        for part in (layer.self_attn, layer.mlp):
            yield from (child for name, child in part.named_children() if name.endswith("_proj"))


def rotary_tables(
    rotary: Any, length: int, device: torch.device
) -> tuple[Float[Tensor, "length half"], Float[Tensor, "length half"]]:
    """Cosine and sine of every position, as transformers' rotary module has them, in float32."""
    positions = torch.arange(length, device=device)[:, None]
    angles = positions.float() * rotary.inv_freq.to(device, torch.float32)
    return angles.cos() * rotary.attention_scaling, angles.sin() * rotary.attention_scaling


@dataclass(frozen=True)
class _Projection:
    """One linear map made of several that read the same input.

    Attributes:
        parts: Weight and bias of each; a single one if they were fused.
    """

    parts: tuple[tuple[Tensor, Tensor | None], ...]

    def __call__(self, x: Tensor) -> Tensor:
        if len(self.parts) == 1:
            return functional.linear(x, *self.parts[0])
        return torch.cat([functional.linear(x, *part) for part in self.parts], -1)


@dataclass(frozen=True)
class _Layer:
    attention_norm: Tensor
    qkv: _Projection
    output: _Projection
    mlp_norm: Tensor
    gate_up: _Projection
    down: _Projection


@final
class LlamaStepper:
    """Decoding with a Llama or Qwen2 model: see `models.stepper.Stepper`."""

    def __init__(self, model: LanguageModel) -> None:
        module, config = model.module, model.module.config
        self._device = module.device
        body: Any = backbone(module)
        fuse = sum(weight.numel() for weight in body.layers.parameters()) < _FUSE_BELOW
        dtype = _compute_dtype(module)
        self._layers = [_read(layer, dtype, fuse=fuse) for layer in body.layers]
        self._embedding: Tensor = body.embed_tokens.weight.to(dtype)
        self._norm: Tensor = body.norm.weight.to(dtype)
        self._head = head_weight(module)[: model.vocab_size].to(dtype)
        self._epsilon: float = config.rms_norm_eps
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads
        self._head_dim: int = body.layers[0].self_attn.head_dim
        self._rotary: Any = body.rotary_emb
        self._cos = self._sin = self._positions = self._pads = torch.empty(0)
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._bias: Tensor | None = None
        self._column = self._capacity = 0

    # ------------------------------------------------------------ the protocol

    def prefill(
        self, contexts: Sequence[Sequence[int]], *, samples: int, max_new_tokens: int
    ) -> Outlook:
        """Read each context once and make `samples` rows of it, context by context."""
        packed = pack(contexts, self._device)
        width = packed.ids.shape[1]
        self._tabulate_positions(width + max_new_tokens)
        self._column, self._capacity = width, width + min(max_new_tokens, _FIRST_COLUMNS)
        rows = len(contexts) * samples
        shape = (rows, self._kv_heads, self._capacity, self._head_dim)
        self._keys = [self._embedding.new_empty(shape) for _ in self._layers]
        self._values = [self._embedding.new_empty(shape) for _ in self._layers]
        hidden = [
            self._read_contexts(packed, span, samples)
            for span in torch.arange(len(contexts)).split(max(1, _PREFILL_TOKENS // width))
        ]
        self._positions = packed.positions[:, -1].repeat_interleave(samples)
        self._pads = packed.pads.repeat_interleave(samples)
        self._set_bias()
        return self._outlook(torch.cat(hidden).repeat_interleave(samples, 0))

    def step(self, tokens: Int[Tensor, " rows"]) -> Outlook:
        """Append one token to every row."""
        if self._column == self._capacity:
            self._grow()
        self._positions = self._positions + 1
        cos, sin = self._cos[self._positions][:, None], self._sin[self._positions][:, None]
        x = self._embedding[tokens]
        for index, layer in enumerate(self._layers):
            q, k, v = self._project(layer, x, cos, sin)
            self._keys[index][:, :, self._column] = k
            self._values[index][:, :, self._column] = v
            x = _after_attention(layer, x, self._attend(index, q), self._epsilon)
        self._column += 1
        return self._outlook(x)

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Go on with these rows only, in this order."""
        self._positions, self._pads = self._positions[rows], self._pads[rows]
        self._move(rows)
        self._set_bias()

    # ------------------------------------------------------------ the cache

    def _grow(self) -> None:
        self._capacity = min(2 * self._capacity, self._cos.shape[0])
        self._move(None)
        self._set_bias()

    def _move(self, rows: Tensor | None) -> None:
        """Copy the columns in use, of some rows, into caches of the present capacity."""
        for caches in (self._keys, self._values):
            for index, old in enumerate(caches):
                used = old[:, :, : self._column]
                count = old.shape[0] if rows is None else rows.shape[0]
                new = old.new_empty(count, self._kv_heads, self._capacity, self._head_dim)
                new[:, :, : self._column] = used if rows is None else used[rows]
                caches[index] = new

    def _set_bias(self) -> None:
        """Minus infinity on the padding of every row, for all columns to come; none if unpadded."""
        if not bool(self._pads.any()):
            self._bias = None
            return
        columns = torch.arange(self._capacity, device=self._device)
        padding = columns[None, :] < self._pads[:, None]
        self._bias = self._embedding.new_zeros(padding.shape).masked_fill_(padding, -torch.inf)

    # ------------------------------------------------------------ the arithmetic

    def _tabulate_positions(self, length: int) -> None:
        cos, sin = rotary_tables(self._rotary, length, self._device)
        cos, sin = cos.to(self._embedding.dtype), sin.to(self._embedding.dtype)
        # rotate_half negates the second half: the sign is put into the table
        self._cos, self._sin = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)

    def _project(
        self, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys (both rotated) and values, each [tokens, heads, head_dim]."""
        qkv = layer.qkv(_rms_norm(x, layer.attention_norm, self._epsilon))
        qkv = qkv.view(x.shape[0], -1, self._head_dim)
        rotated = self._heads + self._kv_heads
        qk = qkv[:, :rotated]
        swapped = qk.unflatten(-1, (2, self._head_dim // 2)).flip(-2).flatten(-2)
        qk = torch.addcmul(qk * cos, swapped, sin)
        return qk[:, : self._heads], qk[:, self._heads :], qkv[:, rotated:]

    def _attend(self, index: int, q: Tensor) -> Float[Tensor, "rows width"]:
        """One query per row and head against the columns of the cache so far."""
        keys = self._keys[index][:, :, : self._column + 1]
        values = self._values[index][:, :, : self._column + 1]
        grouped = q.unflatten(1, (self._kv_heads, -1))
        scores = torch.matmul(grouped, keys.transpose(2, 3)) * self._head_dim**-0.5
        if self._bias is not None:
            scores = scores + self._bias[:, None, None, : self._column + 1]
        weights = scores.softmax(-1, dtype=_at_least_float32(scores.dtype)).to(scores.dtype)
        return torch.matmul(weights, values).flatten(1)

    def _read_contexts(self, packed: Packed, span: Tensor, samples: int) -> Tensor:
        """Run some contexts, write their keys and values, return their last hidden states."""
        ids, pads = packed.ids[span], packed.pads[span]
        count, width = ids.shape
        rows = slice(int(span[0]) * samples, (int(span[-1]) + 1) * samples)
        positions = packed.positions[span].flatten()
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        mask = _prefill_mask(pads, width)
        x = self._embedding[ids.flatten()]
        for index, layer in enumerate(self._layers):
            q, k, v = (
                part.view(count, width, -1, self._head_dim).transpose(1, 2)
                for part in self._project(layer, x, cos, sin)
            )
            self._keys[index][rows, :, :width] = k.repeat_interleave(samples, 0)
            self._values[index][rows, :, :width] = v.repeat_interleave(samples, 0)
            attended = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
            )
            attended = attended.transpose(1, 2).reshape(count * width, -1)
            x = _after_attention(layer, x, attended, self._epsilon)
        return x.view(count, width, -1)[:, -1]

    def _outlook(self, x: Tensor) -> Outlook:
        hidden = _rms_norm(x, self._norm, self._epsilon)
        if hidden.device.type != "cpu" or len(self._head) <= _WHOLE_HEAD:
            return Outlook(functional.linear(hidden, self._head), hidden)
        logits = hidden.new_empty(hidden.shape[0], len(self._head))
        parts = zip(self._head.split(_HEAD_SLICE), logits.split(_HEAD_SLICE, 1), strict=True)
        for rows, columns in parts:
            torch.mm(hidden, rows.T, out=columns)
        return Outlook(logits, hidden)


def _compute_dtype(module: PreTrainedModel) -> torch.dtype:
    on_cpu = module.device.type == "cpu"
    return torch.promote_types(module.dtype, torch.float32) if on_cpu else module.dtype


def _read(layer: Any, dtype: torch.dtype, *, fuse: bool) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    return _Layer(
        attention_norm=layer.input_layernorm.weight.to(dtype),
        qkv=_projection(projections, dtype, fuse=fuse),
        output=_projection((attention.o_proj,), dtype, fuse=False),
        mlp_norm=layer.post_attention_layernorm.weight.to(dtype),
        gate_up=_projection((mlp.gate_proj, mlp.up_proj), dtype, fuse=fuse),
        down=_projection((mlp.down_proj,), dtype, fuse=False),
    )


def _projection(
    linears: Sequence[torch.nn.Linear], dtype: torch.dtype, *, fuse: bool
) -> _Projection:
    if not fuse:
        return _Projection(tuple((x.weight.to(dtype), _bias(x, dtype)) for x in linears))
    biases = [bias for x in linears if (bias := _bias(x, dtype)) is not None]
    weight = torch.cat([x.weight for x in linears]).to(dtype)
    return _Projection(((weight, torch.cat(biases) if biases else None),))


def _bias(linear: torch.nn.Linear, dtype: torch.dtype) -> Tensor | None:
    return None if linear.bias is None else linear.bias.to(dtype)


def _after_attention(layer: _Layer, x: Tensor, attended: Tensor, epsilon: float) -> Tensor:
    x = x + layer.output(attended)
    gate, up = layer.gate_up(_rms_norm(x, layer.mlp_norm, epsilon)).chunk(2, -1)
    return x + layer.down(functional.silu(gate) * up)


def _rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """As transformers has it: in float32 whatever the dtype, then times the weight."""
    if x.dtype == torch.float32:
        return functional.rms_norm(x, weight.shape, weight, epsilon)
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return weight * wide.to(x.dtype)


def _prefill_mask(pads: Tensor, width: int) -> Tensor | None:
    """Causal and without padding; none where plain causal attention does."""
    if not bool(pads.any()):
        return None
    columns = torch.arange(width, device=pads.device)
    seen = (columns[None, :] <= columns[:, None]) & (columns[None, None, :] >= pads[:, None, None])
    # a padding position sees itself: a softmax over nothing would be NaN
    return (seen | torch.eye(width, dtype=torch.bool, device=pads.device))[:, None]


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
