"""One training step against TRL: on-policy and off-policy, as it comes and tuned.

The real loops of both sides take their steps in turn. Every step is over the same number of
completion tokens, which is checked. TRL gets one generation call per step, no gradient
checkpointing and no logging; ours looks at no diagnostics, except where a row says so.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import models, ours, peers
from benchmarks.common import Settings, Timings, seconds_of
from benchmarks.results import Row, Section, Table, figure, main, ratio_row
from benchmarks.turns import Loop, take_turns
from fractionate.models.load import LanguageModel

BF16_TEACHER = "TRL, bf16 teacher"
Training = Callable[[Callable[[], None]], float]
"""Trains; calls what it is given after every step; returns the tokens of a step."""


class Bench:
    """Loops over one pair of models and one set of prompts.

    Args:
        sizes: Of models and steps.
        settings: Of the run.
        make: Makes a fresh student and the teacher.
    """

    def __init__(
        self,
        sizes: models.Sizes,
        settings: Settings,
        make: Callable[[], tuple[LanguageModel, LanguageModel]],
    ) -> None:
        self.sizes, self.settings = sizes, settings
        self.steps = settings.warmup + settings.repeats
        self._make = make
        self.teacher = make()[1]
        self.rounded = peers.in_bfloat16(self.teacher)
        self.prompts = models.prompts(sizes, self.steps)
        self._tokens: dict[str, float] = {}

    def race(self, loops: Mapping[str, Training]) -> Timings:
        """Let the loops take turns; all must have trained on the same number of tokens.

        Raises:
            ValueError: They have not.
        """
        settings = self.settings
        timings = take_turns(
            {name: self._counting(name, loop) for name, loop in loops.items()},
            steps=settings.repeats,
            warmup=settings.warmup,
            threads=settings.threads,
            device=settings.device,
        )
        expected = float(self.sizes.rows * self.sizes.new_tokens)
        if any(tokens != expected for tokens in self._tokens.values()):
            raise ValueError(f"unequal work: {self._tokens} tokens per step, not {expected}")
        return timings

    def _counting(self, name: str, loop: Training) -> Loop:
        def counted(step_done: Callable[[], None]) -> None:
            self._tokens[name] = loop(step_done)

        return counted

    # ------------------------------------------------------------ ours

    def our_run(
        self, precision: Mapping[str, str] = ours.FLOAT32, *, rounded: bool = False
    ) -> ours.OurRun:
        """A run of ours with a fresh student."""
        return ours.OurRun(
            student=ours.fastest(self._make()[0]),
            teacher=ours.fastest(self.rounded if rounded else self.teacher),
            steps=self.steps,
            rows=self.sizes.rows,
            new_tokens=self.sizes.new_tokens,
            precision=tuple(precision.items()),
        )

    def our_step(self, run: ours.OurRun) -> Training:
        """On-policy steps of ours."""
        return lambda step_done: ours.on_policy(run, self.prompts, step_done)

    def our_cached_step(self, run: ours.OurRun, corpus: Path) -> Training:
        """Off-policy steps of ours, from a shared corpus."""
        return lambda step_done: ours.off_policy(run, self.prompts, corpus, step_done)

    # ------------------------------------------------------------ TRL

    def trl_run(self, *, rounded: bool = False, autocast: bool = False) -> peers.TrlRun:
        """A run of TRL with a fresh student."""
        return peers.TrlRun(
            student=self._make()[0],
            teacher=self.rounded if rounded else self.teacher,
            steps=self.steps,
            rows=self.sizes.rows,
            new_tokens=self.sizes.new_tokens,
            autocast=autocast,
            device=self.settings.device,
        )

    def trl_step(self, run: peers.TrlRun) -> Training:
        """Steps of DistillationTrainer."""
        return lambda step_done: peers.on_policy(run, self.prompts, step_done)

    def gkd_step(self, run: peers.TrlRun, texts: Sequence[Sequence[int]] | None) -> Training:
        """Steps of GKDTrainer, on texts made before or with seq_kd."""
        return lambda step_done: peers.off_policy(run, self.prompts, texts, step_done)


# ---------------------------------------------------------------- one function per part


@dataclass(frozen=True)
class Part:
    """What one part of the benchmark found."""

    rows: Sequence[Row]
    tables: Sequence[Table] = ()


def on_policy(sizes: models.Sizes, settings: Settings, what: str, marks: tuple[float, ...]) -> Part:
    """On-policy steps in both precisions, against TRL as it comes and tuned.

    Args:
        sizes: Of models and steps.
        settings: Of the run.
        what: Names the work.
        marks: must and aim in float32, then in bfloat16.
    """
    bench = Bench(sizes, settings, lambda: models.pair(sizes, device=settings.device))
    watched = replace(bench.our_run(), diagnostics=2048)
    timings = bench.race(
        {
            "ours": bench.our_step(bench.our_run()),
            "ours, diagnostics": bench.our_step(watched),
            "ours, bf16": bench.our_step(bench.our_run(ours.BFLOAT16, rounded=True)),
            "TRL": bench.trl_step(bench.trl_run()),
            "TRL, bf16=True": bench.trl_step(bench.trl_run(autocast=True)),
            BF16_TEACHER: bench.trl_step(bench.trl_run(rounded=True)),
        }
    )
    work = f"on-policy step, {what}, {sizes.rows} x {sizes.new_tokens}"
    must, aim, must_bf16, aim_bf16 = marks
    rows = [
        ratio_row(f"{work}, float32", timings, peer="TRL", must=must, aim=aim),
        ratio_row(
            f"{work}, float32, with our diagnostics", timings, peer="TRL", ours="ours, diagnostics"
        ),
        ratio_row(
            f"{work}, bf16 on both sides",
            timings,
            peer=BF16_TEACHER,
            ours="ours, bf16",
            must=must_bf16,
            aim=aim_bf16,
        ),
        ratio_row(f"{work}, bf16 on both sides", timings, peer="TRL, bf16=True", ours="ours, bf16"),
    ]
    return Part(rows)


def off_policy(sizes: models.Sizes, settings: Settings) -> Part:
    """Off-policy steps: the teacher's work once for all cells, against GKD in every cell."""
    bench = Bench(sizes, settings, lambda: models.pair(sizes, device=settings.device))
    tokens = peers.generate(bench.teacher, bench.prompts, max_new_tokens=sizes.new_tokens)
    texts = tokens.tolist()
    with tempfile.TemporaryDirectory() as name:
        run = bench.our_run()
        corpus = seconds_of(
            lambda: ours.shared_corpus(run, bench.prompts, Path(name)), settings.device
        )
        timings = bench.race(
            {
                "ours": bench.our_cached_step(run, Path(name)),
                "GKD": bench.gkd_step(bench.trl_run(), texts),
                "GKD, bf16 teacher": bench.gkd_step(bench.trl_run(rounded=True), texts),
                "GKD, seq_kd": bench.gkd_step(bench.trl_run(), None),
            }
        )
    work = f"off-policy step, V {sizes.student.vocabulary:,}, {sizes.rows} x {sizes.new_tokens}"
    shared = f"{work}, teacher's work shared, float32"
    rows = [
        ratio_row(f"{shared}, against a dataset", timings, peer="GKD", must=3, aim=3.8),
        ratio_row(f"{shared}, against a dataset", timings, peer="GKD, bf16 teacher"),
        ratio_row(f"{shared}, against seq_kd", timings, peer="GKD, seq_kd", must=6.5, aim=10),
    ]
    return Part(rows, [_by_cells(timings, corpus / bench.steps)])


