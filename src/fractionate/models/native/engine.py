"""A model inside the native kernel: packed weights, a paged cache, tokens in, hidden states out."""

import itertools
from collections.abc import Sequence
from ctypes import byref
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from fractionate.models.hidden import backbone, head_weight
from fractionate.models.llama import rotary_tables, runs_lean
from fractionate.models.load import LanguageModel
from fractionate.models.native import compiler

_SPAN: Final = 256
Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """Tokens for the kernel to read; those of one slot in the order of their positions.

    Attributes:
        ids: The tokens.
        slots: The slot of each.
        positions: The position of each in its slot.
        wanted: The row of the result that its last hidden state becomes; -1 for none.
        outputs: Rows of the result.
    """

    ids: NDArray[np.int64]
    slots: Ints
    positions: Ints
    wanted: Ints
    outputs: int

    @staticmethod
    def steps(ids: NDArray[np.int64], slots: Ints, positions: Ints) -> "Batch":
        """One token for each of some slots."""
        return Batch(ids, slots, positions, np.arange(len(ids), dtype=np.int32), len(ids))

    @staticmethod
    def contexts(texts: Sequence[Sequence[int]], slots: Sequence[int]) -> "Batch":
        """Whole texts, each into an empty slot; the last token of each is wanted."""
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        ends = lengths.cumsum()
        wanted = np.full(int(ends[-1]), -1, dtype=np.int32)
        wanted[ends - 1] = np.arange(len(texts))
        starts = np.repeat(ends - lengths, lengths)
        return Batch(
            ids=np.fromiter(itertools.chain.from_iterable(texts), np.int64, int(ends[-1])),
            slots=np.repeat(np.asarray(slots, dtype=np.int32), lengths),
            positions=(np.arange(len(starts)) - starts).astype(np.int32),
            wanted=wanted,
            outputs=len(texts),
        )

    def then(self, other: "Batch") -> "Batch":
        """Both; the other's results come after this one's."""
        shifted = np.where(other.wanted < 0, other.wanted, other.wanted + np.int32(self.outputs))
        return Batch(
            ids=np.concatenate([self.ids, other.ids]),
            slots=np.concatenate([self.slots, other.slots]),
            positions=np.concatenate([self.positions, other.positions]),
            wanted=np.concatenate([self.wanted, shifted.astype(np.int32)]),
            outputs=self.outputs + other.outputs,
        )


@dataclass(frozen=True)
class Drawn:
    """One token per row, with what the kernel knows of it.

    Attributes:
        tokens: Ids.
        log_probs: In nats, of the law drawn from; 0 where greedy.
        entropy: Of the law at temperature 1, in nats, where asked for.
    """

    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    entropy: NDArray[np.float32] | None


def _check(model: LanguageModel) -> None:
    module, name = model.module, type(model.module).__name__
    obstacle = None
    if module.config.model_type not in ("llama", "qwen2") or not runs_lean(module):
        obstacle = f"{name} is no Llama or Qwen2 model as transformers makes them"
    elif module.device.type != "cpu":
        obstacle = f"the model is on {module.device}, and it is for CPUs"
    elif module.dtype not in (torch.float32, torch.bfloat16):
        obstacle = f"the weights are in {module.dtype}, and it reads float32 and bfloat16"
    if obstacle is not None:
        raise compiler.KernelError(
            f"kernel 'native' cannot decode with {model.source}: {obstacle}. Set kernel: torch"
        )


