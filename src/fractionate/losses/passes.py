"""Walks of the fused loss over chunks of positions and, in a chunk, blocks of the vocabulary."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fractionate.losses import tiles
from fractionate.losses.masked import masked_rows
from fractionate.losses.products import Factor, Gradients, Span
from fractionate.losses.stats import stats_from_rows

CHUNK_BYTES = 64 * 2**20
"""Default budget for what is kept of one chunk of positions (two numbers per logit), in bytes."""
SMALLEST_CHUNK = 32
"""Fewer rows than this make the matrix products slow, whatever the vocabulary."""
LARGEST_CHUNK = 128
"""More rows than this gain nothing on a CPU once a chunk has several blocks."""
TILE_ELEMENTS = 131_072
"""Logits per tile on a CPU: half and a quarter of it measured slower."""
NARROW = 1024
"""A vocabulary of at most this size is one block on a CPU."""


@final
@dataclass(frozen=True)
class Sizes:
    """How large chunks may be.

    Attributes:
        rows: Positions per chunk; None takes what the budget holds.
        budget: Bytes for what is kept of one chunk.
    """

    rows: int | None
    budget: int

    def resolve(self, vocab: int, like: Tensor) -> tuple[int, int]:
        """Positions per chunk and tokens per block, for logits over `vocab` tokens like `like`."""
        rows = max(SMALLEST_CHUNK, self.budget // (2 * vocab * like.itemsize))
        if like.device.type != "cpu":
            return self.rows or rows, vocab
        if vocab <= NARROW:
            return self.rows or min(rows, TILE_ELEMENTS // vocab), vocab
        rows = self.rows or min(rows, LARGEST_CHUNK)
        return rows, min(vocab, max(NARROW // 2, TILE_ELEMENTS // rows))


@final
@dataclass(frozen=True)
class Work:
    """What is to be computed: two laws (student, teacher) over `vocab` tokens, and a divergence."""

    laws: tuple[Factor, Factor]
    vocab: int
    kind: str
    parameter: float
    sizes: Sizes

    @property
    def positions(self) -> int:
        """Rows of the hidden states."""
        return len(self.laws[0].hidden)


@final
class _Chunk:
    """Buffers of one chunk: a pair kept for every block where a later sweep wants it, and scratch.

    One object serves all chunks.
    """

    def __init__(self, work: Work, rows: int, width: int, *, like: Tensor, kept: bool) -> None:
        vocab = work.vocab
        self.blocks = [(low, min(low + width, vocab)) for low in range(0, vocab, width)]
        self._kept = kept
        self._pair = like.new_empty(2, rows * (vocab if kept else width))
        self._scratch = [like.new_empty(rows * width) for _ in range(4)]

    def tiles(
        self, rows: int, sweeps: tiles.Sweeps, sums: Tensor, combined: Tensor, shares: Tensor | None
    ) -> Iterator[tiles.Tile]:
        """The tile of every block, for the sums so far."""
        for index, (low, high) in enumerate(self.blocks):
            shape = rows, high - low
            offset = rows * low if self._kept else 0
            size = rows * (high - low)
            pair = [buffer[offset : offset + size].view(shape) for buffer in self._pair]
            scratch = [buffer[:size].view(shape) for buffer in self._scratch]
            logits, laws = (pair, scratch[:2]) if sweeps.keeps_logits else (scratch[:2], pair)
            yield tiles.Tile(
                *logits,
                *laws,
                *scratch[2:],
                sums=sums[:, index],
                rows=combined,
                shares=None if shares is None else shares[:, index].unsqueeze(-1),
            )


def fast_pass(work: Work, gradients: Gradients, *, with_stats: bool) -> tuple[Tensor, Tensor]:
    """Values `[N]` and statistics `[8, N]` (or `[8, 0]`), gradients into `gradients`."""
    like = gradients.like
    height, width = work.sizes.resolve(work.vocab, like)
    height = max(1, min(height, work.positions))
    sweeps, parameter = tiles.TILE_KINDS[work.kind], work.parameter
    if with_stats:
        sweeps, parameter = tiles.with_statistics(work.kind, work.parameter)
    kept = gradients.wanted or sweeps.middle is not None
    chunk = _Chunk(work, height, width, like=like, kept=kept)
    rows = like.new_zeros(tiles.ROWS, work.positions)
    for start in range(0, work.positions, height):
        stop = min(start + height, work.positions)
        count = stop - start
        sums = like.new_zeros(tiles.ROWS, len(chunk.blocks), count)
        for tile, (low, high) in zip(
            chunk.tiles(count, sweeps, sums, sums[:, 0], None), chunk.blocks, strict=True
        ):
            span = Span(start, stop, low, high)
            work.laws[0].logits(span, tile.student)
            work.laws[1].logits(span, tile.teacher)
            sweeps.first(tile)
        combined, shares = tiles.combine(sums)
        if sweeps.middle is not None:
            for tile in chunk.tiles(count, sweeps, sums, combined, shares):
                sweeps.middle(tile, parameter)
            tiles.add_up(sums, combined)
        if gradients.wanted:
            for tile, (low, high) in zip(
                chunk.tiles(count, sweeps, sums, combined, shares), chunk.blocks, strict=True
            ):
                gradients.add(Span(start, stop, low, high), sweeps.gradient(tile, parameter))
        rows[:, start:stop] = combined
    values = tiles.divergence(rows, work.kind, work.parameter).clamp(min=0)
    return values, stats_from_rows(rows) if with_stats else rows.new_empty(8, 0)


def masked_pass(work: Work, gradients: Gradients) -> tuple[Tensor, Tensor]:
    """The same by autograd on the reference functions, chunk by chunk.

    Raises:
        ValueError: a KL that takes part is infinite.
    """
    values: list[Tensor] = []
    stats: list[Tensor] = []
    height = max(1, min(work.sizes.resolve(work.vocab, gradients.like)[0], work.positions))
    buffers = gradients.like.new_empty(2, height, work.vocab)
    for start in range(0, work.positions, height):
        span = Span(start, min(start + height, work.positions), 0, work.vocab)
        logits = buffers[:, : span.stop - start]
        for law, out in zip(work.laws, logits, strict=True):
            law.logits(span, out)
        rows = masked_rows(logits, work.kind, work.parameter, start)
        values.append(rows.values)
        stats.append(rows.stats)
        gradients.add(span, rows.logit_gradient)
    return torch.cat(values), torch.cat(stats, dim=1)