def _by_cells(timings: Timings, corpus: float) -> Table:
    """What a step of one cell costs when the corpus is paid by so many cells."""
    own, dataset, seq_kd = (timings.of(name).median for name in ("ours", "GKD", "GKD, seq_kd"))
    lines = []
    for cells in (1, 2, 4, 8, 16):
        cost = own + corpus / cells
        lines.append(
            [
                f"{cells}",
                f"{figure(1e3 * cost)}",
                f"{figure(dataset / cost)}x",
                f"{figure(seq_kd / cost)}x",
            ]
        )
    return Table(
        f"Off-policy step by number of cells that share the corpus ({figure(1e3 * corpus)} ms of "
        "decoding per step, counted on our side; GKD's dataset is made before and not counted)",
        ["cells", "ours with its share, ms", "GKD on a dataset / ours", "GKD seq_kd / ours"],
        lines,
    )


def smollm2(settings: Settings) -> Part:
    """A real checkpoint teaches itself: what counts is the work, not what is learnt."""
    model = models.smollm2()
    if model is None:
        return Part([])
    sizes = models.smollm2_sizes()
    bench = Bench(sizes, settings, lambda: (models.copied(model), model))
    timings = bench.race(
        {"ours": bench.our_step(bench.our_run()), "TRL": bench.trl_step(bench.trl_run())}
    )
    work = f"on-policy step, SmolLM2-135M, {sizes.rows} x {sizes.new_tokens}, float32"
    return Part([ratio_row(work, timings, peer="TRL", must=1.8, aim=3.5)])


