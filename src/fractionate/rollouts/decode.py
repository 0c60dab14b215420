"""The batched decoder: many rows, one or two models, one law.

Rows run in waves that fit a budget. Finished rows leave the batch as soon as enough of them are.
Where there are several waves, the few rows that outlive a wave's horizon are gathered and read in
again as one wave, so that long completions never hold up short ones.

A row's randomness is a function of the seed, its index and its position alone, so neither the
budget nor what else is in the batch decides what is written.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from fractionate.models.llama import LlamaStepper, runs_lean
from fractionate.models.load import LanguageModel
from fractionate.models.native.engine import Weights
from fractionate.models.native.stepper import NativeStepper
from fractionate.models.stepper import Outlook, Stepper, TransformersStepper
from fractionate.records import Source
from fractionate.rng import stream
from fractionate.rollouts.continuous import Continuous, Draws, Writing
from fractionate.rollouts.sampling import draw_from_logits
from fractionate.rollouts.sampling import entropy as law_entropy
from fractionate.rollouts.tape import Choice, Sampled, Step, Tape

STEPPERS: Final[Mapping[str, Callable[[LanguageModel], Stepper]]] = {
    "llama": LlamaStepper,
    "qwen2": LlamaStepper,
}
"""Lean steppers by `model_type`; every other model runs its own forward."""

_HORIZON: Final = 128
_DROP_BELOW: Final = 0.75
_POSITIONS: Final = 32
_KEPT_BYTES: Final = 2**27


@dataclass(frozen=True)
class DecodeBudget:
    """What one wave may take; it decides about speed and memory, not about what is written.

    Attributes:
        memory: Bytes for caches and logits.
        rows: Rows of one wave, where there are more than one wave.
    """

    memory: int
    rows: int


BUDGETS: Final[Mapping[str, DecodeBudget]] = {
    "cpu": DecodeBudget(memory=2**29, rows=128),
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


@final
class RandomNumbers:
    """All uniform numbers of a decoding; row i at a position has the same whatever else is drawn.

    They are drawn for several positions at once and kept for the waves that follow, because a
    named stream costs more to open than to read.
    """

    def __init__(self, seed: int, rows: int) -> None:
        self._seed, self._rows = seed, rows
        self._blocks: dict[tuple[str, int], NDArray[np.float64]] = {}

    def at(self, purpose: str, position: int, rows: Int[Tensor, " rows"]) -> Float[Tensor, " rows"]:
        """One number in [0, 1) for each of some rows, float64."""
        number, column = divmod(position, _POSITIONS)
        chosen = self._block(purpose, number)[rows.cpu().numpy(), column]
        return torch.from_numpy(chosen).to(rows.device)

    def each(
        self, purpose: str, positions: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """The same for rows at positions of their own."""
        numbers, columns = np.divmod(positions, _POSITIONS)
        result = np.empty(len(rows))
        for number in set(numbers.tolist()):
            here = numbers == number
            result[here] = self._block(purpose, number)[rows[here], columns[here]]
        return result

    def _block(self, purpose: str, number: int) -> NDArray[np.float64]:
        if (purpose, number) not in self._blocks:
            if len(self._blocks) * self._rows * _POSITIONS * 8 > _KEPT_BYTES:
                self._blocks.pop(next(iter(self._blocks)))
            block = stream(self._seed, purpose, number).random((self._rows, _POSITIONS))
            self._blocks[purpose, number] = block
        return self._blocks[purpose, number]


@final
class Uniforms:
    """The uniform numbers of one step of a wave, by purpose."""

    def __init__(self, numbers: RandomNumbers, position: int, rows: Int[Tensor, " rows"]) -> None:
        self._numbers, self._position, self._rows = numbers, position, rows

    def __call__(self, purpose: str) -> Float[Tensor, " rows"]:
        """One number in [0, 1) per row of the wave, float64."""
        return self._numbers.at(purpose, self._position, self._rows)


Law = Callable[[Sequence[Outlook], Uniforms], Choice]
"""From what each model says about the next token to one token per row."""


@final
class Alone:
    """The law of one model that writes alone."""

    def __init__(
        self, source: Source, temperature: float | int, top_p: float | int, *, entropy: bool = False
    ) -> None:
        """Bind who writes, the sampling temperature (0 is greedy), nucleus and measurements."""
        self.source, self.temperature = source, temperature
        self.top_p, self.entropy = top_p, entropy

    def __call__(self, outlooks: Sequence[Outlook], uniforms: Uniforms) -> Choice:
        """Draw from the model's own logits."""
        logits = outlooks[0].logits
        drawn = draw_from_logits(
            logits, uniforms("token"), temperature=self.temperature, top_p=self.top_p
        )
        return Choice(
            drawn.tokens,
            drawn.log_probs,
            torch.full_like(drawn.tokens, self.source),
            law_entropy(logits) if self.entropy else None,
        )


