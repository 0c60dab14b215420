"""One decoding step at a time: what a batched decoder asks of a model.

`TransformersStepper` runs the model's own forward pass and serves every architecture; the lean
`models.llama.LlamaStepper` serves those whose arithmetic it knows.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import DynamicCache

from fractionate.models.hidden import backbone, evaluating, head_weight
from fractionate.models.load import LanguageModel


@dataclass(frozen=True)
class Outlook:
    """What a model says about the next token of every row.

    Attributes:
        logits: Raw logits over the effective vocabulary.
        hidden: The hidden states that they come from, after the final norm.
    """

    logits: Float[Tensor, "rows vocab"]
    hidden: Float[Tensor, "rows hidden"]


@dataclass(frozen=True)
class Packed:
    """Contexts padded on the left, so that all rows grow in the same column.

    Attributes:
        ids: Token ids, [contexts, width].
        pads: Padding columns of each context, [contexts].
        positions: Position of each token counted from its own start; 0 on padding.
    """

    ids: Int[Tensor, "contexts width"]
    pads: Int[Tensor, " contexts"]
    positions: Int[Tensor, "contexts width"]


def check_contexts(contexts: Sequence[Sequence[int]]) -> None:
    """Refuse a context that nothing can go on from.

    Raises:
        ValueError: A context has no token.
    """
    if any(len(context) == 0 for context in contexts):
        raise ValueError("a prompt has no token: a model needs at least one to go on from")


def pack(contexts: Sequence[Sequence[int]], device: torch.device) -> Packed:
    """Pad contexts on the left; positions still start at 0 in every row.

    Raises:
        ValueError: A context has no token.
    """
    check_contexts(contexts)
    width = max(len(context) for context in contexts)
    ids = torch.tensor(
        [[0] * (width - len(context)) + list(context) for context in contexts], device=device
    )
    pads = torch.tensor([width - len(context) for context in contexts], device=device)
    columns = torch.arange(width, device=device)
    return Packed(ids, pads, (columns[None, :] - pads[:, None]).clamp(min=0))


@runtime_checkable
class Stepper(Protocol):
    """A model in the middle of decoding a batch of rows."""

    def prefill(
        self, contexts: Sequence[Sequence[int]], *, samples: int, max_new_tokens: int
    ) -> Outlook:
        """Read each context once and make `samples` rows of it, context by context."""
        ...

    def step(self, tokens: Int[Tensor, " rows"]) -> Outlook:
        """Append one token to every row."""
        ...

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Go on with these rows only, in this order."""
        ...


@final
class TransformersStepper:
    """Decoding by the model's own forward pass and transformers' dynamic cache."""

    def __init__(self, model: LanguageModel) -> None:
        self._module = model.module
        self._body = backbone(model.module)
        self._head = head_weight(model.module)[: model.vocab_size]
        parameters = inspect.signature(self._body.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._cache: Any = DynamicCache(config=self._module.config)
        self._mask = torch.empty(0)
        self._positions = torch.empty(0)

    def prefill(
        self,
        contexts: Sequence[Sequence[int]],
        *,
        samples: int,
        max_new_tokens: int,  # noqa: ARG002 - the dynamic cache grows by itself
    ) -> Outlook:
        """Read each context once and make `samples` rows of it, context by context."""
        packed = pack(contexts, self._module.device)
        columns = torch.arange(packed.ids.shape[1], device=packed.ids.device)
        self._cache = DynamicCache(config=self._module.config)
        self._mask = (columns[None, :] >= packed.pads[:, None]).long()
        outlook = self._forward(packed.ids, packed.positions)
        self._positions = packed.positions[:, -1]
        if samples == 1:
            return outlook
        self._cache.batch_repeat_interleave(samples)
        self._mask = self._mask.repeat_interleave(samples, 0)
        self._positions = self._positions.repeat_interleave(samples, 0)
        return Outlook(
            outlook.logits.repeat_interleave(samples, 0),
            outlook.hidden.repeat_interleave(samples, 0),
        )

    def step(self, tokens: Int[Tensor, " rows"]) -> Outlook:
        """Append one token to every row."""
        self._positions = self._positions + 1
        self._mask = torch.cat([self._mask, self._mask.new_ones(self._mask.shape[0], 1)], 1)
        return self._forward(tokens[:, None], self._positions[:, None])

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Go on with these rows only, in this order."""
        self._cache.batch_select_indices(rows)
        self._mask, self._positions = self._mask[rows], self._positions[rows]

    def _forward(self, ids: Tensor, positions: Tensor) -> Outlook:
        with evaluating(self._module):
            output = self._body(
                input_ids=ids,
                attention_mask=self._mask,
                position_ids=positions,
                use_cache=True,
                **{self._cache_name: self._cache},
            )
        hidden = output.last_hidden_state[:, -1]
        return Outlook(nn.functional.linear(hidden, self._head), hidden)
