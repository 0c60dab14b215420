"""The figures for papers: matplotlib, vector files, nothing global."""
# pyright: basic
# matplotlib's annotations are partial, so strict checking of this file would check its guesses.

from collections.abc import Callable, Mapping
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fractionate.analysis.panels import (
    GREY,
    Point,
    axis_label,
    by_series,
    colours,
    points,
    rate_levels,
    rate_place,
    step_curves,
    untrained,
)
from fractionate.analysis.plots import NULL, RETAINED, SPARSE
from fractionate.analysis.runs import Runs

MARKERS = ("o", "s", "D", "^", "*", "P")
STYLES = ("-", "--", ":", "-.")
WIDTH = 7.2
"""Of a figure over two columns, in inches."""


def save_figures(
    runs: Runs, folder: str | Path, *, formats: tuple[str, ...] = ("pdf",)
) -> list[Path]:
    """Draw the paper's figures from our records.

    Args:
        runs: The study.
        folder: Where to write; made if needed.
        formats: File endings that matplotlib knows, e.g. "pdf", "svg", "png".

    Returns:
        The files written; figures that the study has no data for are left out.

    Raises:
        OSError: The folder cannot be written.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, draw in _DRAW.items():
        for ending in formats:
            # A figure is laid out anew when it is saved, so each format gets its own.
            figure = draw(runs)
            if figure is None:
                break
            path = target / f"{name}.{ending}"
            # Without date and random ids, the same records give the same bytes.
            stamp = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(ending, {})
            with rc_context({"svg.hashsalt": name}):
                figure.savefig(path, bbox_inches="tight", dpi=200, metadata=stamp)
            written.append(path)
    return written


def _figure(panels: int, height: float = 2.5, *, share: bool = False) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False, sharey=share)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(visible=True, linewidth=0.4, color="#d5d8dc")
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=7)
        axis.xaxis.label.set_size(8)
        axis.yaxis.label.set_size(8)
    return figure, list(axes)


def _bars(point: Point) -> list[list[float]]:
    return [[point.mean - point.low], [point.high - point.mean]]


def _legend(figure: Figure, runs: Runs) -> None:
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
    figure.legend(handles=handles, loc="outside upper center", ncols=6, fontsize=7, frameon=False)


def _cells(axis: Axes, runs: Runs, metric: str) -> None:
    names, rates = list(colours(runs)), max(1, len(rate_levels(runs)))

    def place(point: Point) -> float:
        shift = (rate_place(runs, point.arm) - (rates - 1) / 2) * 0.62 / rates
        return names.index(point.arm.series) + shift

    for point in points(runs, metric):
        x, colour = place(point), colours(runs)[point.arm.series]
        marker = MARKERS[rate_place(runs, point.arm) % len(MARKERS)]
        axis.plot([x] * len(point.seeds), point.seeds, marker, color=colour, ms=2.5, alpha=0.35)
        axis.errorbar(x, point.mean, _bars(point), fmt=marker, color=colour, ms=5, lw=1)
    if metric == SPARSE and runs.measured(NULL):
        for point in points(runs, NULL):
            axis.plot([place(point)], [point.mean], "_", color=GREY, ms=9, mew=1.6)
    base = untrained(runs, metric)
    if base is not None:
        axis.axhline(base, color=GREY, lw=0.8, ls=":")
    axis.set_xticks(range(len(names)), [name.replace(" · ", "\n") for name in names])
    axis.set_ylabel(axis_label(metric))


def _plane(axis: Axes, runs: Runs) -> None:
    across = {p.arm.key: p for p in points(runs, "accuracy")}
    start = untrained(runs, "accuracy"), untrained(runs, RETAINED)
    for y in points(runs, RETAINED):
        x = across[y.arm.key]
        colour = colours(runs)[y.arm.series]
        marker = MARKERS[rate_place(runs, y.arm) % len(MARKERS)]
        if start[0] is not None and start[1] is not None:
            axis.plot([start[0], x.mean], [start[1], y.mean], color=colour, lw=0.7, alpha=0.4)
        axis.errorbar(x.mean, y.mean, _bars(y), _bars(x), fmt=marker, color=colour, ms=5, lw=1)
    if start[0] is not None and start[1] is not None:
        axis.plot([start[0]], [start[1]], "o", mfc="none", mec=GREY, ms=7, mew=1.4)
    axis.set_xlabel(axis_label("accuracy"))
    axis.set_ylabel(axis_label(RETAINED))


def _main(runs: Runs) -> Figure | None:
    if not runs.measured("accuracy"):
        return None
    draw: list[Callable[[Axes], None]] = [lambda axis: _cells(axis, runs, "accuracy")]
    if runs.measured(RETAINED):
        draw.append(lambda axis: _plane(axis, runs))
    if runs.measured(SPARSE):
        draw.append(lambda axis: _cells(axis, runs, SPARSE))
    figure, axes = _figure(len(draw))
    for axis, one in zip(axes, draw, strict=True):
        one(axis)
    _legend(figure, runs)
    return figure


def _outcomes(runs: Runs) -> list[str]:
    return [metric for metric in ("accuracy", RETAINED, SPARSE) if runs.measured(metric)]


def _rates(runs: Runs) -> Figure | None:
    levels = rate_levels(runs)
    if len(levels) < 2:
        return None
    outcomes = _outcomes(runs)
    figure, axes = _figure(len(outcomes))
    for axis, metric in zip(axes, outcomes, strict=True):
        for name, found in by_series(points(runs, metric)).items():
            _line(axis, [point.arm.rate or 0.0 for point in found], found, colours(runs)[name])
        if metric == SPARSE and runs.measured(NULL):
            null = {p.arm.rate or 0.0: p.mean for p in points(runs, NULL)}
            axis.plot(sorted(null), [null[rate] for rate in sorted(null)], "--", color=GREY, lw=1)
        axis.set_xscale("log")
        axis.set_xticks(levels, [f"{rate:g}" for rate in levels])
        axis.set_xticks([], minor=True)
        axis.set_xlabel("learning rate")
        axis.set_ylabel(axis_label(metric))
    _legend(figure, runs)
    return figure


def _line(axis: Axes, x: list[float], found: list[Point], colour: str, style: str = "-") -> None:
    low = [point.mean - point.low for point in found]
    high = [point.high - point.mean for point in found]
    means = [point.mean for point in found]
    axis.errorbar(x, means, [low, high], fmt="o" + style, color=colour, ms=4, lw=1.2)


def _spectrum(runs: Runs) -> Figure | None:
    if len({arm.lam for arm in runs.arms if arm.lam is not None}) < 2:
        return None
    outcomes = _outcomes(runs)
    figure, axes = _figure(len(outcomes))
    for axis, metric in zip(axes, outcomes, strict=True):
        lines: dict[tuple[str, int], list[Point]] = {}
        for point in points(runs, metric):
            if point.arm.lam is not None:
                key = point.arm.kl or "", rate_place(runs, point.arm)
                lines.setdefault(key, []).append(point)
        for (kl, place), found in lines.items():
            ordered = sorted(found, key=lambda point: point.arm.lam or 0.0)
            colour = "#2f6fb7" if kl == "forward" else "#cf5a36"
            x = [point.arm.lam or 0.0 for point in ordered]
            _line(axis, x, ordered, colour, STYLES[place % len(STYLES)])
        axis.set_xlabel("λ")
        axis.set_ylabel(axis_label(metric))
    return figure


def _gradients(runs: Runs) -> Figure | None:
    curves = step_curves(runs, "grad_norm", single=True)
    if not any(y > 0 for curve in curves for y in curve.y):
        return None
    names = list(dict.fromkeys(curve.arm.series for curve in curves))[:6]
    figure, axes = _figure(len(names), 2.2, share=True)
    clip = runs.study.optimizer.clip if runs.study else None
    for axis, name in zip(axes, names, strict=True):
        for curve in curves:
            if curve.arm.series == name:
                thin = curve.seed is not None
                style = "-" if thin else STYLES[rate_place(runs, curve.arm) % len(STYLES)]
                axis.plot(
                    curve.x, curve.y, style, color=colours(runs)[name],
                    lw=0.4 if thin else 1.3, alpha=0.5 if thin else 1.0,
                )  # fmt: skip
        if clip is not None:
            axis.axhline(clip, color=GREY, lw=0.9, ls=":")
        axis.set_title(name, fontsize=8)
        axis.set_xlabel("step")
    axes[0].set_yscale("log")
    axes[0].yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes[0].yaxis.set_minor_formatter(NullFormatter())
    axes[0].set_ylabel("gradient norm before clipping")
    return figure


_DRAW: Mapping[str, Callable[[Runs], Figure | None]] = {
    "fig1": _main,
    "fig2": _rates,
    "fig3": _spectrum,
    "gradients": _gradients,
}
