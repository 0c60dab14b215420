"""Printed figures of training: learning curves, gradients, likelihoods, rewards, the trap."""
# pyright: basic
# matplotlib's annotations are partial, so strict checking of this file would check its guesses.

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fractionate.analysis.claims_coverage import reward_curve
from fractionate.analysis.claims_trap import on_policy_forward
from fractionate.analysis.claims_variants import is_long
from fractionate.analysis.designs import Design
from fractionate.analysis.evidence import Untestable
from fractionate.analysis.outcome_names import resampled_accuracy, resampled_entropies
from fractionate.analysis.panels import (
    GREY,
    Curve,
    axis_label,
    colours,
    evaluation_curves,
    rate_levels,
    rate_place,
    step_curves,
)
from fractionate.analysis.plots import SPARSE
from fractionate.analysis.print_final import plain
from fractionate.analysis.print_kit import (
    STYLES,
    NotDrawn,
    Shelf,
    axes_of,
    labelled,
    of_rate,
    pick,
    retained,
)
from fractionate.analysis.runs import Run, Runs

SIDES = {"student": "#2f6fb7", "teacher": "#cf5a36"}
PROFILES = ("forward_kl", "teacher_entropy", "cross_entropy")
TEMPERATURES = (0.3, 0.5, 0.7, 1.0)


def _curves(runs: Runs, metrics: list[str]) -> Figure:
    """Metrics over evaluated steps, one line per arm."""
    drawn = [(metric, evaluation_curves(runs, metric)) for metric in metrics]
    drawn = [(metric, curves) for metric, curves in drawn if curves]
    if not drawn:
        raise NotDrawn("needs evaluations at intermediate steps")
    figure, axes = axes_of(len(drawn), of=runs)
    for axis, (metric, curves) in zip(axes, drawn, strict=True):
        for curve in curves:
            _trace(axis, runs, curve)
        axis.set_xlabel("step")
        axis.set_ylabel(axis_label(metric))
    _keys(figure, runs)
    return figure


def _trace(axis: Axes, runs: Runs, curve: Curve) -> None:
    style = STYLES[rate_place(runs, curve.arm) % len(STYLES)]
    axis.plot(curve.x, curve.y, style, color=colours(runs)[curve.arm.series], lw=1.2)


def _keys(figure: Figure, runs: Runs) -> None:
    handles = [Line2D([], [], color=c, label=name) for name, c in colours(runs).items()]
    handles += [
        Line2D([], [], color=GREY, ls=STYLES[i % len(STYLES)], label=f"{rate:g}")
        for i, rate in enumerate(rate_levels(runs))
    ]
    labelled(figure, handles)


def learning(shelf: Shelf) -> Figure:
    """Figure 19: accuracy and prior abilities over steps."""

    def fits(design: Design) -> bool:
        return plain(design) and any(
            len(c.x) > 2 for c in evaluation_curves(design.runs, "accuracy")
        )

    runs = pick(shelf, fits, "a grid evaluated between its first and its last step").runs
    return _curves(runs, ["accuracy", *filter(None, [retained(runs)])])


def trajectory(shelf: Shelf) -> Figure:
    """Figure 11: long traces over steps."""
    runs = pick(shelf, is_long, "a task with long traces (E6)").runs
    return _curves(runs, ["accuracy", *filter(None, [retained(runs)]), SPARSE])


def gradients(shelf: Shelf) -> Figure:
    """Figure 7: gradient norms before clipping, one panel per series."""
    runs = pick(shelf, lambda d: any(r.cell.steps for r in d.runs.runs), "recorded steps").runs
    curves = step_curves(runs, "grad_norm", single=True)
    if not any(y > 0 for curve in curves for y in curve.y):
        raise NotDrawn("no gradient norm was recorded")
    names = list(dict.fromkeys(curve.arm.series for curve in curves))[:6]
    figure, axes = axes_of(len(names), 2.2, share=True, of=runs)
    clip = runs.study.optimizer.clip if runs.study else None
    for axis, name in zip(axes, names, strict=True):
        for curve in (curve for curve in curves if curve.arm.series == name):
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


# ---------------------------------------------------------------- likelihoods


def _likelihoods(runs: Runs, side: str) -> list[Curve]:
    """Mean token likelihood of the rollouts over steps, in percent."""
    return [
        Curve(c.arm, c.seed, c.x, tuple(100 * float(np.exp(y)) for y in c.y))
        for c in step_curves(runs, f"{side}_log_likelihood", single=False)
    ]


def likelihoods(shelf: Shelf) -> Figure:
    """Figure 21: likelihood of the rollouts under both models, one panel per rollout x KL."""
    runs = pick(shelf, plain, "student and teacher rollouts").runs
    sides = {side: _likelihoods(runs, side) for side in SIDES}
    if not all(sides.values()):
        raise NotDrawn("likelihoods of the rollouts were not recorded")
    names = list(colours(runs))[:4]
    figure, axes = axes_of(len(names), share=True, of=runs)
    for axis, name in zip(axes, names, strict=True):
        for side, curves in sides.items():
            for curve in (curve for curve in curves if curve.arm.series == name):
                style = STYLES[rate_place(runs, curve.arm) % len(STYLES)]
                axis.plot(curve.x, curve.y, style, color=SIDES[side], lw=1.0)
        axis.set_title(name, fontsize=8)
        axis.set_xlabel("step")
    axes[0].set_ylabel("likelihood of rollouts, %")
    labelled(figure, [Line2D([], [], color=c, label=side) for side, c in SIDES.items()])
    return figure