def open_stepper(model: LanguageModel) -> Stepper:
    """The lean stepper of the model's type where it computes the same, else the model's own.

    Raises:
        KernelError: The model is to be decoded by the native kernel, which cannot run it.
    """
    if model.kernel == "native":
        return NativeStepper(Weights(model))
    make = STEPPERS.get(str(model.module.config.model_type))
    return make(model) if make and runs_lean(model.module) else TransformersStepper(model)


@dataclass(frozen=True)
class _Voices:
    """Who writes in a run, and how."""

    speakers: Sequence[Speaker]
    steppers: Sequence[Stepper]
    law: Law
    keep_hidden: bool


@final
class Decoder:
    """Writes completions row by row and keeps what was written.

    Rows are numbered prompt by prompt: row i is sample i % samples of prompt i // samples. Several
    runs may follow each other: other models, other rows, or the same rows further on.
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
            ValueError: Nobody speaks, there is nothing to write, or the models do not match.
        """
        _check(speakers, max_new_tokens, samples)
        model = speakers[0].model
        self._device, self._pad_id = model.device, model.pad_id
        self._budget = budget or BUDGETS.get(self._device.type, BUDGETS["cpu"])
        self._max_new_tokens, self._samples = max_new_tokens, samples
        self._count = len(speakers[0].prompts) * samples
        stop_ids = sorted({index for speaker in speakers for index in speaker.model.stop_ids})
        size = max(model.vocab_size, self._pad_id + 1, *(index + 1 for index in stop_ids))
        self._stops = torch.zeros(size, dtype=torch.bool, device=self._device)
        self._stops[stop_ids] = True
        self._tape = Tape(self._count)
        self._numbers = RandomNumbers(seed, self._count)

    @property
    def rows(self) -> Int[Tensor, " rows"]:
        """All rows."""
        return torch.arange(self._count, device=self._device)

    def run(
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
            rows: Which rows; each of them is `start` tokens long.
            start: Tokens written so far.
            end: Tokens to be written in all; `max_new_tokens` if not given.
            keep_hidden: Keep the first speaker's hidden states that predicted each token.

        Returns:
            The rows that have not stopped.
        """
        end = self._max_new_tokens if end is None else min(end, self._max_new_tokens)
        if isinstance(law, Alone) and law.top_p == 1.0 and speakers[0].model.kernel == "native":
            writing = Writing(
                speakers[0].prompts,
                self._samples,
                start=start,
                end=end,
                stops=self._stops.numpy(),
                keep_hidden=keep_hidden,
            )
            return self._flow(speakers[0].model, law, writing, rows)
        with torch.inference_mode():
            steppers = [open_stepper(speaker.model) for speaker in speakers]
        voices = _Voices(speakers, steppers, law, keep_hidden)
        while len(rows) > 0 and start < end:
            until, size = self._plan(speakers, len(rows), start, end)
            waves = [self._wave(voices, wave, start, until) for wave in rows.split(size)]
            rows, start = torch.cat(waves), until
        return rows

    def finish(self) -> Sampled:
        """Everything written so far, as right-padded tensors."""
        return self._tape.finish(stops=self._stops, pad_id=self._pad_id)

    def _flow(
        self, model: LanguageModel, law: Alone, writing: Writing, rows: Int[Tensor, " rows"]
    ) -> Int[Tensor, " survivors"]:
        """Have the native kernel draw every token, rows joining as others leave."""
        if len(rows) == 0 or writing.start >= writing.end:
            return rows
        numbers = functools.partial(self._numbers.each, "token")
        draws = Draws(int(law.source), law.temperature, law.entropy, numbers)
        budget = self._budget
        with torch.inference_mode():
            run = Continuous(Weights(model), writing, draws, self._tape)
            kept = run.run(rows.numpy(), at_once=budget.rows, memory=budget.memory)
        return torch.from_numpy(kept)

    def _plan(
        self, speakers: Sequence[Speaker], rows: int, start: int, end: int
    ) -> tuple[int, int]:
        """Until which length to write, and how many rows at a time."""
        memory = self._budget.memory
        fixed, per_token = _bytes_per_row([speaker.model for speaker in speakers])
        prompt = max(len(ids) for speaker in speakers for ids in speaker.prompts)
        until = min(end, start + max(start, _HORIZON))
        size = max(1, min(memory // (fixed + per_token * (prompt + until)), self._budget.rows))
        if rows > size:
            return until, size
        reach = (memory // rows - fixed) // per_token - prompt
        return max(until, min(end, reach)), rows

    def _wave(
        self, voices: _Voices, rows: Int[Tensor, " rows"], start: int, end: int
    ) -> Int[Tensor, " survivors"]:
        """Write some rows from `start` to `end` tokens; returns those that have not stopped."""
        with torch.inference_mode():
            outlooks = self._prefill(voices, rows, start, end)
            alive = torch.ones_like(rows, dtype=torch.bool)
            for position in range(start, end):
                choice = voices.law(outlooks, Uniforms(self._numbers, position, rows))
                hidden = outlooks[0].hidden if voices.keep_hidden else None
                positions = torch.full_like(rows, position)
                self._tape.append(Step(positions, rows, alive, choice, hidden))
                alive = alive & ~self._stops[choice.tokens]
                count, tokens = int(alive.sum()), choice.tokens
                if count == 0 or position + 1 == end:
                    break
                if count < _DROP_BELOW * len(rows):
                    kept = alive.nonzero()[:, 0]
                    for stepper in voices.steppers:
                        stepper.keep(kept)
                    rows, tokens, alive = rows[kept], tokens[kept], alive[kept]
                outlooks = [stepper.step(tokens) for stepper in voices.steppers]
            return rows[alive]

    def _prefill(
        self, voices: _Voices, rows: Int[Tensor, " rows"], start: int, end: int
    ) -> list[Outlook]:
        """Have every model read its prompts with what was written; a shared prompt once."""
        prompts = torch.div(rows, self._samples, rounding_mode="floor")
        repeats = 1
        written: list[list[int]] = [[] for _ in range(len(rows))]
        if start > 0:
            written = self._tape.prefixes(rows)
        else:
            unique, counts = prompts.unique_consecutive(return_counts=True)
            if bool((counts == counts[0]).all()):
                prompts, repeats = unique, int(counts[0])
        indices = prompts.tolist()
        return [
            stepper.prefill(
                [[*speaker.prompts[i], *text] for i, text in zip(indices, written, strict=False)],
                samples=repeats,
                max_new_tokens=end - start,
            )
            for speaker, stepper in zip(voices.speakers, voices.steppers, strict=True)
        ]


def _check(speakers: Sequence[Speaker], max_new_tokens: int, samples: int) -> None:
    if not speakers:
        raise ValueError("nobody writes: give a student or a teacher")
    if max_new_tokens < 1 or samples < 1:
        raise ValueError(
            f"max_new_tokens is {max_new_tokens} and samples is {samples}: both are at least 1"
        )
    counts = [len(speaker.prompts) for speaker in speakers]
    if 0 in counts or len(set(counts)) != 1:
        raise ValueError(f"each model needs the same prompts, at least one; they have {counts}")
    sizes = {speaker.model.vocab_size for speaker in speakers}
    if len(sizes) != 1:
        raise ValueError(
            f"the models have vocabularies of {sorted(sizes)} tokens. Bring them to one with "
            "models.vocabulary.align"
        )


def _bytes_per_row(models: Sequence[LanguageModel]) -> tuple[int, int]:
    """What a row takes whatever its length, and what it takes per token, over all models."""
    fixed = per_token = 0
    for model in models:
        config = model.module.config.get_text_config()
        settings = config.to_dict()
        heads = settings.get("num_key_value_heads") or config.num_attention_heads
        size = settings.get("head_dim") or config.hidden_size // config.num_attention_heads
        width = max(4, torch.finfo(model.module.dtype).bits // 8)
        per_token += 2 * config.num_hidden_layers * heads * size * width
        # logits, their float32 copy, their exponentials and the float64 sums
        fixed += model.vocab_size * (width + 4 + 4 + 8)
    return fixed, per_token
