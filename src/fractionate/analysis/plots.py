"""Parts of Plotly specifications that all figures share: layout, legend keys, error bars."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fractionate.analysis.panels import GREY, Point, colours, rate_levels
from fractionate.analysis.runs import Runs

Spec = dict[str, Any]

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "star", "cross")
"""Markers by rising learning rate; circles are filled, only the untrained student is hollow."""

RETAINED, SPARSE, NULL = "skills", "sparsity@1e-06", "rounding_null@1e-06"


def interval_note(runs: Runs) -> str:
    """What marks and their intervals are: over seeds, or over items where there is one seed."""
    if any(len(runs.of(arm)) > 1 for arm in runs.arms):
        return (
            "Large marks are means over seeds with 95 % intervals (t, spread pooled over the arms "
            "of one KL direction); faint marks are single runs."
        )
    return (
        "Marks are single runs, one seed each, with 95 % intervals over their items (none for "
        "weights, which are all counted): they say nothing about other seeds."
    )


@dataclass(frozen=True)
class Figure:
    """A figure of the report.

    Attributes:
        key: Stable name, e.g. "fig1".
        title: What it shows.
        caption: How to read it.
        spec: Plotly data and layout; None where the study has nothing to draw.
        absent: Why there is nothing to draw, or None.
    """

    key: str
    title: str
    caption: str
    spec: Spec | None
    absent: str | None = None


def _axis(place: int, panels: int, title: str, **more: object) -> Spec:
    gap = 0.075
    width = (1 - gap * (panels - 1)) / panels
    start = place * (width + gap)
    return {
        "domain": [round(start, 4), round(min(1.0, start + width), 4)],
        "title": {"text": title, "standoff": 8},
        "zeroline": False,
        **more,
    }


def _layout(x: Sequence[Spec], y: Sequence[Spec], height: int = 380) -> Spec:
    layout: Spec = {
        "height": height,
        "margin": {"l": 54, "r": 12, "t": 56, "b": 62},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12.5},
        "legend": {"orientation": "h", "y": 1.03, "yanchor": "bottom", "x": 0},
        "hovermode": "closest",
    }
    grid = {"gridcolor": "rgba(128,135,144,0.22)", "linecolor": "rgba(128,135,144,0.5)"}
    for i, (horizontal, vertical) in enumerate(zip(x, y, strict=True)):
        number = "" if i == 0 else str(i + 1)
        layout[f"xaxis{number}"] = {**grid, **horizontal, "anchor": f"y{number}"}
        layout[f"yaxis{number}"] = {**grid, "zeroline": False, **vertical, "anchor": f"x{number}"}
    return layout


def on(panel: int) -> Spec:
    """The axes of a panel, for a trace."""
    number = "" if panel == 0 else str(panel + 1)
    return {"xaxis": f"x{number}", "yaxis": f"y{number}"}


def error_bars(found: Sequence[Point]) -> Spec:
    """Intervals as error bars without caps."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [point.high - point.mean for point in found],
        "arrayminus": [point.mean - point.low for point in found],
        "thickness": 1.4,
        "width": 0,
    }


def _rate_name(runs: Runs, place: int) -> str:
    levels = rate_levels(runs)
    return f"rate {levels[place]:g}" if levels else "runs"


def legend_keys(runs: Runs) -> list[Spec]:
    """Legend entries: one per series colour, one per rate marker, and the untrained student."""
    entries = [_key(name, {"color": colour, "size": 9}) for name, colour in colours(runs).items()]
    entries += [
        _key(_rate_name(runs, i), {"color": GREY, "symbol": SYMBOLS[i % len(SYMBOLS)], "size": 9})
        for i in range(len(rate_levels(runs)))
    ]
    return entries


def _key(name: str, marker: Spec, **more: object) -> Spec:
    return {
        "type": "scatter", "mode": "markers", "x": [None], "y": [None],
        "name": name, "marker": marker, "hoverinfo": "skip", **more,
    }  # fmt: skip


def hover(runs: Runs, point: Point) -> str:
    """What a point is called under the pointer."""
    rate = f", rate {point.arm.rate:g}" if rate_levels(runs) and point.arm.rate else ""
    return f"{plain(point.arm.series)}{rate}"


def plain(text: str) -> str:
    """Plotly reads a few tags in labels; a label of ours is never one."""
    return text.replace("<", "‹").replace(">", "›")


def panel_layout(panels: Sequence[tuple[Spec, Spec]], height: int = 380) -> Spec:
    """Layout of panels side by side."""
    x = [{**_axis(i, len(panels), ""), **horizontal} for i, (horizontal, _) in enumerate(panels)]
    return _layout(x, [vertical for _, vertical in panels], height)