def spectrum_likelihoods(shelf: Shelf) -> Figure:
    """Figure 4: likelihood of the first step's rollouts under both models, along λ."""
    runs = pick(shelf, lambda d: d.is_spectrum, "three points of the rollout spectrum (E3)").runs
    figure, axes = axes_of(1, 2.8, of=runs)
    for side, colour in SIDES.items():
        found: dict[float, list[float]] = {}
        for curve in _likelihoods(runs, side):
            if curve.arm.lam is not None and curve.y:
                found.setdefault(curve.arm.lam, []).append(curve.y[0])
        if not found:
            raise NotDrawn("likelihoods of the rollouts were not recorded")
        lams = sorted(found)
        axes[0].plot(lams, [np.mean(found[lam]) for lam in lams], "o-", color=colour, ms=4)
    axes[0].set_xlabel("λ")
    axes[0].set_ylabel("likelihood of rollouts, %")
    labelled(figure, [Line2D([], [], color=c, label=side) for side, c in SIDES.items()])
    return figure


# ---------------------------------------------------------------- reinforcement


def rewards(shelf: Shelf, *, high: bool = False) -> Figure:
    """Figures 6 and 26: training reward of RLVR, one curve per seed."""
    lacks = "cells that were trained further by RLVR (E9)"
    runs = pick(shelf, lambda d: any(run.cell.rlvr for run in d.runs.runs), lacks).runs
    rate = of_rate(runs, high=high)
    figure, axes = axes_of(1, 3.0, of=runs)
    drawn = 0
    for arm in runs.arms:
        for run in runs.of(arm):
            curve = reward_curve(run)
            if curve.size and rate in (None, arm.rate):
                axes[0].plot(curve, color=colours(runs)[arm.series], lw=0.9)
                drawn += 1
    if not drawn:
        raise NotDrawn("no cell of that learning rate was trained further by RLVR")
    axes[0].set_xlabel("update with fresh completions")
    axes[0].set_ylabel("training reward")
    labelled(figure, [Line2D([], [], color=c, label=name) for name, c in colours(runs).items()])
    return figure


def rewards_high(shelf: Shelf) -> Figure:
    """Figure 26."""
    return rewards(shelf, high=True)


# ---------------------------------------------------------------- the entropy trap


def _trapped(shelf: Shelf) -> Iterator[tuple[Design, list[Run]]]:
    """Runs with student rollouts and forward KL at the low rate whose positions were profiled."""
    for design in shelf:
        try:
            runs = on_policy_forward(design.runs)
        except Untestable:
            continue
        if all(any(step.profile for step in run.cell.steps) for run in runs):
            yield design, runs


def trap(shelf: Shelf, *, task: int = 0) -> Figure:
    """Figure 22: divergence and entropies by position, and the same prompts at four temperatures.

    Profiles are means over seeds at the bins that all of them reach, at up to six steps.
    """
    by_task: dict[tuple[str, ...], tuple[Design, list[Run]]] = {}
    for design, held in _trapped(shelf):
        of = tuple(f"{k}={v}" for k, v in sorted(design.facts.items()) if k.startswith("task."))
        by_task.setdefault(of, (design, held))
    if len(by_task) <= task:
        more = " on a second task" if task else ""
        raise NotDrawn(
            "needs position profiles of student rollouts with forward KL (E12, diagnostics.bins)"
            + more
        )
    design, runs = list(by_task.values())[task]
    again = [resampled_accuracy(t) for t in TEMPERATURES]
    step = next((s for s, v in runs[0].by_step.items() if s and set(again) <= set(v)), None)
    figure, axes = axes_of(len(PROFILES) + (step is not None), of=design.runs)
    for axis, name in zip(axes, PROFILES, strict=False):
        _profiles(axis, runs, name)
    if step is not None:
        _resampling(axes[-1], runs, step)
    return figure


def second_trap(shelf: Shelf) -> Figure:
    """Figure 23: the same on another task."""
    return trap(shelf, task=1)


def _profiles(axis: Axes, runs: list[Run], name: str) -> None:
    known = [{s.step: s.profile for s in run.cell.steps if s.profile} for run in runs]
    shared = sorted(set.intersection(*(set(found) for found in known)))
    chosen = shared[:: max(1, len(shared) // 6)]
    for i, step in enumerate(chosen):
        rows = [found[step][name] for found in known]
        bins = min(map(len, rows))
        mean = np.mean([row[:bins] for row in rows], axis=0)
        first = i == 0
        axis.plot(
            range(bins), mean, ":" if first else "-",
            color=GREY if first else "#2f6fb7", alpha=0.3 + 0.7 * i / max(1, len(chosen) - 1),
        )  # fmt: skip
    axis.set_xlabel("bin of positions")
    axis.set_ylabel(f"{name.replace('_', ' ')}, nats")


def _resampling(axis: Axes, runs: list[Run], step: int) -> None:
    values = [run.by_step[step] for run in runs if step in run.by_step]
    names = [resampled_accuracy(t) for t in TEMPERATURES]
    mean = [np.mean([v[name].value for v in values if name in v]) for name in names]
    axis.plot(TEMPERATURES, 100 * np.array(mean), "o-", color=GREY, ms=4)
    axis.set_xlabel(f"temperature, step {step}")
    axis.set_ylabel("accuracy, %")
    beside = axis.twinx()
    for place, colour in enumerate(SIDES.values()):
        entropies = [resampled_entropies(t)[place] for t in TEMPERATURES]
        if all(name in v for name in entropies for v in values):
            means = [np.mean([v[name].value for v in values]) for name in entropies]
            beside.plot(TEMPERATURES, means, "s--", color=colour, ms=3)
    beside.set_ylabel("entropy of student, teacher; nats", fontsize=7)
    beside.tick_params(labelsize=7)
