"""Figures of final values: cells and trade-off (1), learning rate (2), rollout spectrum (3)."""

from collections.abc import Callable

from fractionate.analysis.panels import (
    DASHES,
    GREY,
    Point,
    axis_label,
    by_series,
    colours,
    points,
    rate_levels,
    rate_place,
    untrained,
)
from fractionate.analysis.plots import (
    NULL,
    RETAINED,
    SPARSE,
    SYMBOLS,
    Figure,
    Spec,
    error_bars,
    hover,
    interval_note,
    legend_keys,
    on,
    panel_layout,
    plain,
)
from fractionate.analysis.runs import Runs


def _cells_panel(runs: Runs, metric: str, panel: int) -> tuple[list[Spec], Spec]:
    """Every cell at its series' place, shifted by its rate."""
    names = list(colours(runs))
    rates = max(1, len(rate_levels(runs)))
    palette = colours(runs)
    traces: list[Spec] = []
    for point in points(runs, metric):
        place = rate_place(runs, point.arm)
        x = names.index(point.arm.series) + (place - (rates - 1) / 2) * 0.62 / max(1, rates)
        symbol = SYMBOLS[place % len(SYMBOLS)]
        colour = palette[point.arm.series]
        common = {"type": "scatter", "mode": "markers", "showlegend": False, **on(panel)}
        traces.append(
            {
                **common, "x": [x] * len(point.seeds), "y": list(point.seeds),
                "marker": {"color": colour, "size": 5, "symbol": symbol, "opacity": 0.35},
                "hoverinfo": "skip",
            }
        )  # fmt: skip
        traces.append(
            {
                **common, "x": [x], "y": [point.mean], "error_y": error_bars([point]),
                "marker": {"color": colour, "size": 10, "symbol": symbol},
                "hovertemplate": f"{hover(runs, point)}: %{{y:.1f}}<extra></extra>",
            }
        )  # fmt: skip
    ticks = {
        "tickmode": "array",
        "tickvals": list(range(len(names))),
        "ticktext": [plain(name).replace(" · ", "<br>") for name in names],
        "range": [-0.6, len(names) - 0.4],
        "showgrid": False,
        "tickangle": 0 if len(names) <= 4 else 45,
    }
    return traces, ticks


def _base_line(runs: Runs, metric: str, panel: int) -> list[Spec]:
    value = untrained(runs, metric)
    if value is None:
        return []
    return [
        {
            "type": "scatter", "mode": "lines", "x": [-0.6, len(colours(runs)) - 0.4],
            "y": [value, value], "line": {"color": GREY, "width": 1, "dash": "dot"},
            "showlegend": False, "hovertemplate": "untrained student: %{y:.1f}<extra></extra>",
            **on(panel),
        }
    ]  # fmt: skip


def _plane(runs: Runs, panel: int) -> list[Spec]:
    """Target accuracy against retained skills; lines lead from the untrained student."""
    across = {p.arm.key: p for p in points(runs, "accuracy")}
    up = {p.arm.key: p for p in points(runs, RETAINED)}
    start = untrained(runs, "accuracy"), untrained(runs, RETAINED)
    palette = colours(runs)
    traces: list[Spec] = []
    for key, x in across.items():
        if key not in up:
            continue
        y, colour = up[key], palette[x.arm.series]
        symbol = SYMBOLS[rate_place(runs, x.arm) % len(SYMBOLS)]
        common = {"type": "scatter", "showlegend": False, **on(panel)}
        if start[0] is not None and start[1] is not None:
            traces.append(
                {
                    **common, "mode": "lines", "x": [start[0], x.mean], "y": [start[1], y.mean],
                    "line": {"color": colour, "width": 1}, "opacity": 0.4, "hoverinfo": "skip",
                }
            )  # fmt: skip
        traces.append(
            {
                **common, "mode": "markers", "x": [x.mean], "y": [y.mean],
                "error_x": error_bars([x]), "error_y": error_bars([y]),
                "marker": {"color": colour, "size": 10, "symbol": symbol},
                "hovertemplate": f"{hover(runs, x)}: %{{x:.1f}} / %{{y:.1f}}<extra></extra>",
            }
        )  # fmt: skip
    if start[0] is not None and start[1] is not None:
        hollow = {"color": GREY, "size": 12, "symbol": "circle-open", "line": {"width": 2}}
        traces.append(
            {
                "type": "scatter", "mode": "markers", "x": [start[0]], "y": [start[1]],
                "marker": hollow, "name": "untrained student", **on(panel),
                "hovertemplate": "untrained student: %{x:.1f} / %{y:.1f}<extra></extra>",
            }
        )  # fmt: skip
    return traces


def _null_marks(runs: Runs, panel: int) -> list[Spec]:
    """The rounding null of every cell as a short grey bar at the cell's place."""
    names, rates = list(colours(runs)), max(1, len(rate_levels(runs)))
    x: list[float] = []
    y: list[float] = []
    for point in points(runs, NULL):
        place = (rate_place(runs, point.arm) - (rates - 1) / 2) * 0.62 / max(1, rates)
        x.append(names.index(point.arm.series) + place)
        y.append(point.mean)
    if not x:
        return []
    marker = {"symbol": "line-ew-open", "size": 16, "color": GREY, "line": {"width": 2.5}}
    return [
        {
            "type": "scatter", "mode": "markers", "x": x, "y": y, "marker": marker,
            "name": "rounding alone", **on(panel),
            "hovertemplate": "rounding alone: %{y:.1f}<extra></extra>",
        }
    ]  # fmt: skip


