"""Figures of training itself and of coverage: curves over steps and over k."""

import numpy as np

from fractionate.analysis.panels import (
    DASHES,
    GREY,
    Curve,
    axis_label,
    colours,
    evaluation_curves,
    rate_levels,
    rate_place,
    step_curves,
)
from fractionate.analysis.plots import (
    RETAINED,
    Figure,
    Spec,
    on,
    panel_layout,
    plain,
)
from fractionate.analysis.runs import Arm, Runs


def _curve(runs: Runs, curve: Curve, panel: int, *, markers: bool, legend: bool) -> Spec:
    name = curve.arm.series
    if rate_levels(runs) and curve.arm.rate is not None:
        name = f"{name} · {curve.arm.rate:g}"
    thin = curve.seed is not None
    dash = DASHES[rate_place(runs, curve.arm) % len(DASHES)]
    return {
        "type": "scatter", "mode": "lines+markers" if markers else "lines", "name": plain(name),
        "x": list(curve.x), "y": list(curve.y), "legendgroup": name, "showlegend": legend,
        "line": {
            "color": colours(runs)[curve.arm.series], "width": 0.7 if thin else 2,
            "dash": "solid" if thin else dash,
        },
        "opacity": 0.45 if thin else 1.0, **on(panel),
        "hovertemplate": f"{plain(name)}, step %{{x}}: %{{y:.3g}}<extra></extra>",
    }  # fmt: skip


def learning_figure(runs: Runs) -> Figure:
    """Learning curves: accuracy and skills where evaluated, and the divergence of every step."""
    title = "Learning curves"
    caption = (
        "Means over seeds; dashes tell the rates apart. KL(teacher ‖ student) is measured on the "
        "rollouts that each cell trains on, so levels compare within a rollout policy only."
    )
    data: list[Spec] = []
    panels: list[tuple[Spec, Spec]] = []
    for metric in ("accuracy", RETAINED):
        curves = evaluation_curves(runs, metric)
        if curves:
            first = not panels
            data += [_curve(runs, c, len(panels), markers=True, legend=first) for c in curves]
            axis = {"title": {"text": "step", "standoff": 8}}
            panels.append((axis, {"title": {"text": axis_label(metric)}}))
    curves = step_curves(runs, "forward_kl", single=False)
    what = "KL(teacher ‖ student), nats"
    if not curves:
        curves, what = step_curves(runs, "loss", single=False), "loss, nats"
    if curves:
        first = not panels
        data += [_curve(runs, c, len(panels), markers=False, legend=first) for c in curves]
        axis = {"title": {"text": "step", "standoff": 8}}
        panels.append((axis, {"title": {"text": what}, "type": "log", "dtick": "D2"}))
    if not panels:
        return Figure("learning", title, caption, None, "no step or intermediate evaluation")
    return Figure("learning", title, caption, {"data": data, "layout": panel_layout(panels, 400)})


def gradient_figure(runs: Runs) -> Figure:
    """Gradient norms before clipping, one panel per series."""
    title = "Gradient norms before clipping"
    caption = "Thin lines are single seeds, thick lines their means; dashes tell the rates apart."
    curves = step_curves(runs, "grad_norm", single=True)
    positive = [y for curve in curves for y in curve.y if y > 0]
    if not positive:
        return Figure("gradients", title, caption, None, "no gradient norm was recorded")
    names = list(dict.fromkeys(curve.arm.series for curve in curves))[:6]
    clip = runs.study.optimizer.clip if runs.study else None
    data: list[Spec] = []
    panels: list[tuple[Spec, Spec]] = []
    for panel, name in enumerate(names):
        own = [curve for curve in curves if curve.arm.series == name]
        data += [_curve(runs, c, panel, markers=False, legend=c.seed is None) for c in own]
        title_of = {"title": {"text": f"step<br>{plain(name)}", "standoff": 6}}
        vertical: Spec = {"type": "log", "dtick": "D2"}
        if panel:
            vertical |= {"matches": "y", "showticklabels": False}
        else:
            vertical["title"] = {"text": "gradient norm"}
        panels.append((title_of, vertical))
        if clip is not None:
            end = max(max(curve.x) for curve in own)
            data.append(
                {
                    "type": "scatter", "mode": "lines", "x": [0, end], "y": [clip, clip],
                    "line": {"color": GREY, "dash": "dot", "width": 1.5}, "name": f"clip {clip:g}",
                    "showlegend": panel == 0, "hoverinfo": "skip", **on(panel),
                }
            )  # fmt: skip
    if clip is not None:
        caption += f" Dotted line: the norm is clipped to {clip:g}."
    layout = panel_layout(panels, 400)
    layout["margin"] = {**layout["margin"], "b": 74}
    return Figure("gradients", title, caption, {"data": data, "layout": layout})


def _means(runs: Runs, arm: Arm, metrics: list[str]) -> list[float]:
    """Means over seeds in percent; empty where a run lacks one of the metrics."""
    held = [run.final for run in runs.of(arm)]
    if not all(metric in final for metric in metrics for final in held):
        return []
    return [100 * float(np.mean([final[m].value for final in held])) for m in metrics]


def coverage_figure(runs: Runs) -> Figure:
    """pass@k against k at every sampling temperature."""
    title = "Coverage: pass@k"
    caption = "Unbiased pass@k over items, means over seeds; dashes tell the rates apart."
    found: dict[str, list[int]] = {}
    for name in runs.runs[0].final:
        if name.startswith("pass@"):
            _, k, temperature = name.split("@")
            found.setdefault(temperature, []).append(int(k))
    data: list[Spec] = []
    panels: list[tuple[Spec, Spec]] = []
    for panel, (temperature, all_k) in enumerate(sorted(found.items())):
        for arm in runs.arms:
            values = _means(runs, arm, [f"pass@{k}@{temperature}" for k in all_k])
            if values:
                curve = Curve(arm, None, tuple(all_k), tuple(values))
                data.append(_curve(runs, curve, panel, markers=True, legend=panel == 0))
        axis = {
            "title": {"text": f"k, temperature {temperature}", "standoff": 8},
            "type": "log", "tickmode": "array", "tickvals": all_k,
        }  # fmt: skip
        panels.append((axis, {"title": {"text": "pass@k, %"}}))
    if not panels:
        return Figure("coverage", title, caption, None, "coverage was not measured")
    return Figure("coverage", title, caption, {"data": data, "layout": panel_layout(panels, 400)})
