"""Printed figures of final values: cells, learning rates, the rollout spectrum, coverage."""
# pyright: basic
# matplotlib's annotations are partial, so strict checking of this file would check its guesses.

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fractionate.analysis.claims_variants import is_long
from fractionate.analysis.designs import CLIP, GENERATION, MASTER, SUPPORT, Design
from fractionate.analysis.outcome_names import (
    COVERAGE_TEMPERATURE,
    HARDER,
    STYLE_SHARE,
    harder_pass,
    pass_at,
)
from fractionate.analysis.panels import (
    GREY,
    Point,
    axis_label,
    by_series,
    colours,
    points,
    rate_levels,
    rate_place,
)
from fractionate.analysis.plots import NULL, SPARSE
from fractionate.analysis.print_kit import (
    KL_COLOURS,
    STYLES,
    NotDrawn,
    Shelf,
    axes_of,
    cells,
    labelled,
    legend,
    line,
    of_rate,
    outcomes,
    pick,
    plane,
    require,
    retained,
)
from fractionate.analysis.runs import Runs

Draw = Callable[[Shelf], Figure]


def plain(design: Design) -> bool:
    """Student against teacher rollouts as in the main experiment: clipped, whole vocabulary."""
    usual = design.fact(SUPPORT) == "full" and design.fact(MASTER) == "none"
    return design.is_grid and usual and design.fact(CLIP) != "none" and not is_long(design)


def second_family(shelf: Shelf) -> Callable[[Design], bool]:
    """Whether a design has other models than the first one on the shelf."""
    return lambda design: design.family != shelf[0].family


def first_family(shelf: Shelf) -> Callable[[Design], bool]:
    """Whether a design has the models of the first one on the shelf."""
    return lambda design: design.family == shelf[0].family


# ---------------------------------------------------------------- cells


def three_panels(runs: Runs) -> Figure:
    """Accuracy, accuracy against prior abilities, sparsity with its rounding null."""
    require(runs, "accuracy")
    kept = retained(runs)
    draw: list[Callable[[Axes], None]] = [lambda axis: cells(axis, runs, "accuracy")]
    if kept is not None:
        draw.append(lambda axis: plane(axis, runs, kept))
    if runs.measured(SPARSE):
        draw.append(lambda axis: cells(axis, runs, SPARSE))
    figure, axes = axes_of(len(draw), of=runs)
    for axis, one in zip(axes, draw, strict=True):
        one(axis)
    legend(figure, runs)
    return figure


def main(shelf: Shelf) -> Figure:
    """Figure 1."""
    return three_panels(pick(shelf, plain, "student and teacher rollouts").runs)


def sampled(shelf: Shelf) -> Figure:
    """Figure 9."""

    def fits(design: Design) -> bool:
        return design.is_grid and design.fact(SUPPORT).startswith("sampled")

    return three_panels(pick(shelf, fits, "a grid with sampled support (E5)").runs)


def long_traces(shelf: Shelf) -> Figure:
    """Figure 10, at the last step."""
    lacks = "a grid on a task with long traces (E6)"
    return three_panels(pick(shelf, lambda d: d.is_grid and is_long(d), lacks).runs)


def only(metric: str, *, lacks: str, second: bool = False) -> Draw:
    """One panel of cells."""

    def draw(shelf: Shelf) -> Figure:
        family = (second_family if second else first_family)(shelf)
        runs = pick(shelf, lambda d: plain(d) and family(d), lacks).runs
        require(runs, metric)
        figure, axes = axes_of(1, 2.8, of=runs)
        cells(axes[0], runs, metric)
        legend(figure, runs)
        return figure

    return draw


def style(shelf: Shelf) -> Figure:
    """Figure 24."""
    lacks = "a grid whose responses are judged for style (E10)"
    runs = pick(shelf, lambda d: d.is_grid and d.runs.measured(STYLE_SHARE), lacks).runs
    figure, axes = axes_of(1, 2.8, of=runs)
    cells(axes[0], runs, STYLE_SHARE)
    legend(figure, runs)
    return figure


def second_change(shelf: Shelf) -> Figure:
    """Figure 14."""
    lacks = "a grid with a second family of models (E13)"
    runs = pick(shelf, lambda d: d.is_grid and second_family(shelf)(d), lacks).runs
    held = [name for name in ("skills_drop", "ood_drop", SPARSE) if runs.measured(name)]
    if not held:
        raise NotDrawn("neither forgetting nor sparsity were measured")
    figure, axes = axes_of(len(held), of=runs)
    for axis, metric in zip(axes, held, strict=True):
        cells(axis, runs, metric)
    legend(figure, runs)
    return figure


