"""What printed figures share: axes, cells, lines, legends; matplotlib without anything global."""
# pyright: basic
# matplotlib's annotations are partial, so strict checking of this file would check its guesses.

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fractionate.analysis.designs import Design
from fractionate.analysis.evidence import rates
from fractionate.analysis.panels import (
    GREY,
    Point,
    axis_label,
    colours,
    points,
    rate_levels,
    rate_place,
    untrained,
)
from fractionate.analysis.plots import NULL, SPARSE
from fractionate.analysis.runs import Runs

MARKERS = ("o", "s", "D", "^", "*", "P")
STYLES = ("-", "--", ":", "-.")
KL_COLOURS = {"forward": "#2f6fb7", "reverse": "#cf5a36"}
WIDTH = 7.2
"""Of a figure over two columns, in inches."""

Shelf = Sequence[Design]


class NotDrawn(ValueError):
    """A figure that these records do not hold; the message says what is lacking."""


def pick(shelf: Shelf, fits: Callable[[Design], bool], lacks: str) -> Design:
    """The design closest to the paper's that fits.

    Raises:
        NotDrawn: None does.
    """
    found = next((design for design in shelf if fits(design)), None)
    if found is None:
        raise NotDrawn(f"needs {lacks}")
    return found


def require(runs: Runs, *metrics: str) -> None:
    """Refuse to draw what was not measured.

    Raises:
        NotDrawn: Names the first metric that is not there.
    """
    for metric in metrics:
        if not runs.measured(metric):
            raise NotDrawn(f"{metric} was not measured in every cell")


def retained(runs: Runs) -> str | None:
    """What is kept of prior abilities: skills, or benchmarks; None where neither was measured."""
    return next((name for name in ("skills", "ood") if runs.measured(name)), None)


def outcomes(runs: Runs) -> list[str]:
    """Accuracy, prior abilities and sparsity, as far as they were measured.

    Raises:
        NotDrawn: None was.
    """
    held = [name for name in ("accuracy", retained(runs), SPARSE) if name and runs.measured(name)]
    if not held:
        raise NotDrawn("neither accuracy nor prior abilities nor sparsity were measured")
    return held


def of_rate(runs: Runs, *, high: bool) -> float | None:
    """The low or the high rate; None where there is one."""
    held = {arm.rate for arm in runs.arms if arm.rate is not None}
    return rates(runs)[high] if len(held) > 1 else None


def axes_of(
    panels: int, height: float = 2.5, *, share: bool = False, of: Runs | None = None
) -> tuple[Figure, list[Axes]]:
    """An empty figure with panels side by side; its label is the study whose runs it shows."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.set_label(of.study.name if of is not None and of.study is not None else "")
    axes = figure.subplots(1, panels, squeeze=False, sharey=share)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(visible=True, linewidth=0.4, color="#d5d8dc")
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=7)
        axis.xaxis.label.set_size(8)
        axis.yaxis.label.set_size(8)
        axis.title.set_size(8)
    return figure, list(axes)


def bars(point: Point) -> list[list[float]]:
    """Error bars of one point."""
    return [[point.mean - point.low], [point.high - point.mean]]


def legend(figure: Figure, runs: Runs) -> None:
    """Colours of the series and markers of the rates."""
    handles = [
        Line2D([], [], color=colour, marker="o", linestyle="", markersize=5, label=name)
        for name, colour in colours(runs).items()
    ]
    handles += [
        Line2D(
            [], [], color=GREY, marker=MARKERS[i % 6], linestyle="", markersize=5, label=f"{r:g}"
        )
        for i, r in enumerate(rate_levels(runs))
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=7, frameon=False)


def labelled(figure: Figure, handles: Sequence[Line2D]) -> None:
    """A legend of one's own."""
    figure.legend(
        handles=list(handles), loc="outside lower center", ncols=6, fontsize=7, frameon=False
    )


def cells(axis: Axes, runs: Runs, metric: str) -> None:
    """Every arm at its series' place, shifted by its rate; dotted line: the untrained student."""
    names, levels = list(colours(runs)), max(1, len(rate_levels(runs)))

    def place(point: Point) -> float:
        shift = (rate_place(runs, point.arm) - (levels - 1) / 2) * 0.62 / levels
        return names.index(point.arm.series) + shift

    for point in points(runs, metric):
        x, colour = place(point), colours(runs)[point.arm.series]
        marker = MARKERS[rate_place(runs, point.arm) % len(MARKERS)]
        axis.plot([x] * len(point.seeds), point.seeds, marker, color=colour, ms=2.5, alpha=0.35)
        axis.errorbar(x, point.mean, bars(point), fmt=marker, color=colour, ms=5, lw=1)
    if metric == SPARSE and runs.measured(NULL):
        for point in points(runs, NULL):
            axis.plot([place(point)], [point.mean], "_", color=GREY, ms=9, mew=1.6)
    base = untrained(runs, metric)
    if base is not None:
        axis.axhline(base, color=GREY, lw=0.8, ls=":")
    axis.set_xticks(range(len(names)), [name.replace(" · ", "\n") for name in names])
    axis.set_ylabel(axis_label(metric))


def plane(axis: Axes, runs: Runs, kept: str) -> None:
    """Accuracy against prior abilities; lines lead from the untrained student (hollow)."""
    across = {p.arm.key: p for p in points(runs, "accuracy")}
    start = untrained(runs, "accuracy"), untrained(runs, kept)
    for y in points(runs, kept):
        x = across[y.arm.key]
        colour = colours(runs)[y.arm.series]
        marker = MARKERS[rate_place(runs, y.arm) % len(MARKERS)]
        if start[0] is not None and start[1] is not None:
            axis.plot([start[0], x.mean], [start[1], y.mean], color=colour, lw=0.7, alpha=0.4)
        axis.errorbar(x.mean, y.mean, bars(y), bars(x), fmt=marker, color=colour, ms=5, lw=1)
    if start[0] is not None and start[1] is not None:
        axis.plot([start[0]], [start[1]], "o", mfc="none", mec=GREY, ms=7, mew=1.4)
    axis.set_xlabel(axis_label("accuracy"))
    axis.set_ylabel(axis_label(kept))


def line(axis: Axes, x: list[float], found: list[Point], colour: str, style: str = "-") -> None:
    """Means with their intervals along a continuous factor."""
    low = [point.mean - point.low for point in found]
    high = [point.high - point.mean for point in found]
    means = [point.mean for point in found]
    axis.errorbar(x, means, [low, high], fmt="o" + style, color=colour, ms=4, lw=1.2)
