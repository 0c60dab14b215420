"""Continuous decoding of one model by the native kernel: rows join as others leave.

No row waits for another: whenever one ends, the next takes its slot and is read in beside the
running steps of the others. A row whose cache finds no page any more is put back, the youngest
first, and read again later. The kernel's arithmetic for a row does not depend on its company, so
none of this shows in what is written.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fractionate.models.native.engine import Batch, Drawn, Slots, Weights
from fractionate.models.stepper import check_contexts
from fractionate.rollouts.tape import Choice, Step, Tape

_COLUMNS: Final = ("rows", "slots", "places", "written", "tokens")


@dataclass(frozen=True)
class Draws:
    """How tokens are drawn.

    Attributes:
        source: Who writes, as `records.Source`.
        temperature: 0 decodes greedily.
        entropy: Also measure the entropy at temperature 1.
        uniforms: From positions in the completion and rows to one number in [0, 1) each.
    """

    source: int
    temperature: float | int
    entropy: bool
    uniforms: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]


@dataclass(frozen=True)
class Writing:
    """What is to be written.

    Attributes:
        prompts: Token ids of each prompt.
        samples: Row i continues prompt i // samples.
        start: Tokens of each completion so far.
        end: Longest completion.
        stops: True at the ids that end a completion.
        keep_hidden: Keep the hidden states that predicted each token.
    """

    prompts: Sequence[Sequence[int]]
    samples: int
    start: int
    end: int
    stops: NDArray[np.bool_]
    keep_hidden: bool


@dataclass(frozen=True)
class _Active:
    """Rows in the batch, oldest first.

    Attributes:
        rows: Their numbers.
        slots: Their slots of the cache.
        places: Their positions in the cache.
        written: Their completion tokens.
        tokens: Their last token, which is not in the cache yet.
    """

    rows: NDArray[np.int64]
    slots: NDArray[np.int32]
    places: NDArray[np.int32]
    written: NDArray[np.int64]
    tokens: NDArray[np.int64]

    def pick(self, which: NDArray[np.bool_] | slice) -> "_Active":
        return _Active(*(getattr(self, name)[which] for name in _COLUMNS))

    def then(self, other: "_Active") -> "_Active":
        pairs = [(getattr(self, name), getattr(other, name)) for name in _COLUMNS]
        return _Active(*(np.concatenate(pair) for pair in pairs))


@dataclass(frozen=True)
class _Arrivals:
    """Rows that join in this step.

    Attributes:
        active: The rows; their `tokens` mean nothing yet.
        texts: What each group of rows with one context reads.
        sizes: Rows of each group.
    """

    active: _Active
    texts: list[list[int]]
    sizes: list[int]


@final
class Continuous:
    """A run of one model over many rows."""

    def __init__(self, weights: Weights, writing: Writing, draws: Draws, tape: Tape) -> None:
        """Bind what is written, how, and where it is kept."""
        check_contexts(writing.prompts)
        self._weights, self._writing, self._draws, self._tape = weights, writing, draws, tape
        self._cache: Slots
        self._vacant: list[int] = []
        self._waiting: deque[tuple[int, int]] = deque()

    def run(self, rows: NDArray[np.int64], *, at_once: int, memory: int) -> NDArray[np.int64]:
        """Write until every row has stopped or has reached the end.

        Args:
            rows: Which rows, in the order in which they start.
            at_once: Rows in the batch, at most.
            memory: Bytes for the cache; one row always fits.

        Returns:
            The rows that have not stopped, in their order.
        """
        writing, count = self._writing, min(at_once, len(rows))
        longest = max(len(writing.prompts[row // writing.samples]) for row in set(rows.tolist()))
        length = longest + writing.end
        each = -(-length // self._weights.page)
        page_bytes = 4 * self._weights.page * self._weights.floats_per_position
        pages = min(max(memory // page_bytes, each), count * each)
        self._cache = Slots(self._weights, slots=count, length=length, pages=pages)
        self._vacant = list(range(count))
        self._waiting = deque((row, writing.start) for row in rows.tolist())
        stopped = np.zeros(int(rows.max()) + 1, dtype=np.bool_)
        active = _nobody()
        while self._waiting or len(active.rows) > 0:
            active, drawn = self._step(self._with_pages(active))
            over = writing.stops[drawn.tokens]
            stopped[active.rows[over]] = True
            gone = over | (active.written >= writing.end)
            if gone.any():
                self._release(active.pick(gone))
                active = active.pick(~gone)
        return rows[~stopped[rows]]

    # ------------------------------------------------------------ one step

    def _step(self, active: _Active) -> tuple[_Active, Drawn]:
        """Draw one token for every row in the batch and every row that joins it."""
        arrivals = self._admit(active)
        batch = Batch.steps(active.tokens, active.slots, active.places)
        if arrivals is not None:
            firsts = np.cumsum([0, *arrivals.sizes[:-1]])
            batch = batch.then(
                Batch.contexts(arrivals.texts, arrivals.active.slots[firsts].tolist())
            )
        hidden = self._cache.forward(batch)
        active = _Active(
            active.rows, active.slots, active.places + np.int32(1), active.written, active.tokens
        )
        if arrivals is not None:
            hidden = self._share(arrivals, hidden, len(active.rows))
            active = active.then(arrivals.active)
        drawn = self._cache.draw_next(
            hidden,
            self._draws.uniforms(active.written, active.rows),
            temperature=self._draws.temperature,
            entropy=self._draws.entropy,
        )
        self._record(active, drawn, hidden)
        return _Active(
            active.rows, active.slots, active.places, active.written + 1, drawn.tokens
        ), drawn

    def _share(self, arrivals: _Arrivals, hidden: Tensor, before: int) -> Tensor:
        """Give every row of a group what its first one has read."""
        if max(arrivals.sizes) == 1:
            return hidden
        slots, at = arrivals.active.slots.tolist(), 0
        for text, size in zip(arrivals.texts, arrivals.sizes, strict=True):
            for other in slots[at + 1 : at + size]:
                self._cache.copy(slots[at], other, len(text))
            at += size
        repeats = torch.tensor([1] * before + arrivals.sizes)
        return hidden.repeat_interleave(repeats, 0)

    def _record(self, active: _Active, drawn: Drawn, hidden: Tensor) -> None:
        tokens = torch.from_numpy(drawn.tokens)
        choice = Choice(
            tokens,
            torch.from_numpy(drawn.log_probs),
            torch.full_like(tokens, self._draws.source),
            None if drawn.entropy is None else torch.from_numpy(drawn.entropy),
        )
        rows, positions = torch.from_numpy(active.rows), torch.from_numpy(active.written)
        kept = hidden if self._writing.keep_hidden else None
        self._tape.append(Step(positions, rows, None, choice, kept))

    # ------------------------------------------------------------ who is in the batch

    def _admit(self, active: _Active) -> _Arrivals | None:
        """Let waiting rows in, as long as there are slots, and pages for everybody's next step."""
        texts: list[list[int]] = []
        sizes: list[int] = []
        joined: list[tuple[int, int, int, int]] = []
        last: tuple[int, int] | None = None
        while self._waiting and self._vacant:
            row, written = self._waiting[0]
            context = (row // self._writing.samples, written)
            shared = written == 0 and context == last
            text = texts[-1] if shared else self._text(row, written)
            company = len(active.rows) + len(joined)
            needed = self._cache.pages_for(len(text) + 1)
            if company and needed + company > len(self._cache.free):
                break
            self._waiting.popleft()
            slot = self._vacant.pop()
            self._cache.reserve(slot, len(text) + 1)
            if shared:
                sizes[-1] += 1
            else:
                texts.append(text)
                sizes.append(1)
            joined.append((row, slot, len(text), written))
            last = context
        if not joined:
            return None
        rows, slots, places, counts = (np.array(column) for column in zip(*joined, strict=True))
        return _Arrivals(
            _Active(rows, slots.astype(np.int32), places.astype(np.int32), counts, rows),
            texts,
            sizes,
        )

    def _text(self, row: int, written: int) -> list[int]:
        prompt = self._writing.prompts[row // self._writing.samples]
        if written == 0:
            return list(prompt)
        return [*prompt, *self._tape.prefixes(torch.tensor([row]))[0]]

    def _with_pages(self, active: _Active) -> _Active:
        """Give a page to every row that begins one; where there is none, the youngest go back."""
        for index in (active.places % self._weights.page == 0).nonzero()[0].tolist():
            if index >= len(active.rows):
                break
            place = int(active.places[index])
            while not self._cache.reserve(int(active.slots[index]), place + 1):
                youngest = active.pick(slice(-1, None))
                self._waiting.appendleft((int(youngest.rows[0]), int(youngest.written[0])))
                self._release(youngest)
                active = active.pick(slice(0, -1))
                if index >= len(active.rows):
                    break
        return active

    def _release(self, leaving: _Active) -> None:
        for slot in leaving.slots.tolist():
            self._cache.release(slot)
            self._vacant.append(slot)


def _nobody() -> _Active:
    longs, ints = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
    return _Active(longs, ints, ints, longs, longs)