def main_figure(runs: Runs) -> Figure:
    """Figure 1: accuracy per cell, accuracy against retained skills, sparsity with its null."""
    title = "Target accuracy, what was retained, and how sparse the update is"
    caption = (
        f"{interval_note(runs)} Left: accuracy per cell, dotted line the untrained student. "
        "Middle: lines lead from the untrained student (hollow circle). Right: share of weights "
        "that did not move; grey bars are what rounding alone predicts at that rate, so only the "
        "distance from the bar says anything about the method."
    )
    if not runs.measured("accuracy"):
        return Figure("fig1", title, caption, None, "accuracy was not measured in every cell")
    left, ticks = _cells_panel(runs, "accuracy", 0)
    data = [*legend_keys(runs), *left, *_base_line(runs, "accuracy", 0)]
    panels: list[tuple[Spec, Spec]] = [(ticks, {"title": {"text": axis_label("accuracy")}})]
    if runs.measured(RETAINED):
        data += _plane(runs, len(panels))
        panels.append(
            (
                {"title": {"text": axis_label("accuracy"), "standoff": 8}},
                {"title": {"text": axis_label(RETAINED)}},
            )
        )
    if runs.measured(SPARSE):
        right, ticks = _cells_panel(runs, SPARSE, len(panels))
        data += [*right, *_null_marks(runs, len(panels))]
        panels.append((ticks, {"title": {"text": "unmoved weights (τ 1e-6), %"}}))
    return Figure("fig1", title, caption, {"data": data, "layout": panel_layout(panels, 420)})


def _lines(
    runs: Runs, metric: str, panel: int, x_of: Callable[[Point], float | None], *, key: str
) -> list[Spec]:
    """One line per series over a continuous factor."""
    traces: list[Spec] = []
    groups: dict[str, list[Point]] = {}
    for name, found in by_series(points(runs, metric)).items():
        if key == "rate":
            groups[name] = found
        else:
            for point in found:
                groups.setdefault(f"{point.arm.kl} · {_rate_of(point)}", []).append(point)
    palette = colours(runs)
    for name, found in groups.items():
        placed = sorted(
            ((x, p) for p in found if (x := x_of(p)) is not None), key=lambda pair: pair[0]
        )
        if len(placed) < 2:
            continue
        colour = palette[found[0].arm.series] if key == "rate" else _kl_colour(found[0])
        dash = DASHES[rate_place(runs, found[0].arm) % len(DASHES)] if key != "rate" else "solid"
        each = [point for _, point in placed]
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": plain(name),
                "x": [x for x, _ in placed], "y": [point.mean for point in each],
                "error_y": error_bars(each), "marker": {"color": colour, "size": 8},
                "line": {"color": colour, "width": 2, "dash": dash}, "legendgroup": name,
                "showlegend": panel == 0, **on(panel),
                "hovertemplate": f"{plain(name)}: %{{y:.1f}}<extra></extra>",
            }
        )  # fmt: skip
    return traces


def _rate_of(point: Point) -> str:
    return f"rate {point.arm.rate:g}" if point.arm.rate is not None else "all rates"


def _kl_colour(point: Point) -> str:
    return "#2f6fb7" if point.arm.kl == "forward" else "#cf5a36"


def _outcomes(runs: Runs) -> list[str]:
    return [metric for metric in ("accuracy", RETAINED, SPARSE) if runs.measured(metric)]


def rate_figure(runs: Runs) -> Figure:
    """Figure 2: outcomes against the learning rate, one line per rollout x KL."""
    title = "Outcomes against the learning rate"
    caption = f"{interval_note(runs)} One line per rollout policy and KL direction; the rate is "
    caption += "on a logarithmic axis. Dashed grey: what rounding alone keeps unmoved."
    rates = rate_levels(runs)
    if len(rates) < 2:
        return Figure("fig2", title, caption, None, "this study has one learning rate")
    data: list[Spec] = []
    panels: list[tuple[Spec, Spec]] = []
    ticks = {
        "type": "log",
        "tickmode": "array",
        "tickvals": list(rates),
        "ticktext": [f"{rate:g}" for rate in rates],
        "title": {"text": "learning rate", "standoff": 8},
    }
    for panel, metric in enumerate(_outcomes(runs)):
        data += _lines(runs, metric, panel, lambda p: p.arm.rate, key="rate")
        panels.append((ticks, {"title": {"text": axis_label(metric)}}))
        if metric == SPARSE and runs.measured(NULL):
            null = {p.arm.rate: p.mean for p in points(runs, NULL) if p.arm.rate is not None}
            data.append(
                {
                    "type": "scatter", "mode": "lines", "x": sorted(null),
                    "y": [null[rate] for rate in sorted(null)], "name": "rounding alone",
                    "line": {"color": GREY, "dash": "dash", "width": 1.5}, **on(panel),
                }
            )  # fmt: skip
    return Figure("fig2", title, caption, {"data": data, "layout": panel_layout(panels)})


def spectrum_figure(runs: Runs) -> Figure:
    """Figure 3: outcomes along the rollout spectrum."""
    title = "Outcomes along the rollout spectrum"
    caption = f"{interval_note(runs)} λ = −1 samples from the teacher, +1 from the student."
    lams = {arm.lam for arm in runs.arms if arm.lam is not None}
    if len(lams) < 2:
        absent = "this study has no rollout spectrum: it compares policies, not points between them"
        return Figure("fig3", title, caption, None, absent)
    data: list[Spec] = []
    panels: list[tuple[Spec, Spec]] = []
    for panel, metric in enumerate(_outcomes(runs)):
        data += _lines(runs, metric, panel, lambda p: p.arm.lam, key="lam")
        axis = {"title": {"text": "λ (teacher − … + student)", "standoff": 8}}
        panels.append((axis, {"title": {"text": axis_label(metric)}}))
    return Figure("fig3", title, caption, {"data": data, "layout": panel_layout(panels)})
