"""The batched decoder: many rows, one or two models, one law.

Rows run in waves that fit a budget. Finished rows leave the batch as soon as enough of them are.
Where there are several waves, the few rows that outlive a wave's horizon are gathered and read in
again as one wave, so that long completions never hold up short ones.

A row's randomness is a function of the seed, its index and its position alone, so neither the
budget nor what else is in the batch decides what is written.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fractionate.models.llama import LlamaStepper, runs_lean
from fractionate.models.load import LanguageModel
from fractionate.models.stepper import Outlook, Stepper, TransformersStepper
from fractionate.records import StopReason
from fractionate.rng import stream
from fractionate.rollouts.completions import Completions

STEPPERS: Final[Mapping[str, Callable[[LanguageModel], Stepper]]] = {
    "llama": LlamaStepper,
    "qwen2": LlamaStepper,
}
"""Lean steppers by `model_type`; every other model runs its own forward."""

_HORIZON: Final = 128
_DROP_BELOW: Final = 0.75


@dataclass(frozen=True)
class DecodeBudget:
    """What one wave may take.

    Attributes:
        memory: Bytes for caches and logits.
        rows: Rows of one wave, where there are more than one wave.
    """

    memory: int
    rows: int


BUDGETS: Final[Mapping[str, DecodeBudget]] = {
    "cpu": DecodeBudget(memory=2**29, rows=256),
    "cuda": DecodeBudget(memory=2**34, rows=1024),
}
"""Budgets by device type; other devices have the CPU's."""


@dataclass(frozen=True)
class Speaker:
    """A model with its own view of the prompts.

    Attributes:
        model: The model.
        prompts: Token ids of each prompt, never empty; a teacher may see more than the student.
    """

    model: LanguageModel
    prompts: Sequence[Sequence[int]]


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


@final
class Uniforms:
    """Uniform numbers by purpose, row and position; the same whatever else is in the batch."""

    def __init__(self, seed: int, position: int, rows: Tensor, count: int) -> None:
        self._seed, self._position, self._rows, self._count = seed, position, rows, count

    def __call__(self, purpose: str) -> Float[Tensor, " rows"]:
        """One number in [0, 1) per row of the wave, float64."""
        numbers = stream(self._seed, purpose, self._position).random(self._count)
        return torch.from_numpy(numbers).to(self._rows.device)[self._rows]


Law = Callable[[Sequence[Outlook], Uniforms], Choice]
"""From what each model says about the next token to one token per row."""


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
class _Step:
    """One decoding step of a wave; rows that had finished before are not alive."""

    position: int
    rows: Int[Tensor, " rows"]
    alive: Bool[Tensor, " rows"]
    choice: Choice
    hidden: Float[Tensor, "rows hidden"] | None


def open_stepper(model: LanguageModel) -> Stepper:
    """The lean stepper of the model's type where it computes the same, else the model's own."""
    make = STEPPERS.get(str(model.module.config.model_type))
    return make(model) if make and runs_lean(model.module) else TransformersStepper(model)


@final
class Decoder:
    """Writes completions row by row and keeps what was written.

    Rows are numbered prompt by prompt: row i is sample i % samples of prompt i // samples. Several
    runs may write one after the other: other models, other rows, or the same rows further on.
    """

    def __init__(
        self,
        speakers: Sequence[Speaker],
        *,
        max_new_tokens: int,
        seed: int,
        samples: int = 1,
        budget: DecodeBudget | None = None,
    ) -> None:
        """Prepare to decode.

        Args:
            speakers: Every model with a say in where completions stop: the stop set is the union.
            max_new_tokens: Longest completion.
            seed: Of all random numbers.
            samples: Completions per prompt.
            budget: What a wave may take; by device if not given.

        Raises:
            ValueError: Nobody speaks, there is nothing to write, or models do not match.
        """
        _check(speakers, max_new_tokens, samples)
        model = speakers[0].model
        self._device, self._pad_id = model.device, model.pad_id
        self._budget = budget or BUDGETS.get(self._device.type, BUDGETS["cpu"])
        self._max_new_tokens, self._seed, self._samples = max_new_tokens, seed, samples
        self._count = len(speakers[0].prompts) * samples
        stop_ids = sorted({index for speaker in speakers for index in speaker.model.stop_ids})
        self._stops = torch.zeros(
            max(*stop_ids, model.vocab_size) + 1, dtype=torch.bool, device=self._device
        )
        self._stops[stop_ids] = True
        self._steps: list[_Step] = []

    @property
    def rows(self) -> Int[Tensor, " rows"]:
        """All rows."""
        return torch.arange(self._count, device=self._device)

    def run(  # noqa: PLR0913 - who writes, by which law, which rows, from where to where
        self,
        speakers: Sequence[Speaker],
        law: Law,
        rows: Int[Tensor, " rows"],
        *,
        start: int = 0,
        end: int | None = None,
        keep_hidden: bool = False,
    ) -> Int[Tensor, " survivors"]:
        """Write until every row has stopped or is `end` tokens long.

        Args:
            speakers: The models that the law hears, in its order.
            law: Chooses the tokens.
            rows: Which rows; all of them are `start` tokens long.
            start: Tokens written so far.
            end: Tokens to be written in all; `max_new_tokens` if not given.
            keep_hidden: Keep the first speaker's hidden states that predicted each token.

        Returns:
            The rows that have not stopped.
        """
        end = self._max_new_tokens if end is None else min(end, self._max_new_tokens)
        steppers = [open_stepper(speaker.model) for speaker in speakers]
        with torch.inference_mode():
            while len(rows) > 0 and start < end:
                until, size = self._plan(speakers, len(rows), start, end)
                survivors: list[Tensor] = []
                for wave in rows.split(size):
                    contexts, samples = self._contexts(speakers, wave, start)
                    outlooks = [
                        stepper.prefill(ids, samples=samples, max_new_tokens=until - start)
                        for stepper, ids in zip(steppers, contexts, strict=True)
                    ]
                    source = _Wave(steppers, law, outlooks, keep_hidden=keep_hidden)
                    survivors.append(self._write(source, wave, start, until))
                rows, start = torch.cat(survivors), until
        return rows

    def finish(self) -> Sampled:
        """Everything written so far, as right-padded tensors."""
        keep = [step.alive for step in self._steps]
        rows = torch.cat([step.rows[alive] for step, alive in zip(self._steps, keep, strict=True)])
        at = torch.cat(
            [torch.full_like(step.rows, step.position)[step.alive] for step in self._steps]
        )

        def gather(pick: Callable[[_Step], Tensor | None]) -> Tensor | None:
            parts = [pick(step) for step in self._steps]
            kept = [p[a] for p, a in zip(parts, keep, strict=True) if p is not None]
            return torch.cat(kept) if len(kept) == len(parts) else None

        lengths = torch.bincount(rows, minlength=self._count)
        shape = (self._count, int(lengths.max()))

        def spread(flat: Tensor, fill: int = 0) -> Tensor:
            dense = flat.new_full((*shape, *flat.shape[1:]), fill)
            dense[rows, at] = flat
            return dense

        written = gather(lambda step: step.choice.tokens)
        log_probs, source = gather(lambda s: s.choice.log_probs), gather(lambda s: s.choice.source)
        hidden, entropy = gather(lambda s: s.hidden), gather(lambda s: s.choice.entropy)
        assert written is not None and log_probs is not None and source is not None  # noqa: S101
        tokens = spread(written, self._pad_id)
        return Sampled(tokens, entropy)
