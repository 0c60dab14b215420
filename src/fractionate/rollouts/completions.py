"""Completions: what a rollout policy wrote, token by token."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fractionate.records import StopReason


@dataclass(frozen=True)
class Completions:
    """A batch of completions, right-padded.

    Attributes:
        tokens: Token ids, the stop token included where one was produced.
        lengths: Tokens of each completion.
        log_probs: Log-probability of each token under the law it was really drawn from
            (temperature, nucleus and mixture included), in nats; 0 beyond the length.
        source: Who wrote each token, as `records.Source`.
        stop: Why each completion ended.
        hidden: Last hidden states of the teacher (after its final norm) at the positions that
            predict each token, where they were kept.
    """

    tokens: Int[Tensor, "batch time"]
    lengths: Int[Tensor, " batch"]
    log_probs: Float[Tensor, "batch time"]
    source: Int[Tensor, "batch time"]
    stop: tuple[StopReason, ...]
    hidden: Float[Tensor, "batch time hidden"] | None = None

    @property
    def mask(self) -> Bool[Tensor, "batch time"]:
        """True on completion tokens, from lengths alone (a pad id may equal a stop id)."""
        positions = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return positions[None, :] < self.lengths[:, None]

    @property
    def n_tokens(self) -> int:
        """Completion tokens in the batch."""
        return int(self.lengths.sum())

    def rows(self, index: Sequence[int]) -> "Completions":
        """Some rows, in this order, padded to the longest of them."""
        chosen = list(index)
        lengths = self.lengths[chosen]
        width = int(lengths.max()) if chosen else 0
        return Completions(
            tokens=self.tokens[chosen, :width],
            lengths=lengths,
            log_probs=self.log_probs[chosen, :width],
            source=self.source[chosen, :width],
            stop=tuple(self.stop[i] for i in chosen),
            hidden=None if self.hidden is None else self.hidden[chosen, :width],
        )