def scaling(settings: Settings) -> Part:
    """On-policy steps in float32 by batch, length and vocabulary."""
    small = models.QUICK if settings.quick else models.SMALL
    short = replace(settings, repeats=min(2, settings.repeats), warmup=1)
    tables = []
    for field, values in _SCALES.items():
        chosen = values[:1] if settings.quick else values
        lines = [
            _point(models.scaled(small, field, value), f"{value:,}", short) for value in chosen
        ]
        columns = [field.replace("_", " "), "ours, ms", "TRL, ms", "TRL / ours"]
        tables.append(Table(f"On-policy step by {columns[0]}", columns, lines))
    return Part([], tables)


_SCALES = {"rows": (4, 16, 64), "new_tokens": (32, 192), "vocabulary": (256, 4096, 32768)}


def _point(sizes: models.Sizes, label: str, settings: Settings) -> list[str]:
    bench = Bench(sizes, settings, lambda: models.pair(sizes, device=settings.device))
    timings = bench.race(
        {"ours": bench.our_step(bench.our_run()), "TRL": bench.trl_step(bench.trl_run())}
    )
    times = [figure(1e3 * timings.of(name).median) for name in ("ours", "TRL")]
    return [label, *times, f"{figure(timings.ratio('TRL', 'ours').median)}x"]


# ---------------------------------------------------------------- all of it


def _parts(settings: Settings) -> dict[str, Callable[[], Part]]:
    if settings.preset == "paper":
        paper = models.PAPER
        return {
            "on-policy": lambda: on_policy(paper, settings, "1B from 8B, V 128,256", (1, 1, 1, 1)),
            "off-policy": lambda: off_policy(paper, settings),
        }
    small, wide = (models.QUICK,) * 2 if settings.quick else (models.SMALL, models.WIDE)
    return {
        "on-policy": lambda: on_policy(small, settings, "V 256", (1.35, 1.6, 1.5, 2.5)),
        "off-policy": lambda: off_policy(small, settings),
        "wide": lambda: on_policy(wide, settings, "V 49,152", (2.4, 3.2, 3.5, 6)),
        **({} if settings.quick else {"smollm2": lambda: smollm2(settings)}),
        "scaling": lambda: scaling(settings),
    }


def run(settings: Settings) -> Section:
    """All parts, or some."""
    peers.quiet()
    parts = [part() for name, part in _parts(settings).items() if settings.wants(name)]
    return Section(
        name="step",
        title="Training steps against TRL's DistillationTrainer and GKDTrainer",
        command="python -m benchmarks.step",
        rows=[row for part in parts for row in part.rows],
        tables=[table for part in parts for table in part.tables],
    )


if __name__ == "__main__":
    main(run, __doc__)
