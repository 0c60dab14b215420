"""What a decoder has written so far, step by step, and the completions that come of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fractionate.records import StopReason
from fractionate.rollouts.completions import Completions


@dataclass(frozen=True)
class Choice:
    """What a law chose for every row.

    Attributes:
        tokens: One token per row.
        log_probs: Under the law it was drawn from, in nats.
        source: Who wrote it, as `records.Source`.
        entropy: Of the model's own law at temperature 1, in nats, where asked for.
    """

    tokens: Int[Tensor, " rows"]
    log_probs: Float[Tensor, " rows"]
    source: Int[Tensor, " rows"]
    entropy: Float[Tensor, " rows"] | None = None


@dataclass(frozen=True)
class Sampled:
    """Completions with what was measured while they were written.

    Attributes:
        completions: What was written.
        entropy: Mean entropy of each completion at temperature 1, in nats, where asked for.
    """

    completions: Completions
    entropy: Float[Tensor, " batch"] | None = None


@dataclass(frozen=True)
class Step:
    """One decoding step of some rows.

    Attributes:
        positions: Tokens that each row had before.
        rows: Which rows.
        alive: False for rows that had finished before and only wait to be dropped; none if all are.
        choice: What was chosen.
        hidden: Hidden states that predicted it, where kept.
    """

    positions: Int[Tensor, " rows"]
    rows: Int[Tensor, " rows"]
    alive: Bool[Tensor, " rows"] | None
    choice: Choice
    hidden: Float[Tensor, "rows hidden"] | None = None


@final
class Tape:
    """A growing record of steps; dense tensors are made once, at the end."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._steps: list[Step] = []

    def append(self, step: Step) -> None:
        """Record a step."""
        self._steps.append(step)

    def prefixes(self, rows: Int[Tensor, " rows"]) -> list[list[int]]:
        """The tokens written so far for some rows."""
        written: dict[int, list[tuple[int, int]]] = {int(row): [] for row in rows}
        for step in self._steps:
            triples = torch.stack([step.rows, step.positions, step.choice.tokens], 1)
            for row, position, token in _living(triples, step.alive).tolist():
                if row in written:
                    written[row].append((position, token))
        return [[token for _, token in sorted(written[int(row)])] for row in rows]

    def finish(self, *, stops: Bool[Tensor, " ids"], pad_id: int) -> Sampled:
        """Everything written, as right-padded tensors.

        Args:
            stops: True at the ids that end a completion.
            pad_id: Fills the padding; masks come from lengths alone.
        """
        alive = [step.alive for step in self._steps]
        rows = _join([step.rows for step in self._steps], alive)
        at = _join([step.positions for step in self._steps], alive)
        lengths = torch.bincount(rows, minlength=self._count)
        width = int(lengths.max())

        def spread(parts: Sequence[Tensor], fill: int = 0) -> Tensor:
            flat = _join(parts, alive)
            dense = torch.full(
                (self._count, width, *flat.shape[1:]), fill, dtype=flat.dtype, device=flat.device
            )
            dense[rows, at] = flat
            return dense

        tokens = spread([step.choice.tokens for step in self._steps], pad_id)
        last = tokens.gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0]
        stopped = (stops[last] & (lengths > 0)).tolist()
        hidden = [step.hidden for step in self._steps if step.hidden is not None]
        completions = Completions(
            tokens=tokens,
            lengths=lengths,
            log_probs=spread([step.choice.log_probs for step in self._steps]),
            source=spread([step.choice.source for step in self._steps]),
            stop=tuple(StopReason.STOP if stop else StopReason.LENGTH for stop in stopped),
            hidden=spread(hidden) if len(hidden) == len(self._steps) else None,
        )
        entropy = [s.choice.entropy for s in self._steps if s.choice.entropy is not None]
        if len(entropy) < len(self._steps):
            return Sampled(completions)
        return Sampled(completions, spread(entropy).sum(1) / lengths.clamp(min=1))


def _join(parts: Sequence[Tensor], alive: Sequence[Tensor | None]) -> Tensor:
    """The rows that were alive, step after step, as a tensor that gradients may refer to."""
    return torch.cat([_living(part, mask) for part, mask in zip(parts, alive, strict=True)])


def _living(part: Tensor, alive: Tensor | None) -> Tensor:
    return part if alive is None else part[alive]