def profile(shelf: Shelf) -> Figure:
    """Figure 17: change per benchmark, or per prior skill of the sandbox."""
    runs = pick(shelf, plain, "student and teacher rollouts").runs
    names = [
        name
        for name in runs.runs[0].final
        if name.startswith(("benchmark:", "skill:")) and runs.measured(name)
    ]
    known = [name for name in names if all(name in run.by_step.get(0, {}) for run in runs.runs)]
    if not known:
        raise NotDrawn("needs single benchmarks or skills before and after training")
    figure, axes = axes_of(1, 3.0, of=runs)
    width = 0.8 / len(runs.arms)
    for i, arm in enumerate(runs.arms):
        change = [
            100 * float(np.mean([r.final[n].value - r.by_step[0][n].value for r in runs.of(arm)]))
            for n in known
        ]
        place = rate_place(runs, arm)
        axes[0].bar(
            np.arange(len(known)) + (i - (len(runs.arms) - 1) / 2) * width, change, width,
            color=colours(runs)[arm.series], alpha=0.5 if place == 0 else 1.0,
        )  # fmt: skip
    axes[0].axhline(0, color=GREY, lw=0.8)
    labels = [name.partition(":")[2] for name in known]
    axes[0].set_xticks(range(len(known)), labels, rotation=45, ha="right")
    axes[0].set_ylabel("change from the base, pp")
    legend(figure, runs)
    return figure


def swap(shelf: Shelf) -> Figure:
    """Figure 25: accuracy at both sampling temperatures of each policy."""
    found: dict[tuple[str, str, str], Point] = {}
    for design in [d for d in shelf if d.is_grid and d.runs.measured("accuracy")]:
        for point in points(design.runs, "accuracy"):
            policy = point.arm.rollout or ""
            if policy in GENERATION:
                warmth = design.fact(GENERATION[policy])
                found.setdefault((point.arm.label, policy, warmth), point)
    pairs = [label for label, _, warmth in found if warmth == "1"]
    both = [label for label in pairs if any(k[0] == label and k[2] == "0.5" for k in found)]
    if not both:
        raise NotDrawn("needs cells at two sampling temperatures (E11)")
    figure, axes = axes_of(1, 3.0)
    tones = {"0.5": "#9db8d6", "1": "#2f6fb7"}
    for (label, _, warmth), point in found.items():
        if label in both and warmth in tones:
            x = both.index(label) + (0.2 if warmth == "1" else -0.2)
            error = [[point.mean - point.low], [point.high - point.mean]]
            axes[0].bar([x], [point.mean], 0.38, color=tones[warmth], yerr=error)
    axes[0].set_xticks(range(len(both)), [label.replace(" · ", "\n") for label in both])
    axes[0].set_ylabel(axis_label("accuracy"))
    labelled(
        figure,
        [Line2D([], [], color=c, lw=5, label=f"generated at T {t}") for t, c in tones.items()],
    )
    return figure


# ---------------------------------------------------------------- along a factor


def rates_of(runs: Runs) -> Figure:
    """Outcomes against the learning rate, one line per rollout x KL."""
    levels, held = rate_levels(runs), outcomes(runs)
    figure, axes = axes_of(len(held), of=runs)
    for axis, metric in zip(axes, held, strict=True):
        for name, found in by_series(points(runs, metric)).items():
            line(axis, [point.arm.rate or 0.0 for point in found], found, colours(runs)[name])
        if metric == SPARSE and runs.measured(NULL):
            null = {p.arm.rate or 0.0: p.mean for p in points(runs, NULL)}
            axis.plot(sorted(null), [null[rate] for rate in sorted(null)], "--", color=GREY, lw=1)
        axis.set_xscale("log")
        axis.set_xticks(levels, [f"{rate:g}" for rate in levels], rotation=45)
        axis.set_xticks([], minor=True)
        axis.set_xlabel("learning rate")
        axis.set_ylabel(axis_label(metric))
    legend(figure, runs)
    return figure


def sweep(shelf: Shelf) -> Figure:
    """Figure 2: the design with the most rates."""
    most = sorted(filter(plain, shelf), key=lambda design: -len(design.rates))
    lacks = "student and teacher rollouts at two learning rates or more (E2)"
    return rates_of(pick(most, lambda design: len(design.rates) > 1, lacks).runs)