@final
class Weights:
    """A model's weights as the kernel reads them; a copy of the module's present ones.

    Attributes:
        library: The compiled kernel.
        model: The kernel's own description.
        page: Positions in one page of a cache.
        hidden: Width of a hidden state.
        vocabulary: Effective vocabulary.
        floats_per_position: What a position takes in the cache, in float32 numbers.
    """

    def __init__(self, model: LanguageModel) -> None:
        """Pack the weights.

        Raises:
            KernelError: There is no compiler, or the kernel cannot run this model.
        """
        _check(model)
        module, config = model.module, model.module.config
        body: Any = backbone(module)
        self.library = compiler.library()
        self.page: int = self.library.page_length()
        self._width: int = self.library.panel_width()
        self._dtype = torch.bfloat16 if module.dtype == torch.bfloat16 else torch.float32
        self._held: list[Tensor] = []
        self._rotary = body.rotary_emb
        attention = body.layers[0].self_attn
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._layers = (compiler.Layer * len(body.layers))(*map(self._layer, body.layers))
        self.hidden: int = config.hidden_size
        self.vocabulary = model.vocab_size
        padded = -(-attention.head_dim // 16) * 16
        self.floats_per_position = len(body.layers) * kv_heads * (attention.head_dim + padded)
        self.model = compiler.Model(
            layers=self._layers,
            embedding=self._hold(body.embed_tokens.weight.to(self._dtype)),
            norm=self._hold(body.norm.weight.float()),
            head=self._packed([head_weight(module)[: model.vocab_size]], []),
            layer_count=len(body.layers),
            hidden=config.hidden_size,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=attention.head_dim,
            inner=body.layers[0].mlp.down_proj.in_features,
            bfloat16=self._dtype == torch.bfloat16,
            epsilon=config.rms_norm_eps,
        )

    def reach(self, length: int) -> None:
        """Tabulate the angles of this many positions."""
        cos, sin = rotary_tables(self._rotary, length, torch.device("cpu"))
        self._tables = (cos, sin)
        self.model.cos, self.model.sin = cos.data_ptr(), sin.data_ptr()

    def _hold(self, tensor: Tensor) -> int:
        kept = tensor.detach().contiguous()
        self._held.append(kept)
        return kept.data_ptr()

    def _layer(self, layer: Any) -> compiler.Layer:
        attention, mlp = layer.self_attn, layer.mlp
        return compiler.Layer(
            attention_norm=self._hold(layer.input_layernorm.weight.float()),
            mlp_norm=self._hold(layer.post_attention_layernorm.weight.float()),
            qkv=self._linears(attention.q_proj, attention.k_proj, attention.v_proj),
            output=self._linears(attention.o_proj),
            gate_up=self._linears(mlp.gate_proj, mlp.up_proj, side_by_side=True),
            down=self._linears(mlp.down_proj),
        )

    def _linears(self, *linears: nn.Linear, side_by_side: bool = False) -> compiler.Matrix:
        weights = [linear.weight for linear in linears]
        biases = [linear.bias for linear in linears if linear.bias is not None]
        return self._packed(weights, biases, side_by_side=side_by_side)

    def _packed(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor], *, side_by_side: bool = False
    ) -> compiler.Matrix:
        """One matrix of several that read the same input: one after the other, or interleaved."""
        width = self._width // len(weights) if side_by_side else self._width
        if not side_by_side and any(part.shape[0] % width for part in weights[:-1]):
            weights = [torch.cat(list(weights))]
        rows, inputs = sum(part.shape[0] for part in weights), weights[0].shape[1]
        panels = -(-weights[0].shape[0] // width) if side_by_side else -(-rows // width)
        target = torch.empty(panels, inputs, self._width, dtype=self._dtype)
        self.library.use_large_pages(target.data_ptr(), target.nbytes)
        panel = offset = 0
        for part in weights:
            source = part.detach().to(self._dtype).contiguous()
            self.library.pack(
                source.data_ptr(),
                target[panel:].data_ptr(),
                *source.shape,
                self._dtype == torch.bfloat16,
                width,
                offset,
            )
            panel, offset = (panel, width) if side_by_side else (panel + len(part) // width, 0)
        return compiler.Matrix(
            weight=self._hold(target),
            bias=self._bias(biases, panels, side_by_side=side_by_side) if biases else None,
            outputs=panels * self._width if side_by_side else rows,
            inputs=inputs,
        )

    def _bias(self, biases: Sequence[Tensor], panels: int, *, side_by_side: bool) -> int:
        parts = [bias.detach().float() for bias in biases]
        if side_by_side:
            short = panels * self._width // len(parts) - len(parts[0])
            padded = [nn.functional.pad(part, (0, short)).view(panels, -1) for part in parts]
            return self._hold(torch.cat(padded, 1).flatten())
        whole = torch.cat(parts)
        return self._hold(nn.functional.pad(whole, (0, panels * self._width - len(whole))))


@final
class Slots:
    """A cache with room for some rows, in pages that rows take as they grow.

    Attributes:
        free: Pages that nobody has.
    """

    def __init__(self, weights: Weights, *, slots: int, length: int, pages: int) -> None:
        """Set up empty slots.

        Args:
            weights: The model.
            slots: Rows at a time.
            length: Positions of the longest row.
            pages: Pages in all; memory is taken only where one is written.
        """
        self._weights, self._library = weights, weights.library
        weights.reach(length)
        self._table = np.zeros((slots, -(-length // weights.page)), dtype=np.int32)
        self._counts = np.zeros(slots, dtype=np.int64)
        self.free = list(range(pages))
        # one allocation: keys first, then values
        self._memory = torch.empty(pages * weights.page * weights.floats_per_position)
        self._library.use_large_pages(self._memory.data_ptr(), self._memory.nbytes)
        model = weights.model
        keys = pages * weights.page * model.layer_count * model.kv_heads * model.head_dim
        self._cache = compiler.Cache(
            keys=self._memory.data_ptr(),
            values=self._memory[keys:].data_ptr(),
            table=self._table.ctypes.data,
            pages=pages,
            pages_per_slot=self._table.shape[1],
        )
        self._space = torch.empty(self._library.space_needed(byref(model), length))
        # kept from step to step: fresh pages for every step's logits would cost more than the draw
        self._own_logits = torch.empty(slots, weights.vocabulary)
        self._library.use_large_pages(self._own_logits.data_ptr(), self._own_logits.nbytes)
        self._draw_space = torch.empty(weights.vocabulary + 16)
        self._draw_sums = np.empty(weights.vocabulary // _SPAN + 1)

    def pages_for(self, length: int) -> int:
        """Pages of a row with so many positions."""
        return -(-length // self._weights.page)

    def reserve(self, slot: int, length: int) -> bool:
        """Give a slot the pages for so many positions; False, and nothing, if they are not left."""
        have, want = int(self._counts[slot]), self.pages_for(length)
        if want - have > len(self.free):
            return False
        for index in range(have, want):
            self._table[slot, index] = self.free.pop()
        self._counts[slot] = max(have, want)
        return True

    def release(self, slot: int) -> None:
        """Take a slot's pages back."""
        self.free.extend(self._table[slot, : self._counts[slot]].tolist())
        self._counts[slot] = 0

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first positions of a slot to another, which has its pages."""
        model, cache = byref(self._weights.model), byref(self._cache)
        self._library.copy_slot(model, cache, source, target, length)

    def forward(self, batch: Batch) -> Float[Tensor, "outputs hidden"]:
        """Read tokens into their slots; last hidden states, after the final norm, come out."""
        hidden = torch.empty(batch.outputs, self._weights.hidden)
        self._library.forward(
            byref(self._weights.model),
            byref(self._cache),
            len(batch.ids),
            batch.ids.ctypes.data,
            batch.slots.ctypes.data,
            batch.positions.ctypes.data,
            batch.wanted.ctypes.data,
            hidden.data_ptr(),
            self._space.data_ptr(),
        )
        return hidden

    def logits(self, hidden: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows vocab"]:
        """Logits of last hidden states, which are contiguous."""
        return self._logits(hidden, torch.empty(hidden.shape[0], self._weights.vocabulary))

    def draw_next(
        self,
        hidden: Float[Tensor, "rows hidden"],
        uniforms: NDArray[np.float64],
        *,
        temperature: float,
        entropy: bool,
    ) -> Drawn:
        """Draw one token per row from last hidden states, as many as there are slots at most."""
        logits = self._logits(hidden, self._own_logits[: len(hidden)])
        return self.draw(logits, uniforms, temperature=temperature, entropy=entropy)

    def _logits(self, hidden: Tensor, logits: Tensor) -> Tensor:
        self._library.logits_of(
            byref(self._weights.model),
            hidden.shape[0],
            hidden.data_ptr(),
            logits.data_ptr(),
            self._space.data_ptr(),
        )
        return logits

    def draw(
        self,
        logits: Float[Tensor, "rows vocab"],
        uniforms: NDArray[np.float64],
        *,
        temperature: float,
        entropy: bool,
    ) -> Drawn:
        """Draw one token per row by inverse CDF; temperature 0 takes the likeliest."""
        rows = logits.shape[0]
        tokens = np.empty(rows, dtype=np.int64)
        log_probs = np.empty(rows, dtype=np.float32)
        measured = np.empty(rows, dtype=np.float32) if entropy else None
        self._library.draw(
            rows,
            logits.shape[1],
            logits.data_ptr(),
            temperature,
            uniforms.ctypes.data,
            tokens.ctypes.data,
            log_probs.ctypes.data,
            None if measured is None else measured.ctypes.data,
            self._draw_space.data_ptr(),
            self._draw_sums.ctypes.data,
        )
        return Drawn(tokens, log_probs, measured)
