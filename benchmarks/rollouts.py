"""Rollout tokens per second against `generate` of transformers, on the same weights.

Reading the prompts counts, and so does whatever a decoder derives from the weights: they change
before every repeat, as they do in training.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from benchmarks import models, ours, peers
from benchmarks.common import Settings, Spread, Timings, interleave, spread
from benchmarks.results import Row, Section, Table, figure, main, rate
from fractionate.models.load import LanguageModel

STOP = 1 / 98
LIMIT = 512
_SERVED = "generate"

Marks = Mapping[str, tuple[float | None, float | None]]
FLOAT32_MARKS: Marks = {"torch": (1.5, 1.8), "native": (2.4, 4.5)}
BFLOAT16_MARKS: Marks = {"native": (None, 4)}
WIDE_MARKS: Marks = {"torch": (2, 3), "native": (4, 6)}


@dataclass
class _Counted:
    """A sampler and the completion tokens that it kept, call by call."""

    sampler: Callable[[int], int]
    calls: int = 0
    tokens: tuple[int, ...] = ()

    def __call__(self) -> None:
        self.calls += 1
        self.tokens = (*self.tokens, self.sampler(self.calls))


@dataclass(frozen=True)
class Race:
    """Tokens per second of several samplers.

    Attributes:
        timings: Seconds by name and repeat.
        tokens: Completion tokens kept, by name and repeat.
    """

    timings: Timings
    tokens: Mapping[str, tuple[int, ...]]

    def rate_of(self, name: str) -> Spread:
        """Kept tokens per second."""
        return spread(self._rates(name))

    def ratio(self, name: str, to: str = _SERVED) -> Spread:
        """How many times more tokens per second than another, repeat by repeat."""
        pairs = zip(self._rates(name), self._rates(to), strict=True)
        return spread([mine / theirs for mine, theirs in pairs])

    def _rates(self, name: str) -> list[float]:
        seconds = self.timings.seconds[name]
        return [n / t for n, t in zip(self.tokens[name], seconds, strict=True)]


def race(
    model: LanguageModel, sizes: models.Sizes, settings: Settings, *, repeats: int | None = None
) -> Race:
    """Our kernels and `generate` on the prompts of one step, in turn."""
    prompts = models.prompts(sizes)

    def decode(kernel: ours.Kernel) -> Callable[[int], int]:
        def sampler(call: int) -> int:
            models.like_a_step(model)
            drawn = ours.sample(
                model, prompts, max_new_tokens=sizes.new_tokens, seed=call, kernel=kernel
            )
            return drawn.n_tokens

        return sampler

    def generate(_: int) -> int:
        models.like_a_step(model)
        tokens = peers.generate(model, prompts, max_new_tokens=sizes.new_tokens)
        return peers.kept_tokens(model, tokens)

    work = {kernel: _Counted(decode(kernel)) for kernel in ours.kernels(model)}
    work[_SERVED] = _Counted(generate)
    repeats = repeats or settings.repeats
    timings = interleave(work, repeats=repeats, warmup=settings.warmup, device=settings.device)
    return Race(timings, {name: counted.tokens[-repeats:] for name, counted in work.items()})


def run(settings: Settings) -> Section:
    """Rows of the summary and three scaling curves."""
    small, wide = _sizes(settings)
    parts: dict[str, Callable[[], list[Row]]] = {
        "small": lambda: _rows(small, settings, "1 M student, V 256, float32", FLOAT32_MARKS),
        "bf16": lambda: _rows(
            small, settings, "1 M student, V 256, bfloat16", BFLOAT16_MARKS, torch.bfloat16
        ),
        "wide": lambda: _rows(wide, settings, "29 M model, V 49,152, float32", WIDE_MARKS),
        "ragged": lambda: _ragged(small, settings),
    }
    return Section(
        name="rollouts",
        title="Rollouts against generate of transformers (DynamicCache, sampling at temperature 1)",
        command="python -m benchmarks.rollouts",
        rows=[row for name, part in parts.items() if settings.wants(name) for row in part()],
        tables=_curves(small, settings) if settings.wants("curves") else [],
    )


def _sizes(settings: Settings) -> tuple[models.Sizes, models.Sizes]:
    if settings.quick:
        return models.QUICK, models.QUICK
    if settings.preset == "paper":
        return models.PAPER, models.PAPER
    return models.SMALL, replace(models.WIDE, rows=32)


def _rows(
    sizes: models.Sizes,
    settings: Settings,
    what: str,
    marks: Marks,
    dtype: torch.dtype = torch.float32,
) -> list[Row]:
    model = models.random_model(sizes.student, seed=1, dtype=dtype, device=settings.device)
    found = race(model, sizes, settings)
    work = f"rollouts, {what}, {sizes.rows} x {sizes.new_tokens}"
    return [
        _row(f"{work}, {kernel}", found, kernel, marks.get(kernel, (None, None)))
        for kernel in ours.kernels(model)
    ]


def _row(work: str, found: Race, kernel: str, marks: tuple[float | None, float | None]) -> Row:
    return Row(
        work,
        ours=rate(1, 1 / found.rate_of(kernel).median),
        peer=f"generate {rate(1, 1 / found.rate_of(_SERVED).median)}",
        measured=found.ratio(kernel),
        must=marks[0],
        aim=marks[1],
    )


def _ragged(sizes: models.Sizes, settings: Settings) -> list[Row]:
    """Rows that stop with a chance of 1/98 per token: `generate` waits for the longest."""
    rows, limit = (4, 16) if settings.quick else (128, LIMIT)
    ragged = replace(sizes, rows=rows, new_tokens=limit)
    model = models.random_model(sizes.student, seed=1, stop=STOP, device=settings.device)
    found = race(model, ragged, settings)
    lengths = ours.sample(model, models.prompts(ragged), max_new_tokens=limit, seed=0).lengths
    mean, deviation = float(lengths.double().mean()), float(lengths.double().std())
    work = f"rollouts, ragged ({mean:.0f} ± {deviation:.0f} tokens, limit {limit}), {rows} rows"
    best = max(ours.kernels(model), key=lambda kernel: found.rate_of(kernel).median)
    return [
        _row(f"{work}, {kernel}", found, kernel, (4, 10) if kernel == best else (None, None))
        for kernel in ours.kernels(model)
    ]


def _curves(sizes: models.Sizes, settings: Settings) -> list[Table]:
    model = models.random_model(sizes.student, seed=1, device=settings.device)
    batches = (1, 2) if settings.quick else (1, 8, 32, 128)
    lengths = (2, 4) if settings.quick else (32, 96, 384)
    by_batch = [(f"{n}", replace(sizes, rows=n)) for n in batches]
    by_length = [(f"{n}", replace(sizes, new_tokens=n)) for n in lengths]
    tables = [
        _curve("Rollouts by batch", "rows", model, by_batch, settings),
        _curve("Rollouts by length", "new tokens", model, by_length, settings),
    ]
    vocabularies = (64, 128) if settings.quick else (256, 4096, 49152)
    lines = []
    for vocabulary in vocabularies:
        changed = models.scaled(replace(sizes, new_tokens=32), "vocabulary", vocabulary)
        other = models.random_model(changed.student, seed=1, device=settings.device)
        lines.append(_line(f"{vocabulary:,}", other, changed, settings))
    tables.append(Table("Rollouts by vocabulary", _columns("vocabulary", model), lines))
    return tables


def _columns(name: str, model: LanguageModel) -> list[str]:
    kernels = ours.kernels(model)
    names = [f"{kernel} / generate" for kernel in kernels]
    return [name, "generate, tokens/s", *(f"{k}, tokens/s" for k in kernels), *names]


def _curve(
    title: str,
    name: str,
    model: LanguageModel,
    points: list[tuple[str, models.Sizes]],
    settings: Settings,
) -> Table:
    lines = [_line(label, model, sizes, settings) for label, sizes in points]
    return Table(title, _columns(name, model), lines)


def _line(label: str, model: LanguageModel, sizes: models.Sizes, settings: Settings) -> list[str]:
    found = race(model, sizes, settings, repeats=min(3, settings.repeats))
    kernels = ours.kernels(model)
    rates = [figure(found.rate_of(name).median) for name in (_SERVED, *kernels)]
    return [label, *rates, *(f"{figure(found.ratio(kernel).median)}x" for kernel in kernels)]


if __name__ == "__main__":
    main(run, __doc__)