def unclipped(shelf: Shelf) -> Figure:
    """Figure 8."""

    def fits(design: Design) -> bool:
        return design.fact(CLIP) == "none" and len(design.rates) > 1

    return rates_of(pick(shelf, fits, "several learning rates without clipping (E4)").runs)


def spectrum(shelf: Shelf, *, second: bool = False) -> Figure:
    """Figures 3 and 15: outcomes along the rollout spectrum."""
    family = (second_family if second else first_family)(shelf)
    whose = "with a second family (E13)" if second else "(E3)"
    lacks = f"three points of the rollout spectrum {whose}"
    runs = pick(shelf, lambda d: d.is_spectrum and family(d), lacks).runs
    held = outcomes(runs)
    figure, axes = axes_of(len(held), of=runs)
    for axis, metric in zip(axes, held, strict=True):
        for (kl, rate), found in along_lam(runs, metric).items():
            place = rate_levels(runs).index(rate) if rate in rate_levels(runs) else 0
            x = [point.arm.lam or 0.0 for point in found]
            line(axis, x, found, KL_COLOURS.get(kl, GREY), STYLES[place % len(STYLES)])
        axis.set_xlabel("λ")
        axis.set_ylabel(axis_label(metric))
    handles = [Line2D([], [], color=colour, label=kl) for kl, colour in KL_COLOURS.items()]
    handles += [
        Line2D([], [], color=GREY, ls=STYLES[i % len(STYLES)], label=f"{rate:g}")
        for i, rate in enumerate(rate_levels(runs))
    ]
    labelled(figure, handles)
    return figure


def second_spectrum(shelf: Shelf) -> Figure:
    """Figure 15."""
    return spectrum(shelf, second=True)


def along_lam(runs: Runs, metric: str) -> dict[tuple[str, float | None], list[Point]]:
    """Points by KL and rate, by rising λ."""
    lines: dict[tuple[str, float | None], list[Point]] = {}
    for point in sorted(points(runs, metric), key=lambda point: point.arm.lam or 0.0):
        if point.arm.lam is not None:
            lines.setdefault((point.arm.kl or "", point.arm.rate), []).append(point)
    return lines


def coverage(shelf: Shelf, *, high: bool, second: bool = False) -> Figure:
    """Figures 5, 12 and 16: pass@1 to pass@10 along λ, on the task and on the harder one."""
    family = (second_family if second else first_family)(shelf)
    one, ten = (pass_at(k, COVERAGE_TEMPERATURE) for k in (1, 10))
    lacks = "a rollout spectrum with ten samples per item at temperature 1 (E7)"

    def fits(design: Design) -> bool:
        return design.is_spectrum and family(design) and design.runs.measured(ten)

    runs = pick(shelf, fits, lacks).runs
    rate = of_rate(runs, high=high)
    pairs = [("task", one, ten)]
    if runs.measured(HARDER):
        many = harder_pass(10)
        pairs.append(("harder task", HARDER, many if runs.measured(many) else HARDER))
    panels = [(title, low, up, kl) for title, low, up in pairs for kl in ("forward", "reverse")]
    figure, axes = axes_of(len(panels), share=True, of=runs)
    for axis, (title, low, up, kl) in zip(axes, panels, strict=True):
        below, above = (along_lam(runs, name).get((kl, rate), []) for name in (low, up))
        x = [point.arm.lam or 0.0 for point in below]
        if x:
            colour = KL_COLOURS[kl]
            span = [point.mean for point in below], [point.mean for point in above]
            axis.fill_between(x, *span, color=colour, alpha=0.15, lw=0)
            line(axis, x, below, colour)
            line(axis, x, above, colour, "--")
        axis.set_title(f"{title}, {kl}", fontsize=8)
        axis.set_xlabel("λ")
    axes[0].set_ylabel("pass@1 (solid) to pass@10 (dashed), %")
    return figure


def coverage_low(shelf: Shelf) -> Figure:
    """Figure 5."""
    return coverage(shelf, high=False)


def coverage_high(shelf: Shelf) -> Figure:
    """Figure 12."""
    return coverage(shelf, high=True)


def coverage_second(shelf: Shelf) -> Figure:
    """Figure 16, at the low rate."""
    return coverage(shelf, high=False, second=True)
