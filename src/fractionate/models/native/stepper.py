"""The native kernel behind the stepper protocol, for laws that are formed in torch."""

from collections.abc import Sequence
from typing import final

import numpy as np
from jaxtyping import Int
from torch import Tensor

from fractionate.models.native.engine import Batch, Ints, Slots, Weights
from fractionate.models.stepper import Outlook, check_contexts


@final
class NativeStepper:
    """Decoding by the native kernel: see `models.stepper.Stepper`."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._cache: Slots
        self._slots: Ints
        self._positions: Ints

    def prefill(
        self, contexts: Sequence[Sequence[int]], *, samples: int, max_new_tokens: int
    ) -> Outlook:
        """Read each context once and make `samples` rows of it, context by context."""
        check_contexts(contexts)
        lengths = np.array([len(context) for context in contexts], dtype=np.int32)
        length = int(lengths.max()) + max_new_tokens
        rows = len(contexts) * samples
        pages = rows * -(-length // self._weights.page)
        self._cache = Slots(self._weights, slots=rows, length=length, pages=pages)
        for slot in range(rows):
            self._cache.reserve(slot, length)
        firsts = np.arange(0, rows, samples, dtype=np.int32)
        hidden = self._cache.forward(Batch.contexts(contexts, firsts.tolist()))
        for first, size in zip(firsts.tolist(), lengths.tolist(), strict=True):
            for other in range(first + 1, first + samples):
                self._cache.copy(first, other, size)
        self._slots = np.arange(rows, dtype=np.int32)
        self._positions = np.repeat(lengths, samples)
        outlook = Outlook(self._cache.logits(hidden), hidden)
        if samples == 1:
            return outlook
        return Outlook(
            outlook.logits.repeat_interleave(samples, 0),
            outlook.hidden.repeat_interleave(samples, 0),
        )

    def step(self, tokens: Int[Tensor, " rows"]) -> Outlook:
        """Append one token to every row."""
        ids = np.ascontiguousarray(tokens.numpy())
        hidden = self._cache.forward(Batch.steps(ids, self._slots, self._positions))
        self._positions = self._positions + np.int32(1)
        return Outlook(self._cache.logits(hidden), hidden)

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Go on with these rows only, in this order."""
        kept = rows.numpy()
        self._slots, self._positions = self._slots[kept], self._positions[kept]
