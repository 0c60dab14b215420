"""Claims about what the main design holds: clipping, support, temperature, length, family.

Each compares designs that differ in one thing, paired by seed where they share it: C22, C23, C24,
C26, C27, C33 and C34.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from fractionate.analysis import claims_grid as grid
from fractionate.analysis.designs import (
    CLIP,
    GENERATION,
    SUPPORT,
    Design,
    low_and_high,
    peak_step,
)
from fractionate.analysis.evidence import (
    Finding,
    Floats,
    Untestable,
    all_of,
    cell_means,
    drop_of,
    finding,
    grid_means,
    over_pairs,
    over_runs,
    rates,
    where,
)
from fractionate.analysis.runs import Arm, Run, Runs

LARGE_RATE = 3.0
"""Rates from this multiple of the low one on count as larger: the paper's 3e-5 beside 1e-5."""
PICTURE = {
    "C2": grid.forward_is_insensitive,
    "C3": grid.reverse_is_sensitive,
    "C4": grid.low_rate_preserves,
    "C5": grid.high_rate_forgets,
    "C6": grid.rate_outweighs_rollout,
    "C7": grid.rate_sets_sparsity,
    "C8": grid.teacher_is_as_sparse,
}
"""Statements that make up the picture of the main experiment."""
ENOUGH = 4
"""Statements that both designs must decide before their pictures are compared."""
PEAKS = 3
"""Evaluated steps that make a trajectory with a peak."""

Pairs = list[tuple[Design, Design]]


def _pairs(shelf: Sequence[Design], path: str, is_it: Callable[[str], bool]) -> Pairs:
    """(it, the other) for designs that differ at one path only, the nearest to the paper first."""
    return [
        (one, other)
        for one in shelf
        for other in shelf
        if is_it(one.fact(path)) and not is_it(other.fact(path)) and one.differs(other) == [path]
    ]


def _matched(one: Runs, other: Runs, metric: str, keep: Callable[[Arm], bool]) -> Floats:
    """One - other over equal arms and common seeds [arms, seeds]; empty without any."""
    seeds = [seed for seed in one.complete.seeds if seed in other.complete.seeds]
    arms = {arm.key: arm for arm in other.arms}
    rows: list[list[float]] = []
    for arm in one.arms:
        if keep(arm) and arm.key in arms and seeds:
            first, second = _by_seed(one.of(arm), metric), _by_seed(other.of(arms[arm.key]), metric)
            if all(seed in first and seed in second for seed in seeds):
                rows.append([first[seed] - second[seed] for seed in seeds])
    return np.array(rows)


def _by_seed(runs: Sequence[Run], metric: str) -> dict[int, float]:
    return {run.cell.seed: run.final[metric].value for run in runs if metric in run.final}


def clipping_saves_reverse(shelf: Sequence[Design]) -> Finding:
    """C22: accuracy with minus without clipping, reverse KL: above 0, and above forward.

    At rates from three times the low one, paired by arm and seed.
    """
    for free, clipped in _pairs(shelf, CLIP, lambda label: label == "none"):
        reverse, forward = (_gain(clipped, free, kl) for kl in ("reverse", "forward"))
        if reverse.size and reverse.shape == forward.shape:
            found = [
                over_pairs("clipped − free under reverse KL", reverse, above=0.0),
                over_pairs("the same beyond forward KL", reverse - forward, above=0.0),
            ]
            return replace(all_of(found), source=f"{clipped.name}; {free.name}")
    raise Untestable(
        "needs one study with and without clipping, both KLs and rates from three times the low one"
    )


def _gain(clipped: Design, free: Design, kl: str) -> Floats:
    """Accuracy with minus without clipping at the larger rates [arms, seeds]."""
    limit = LARGE_RATE * (rates(free.runs)[0] if len(free.rates) > 1 else 0.0)

    def large(arm: Arm) -> bool:
        return arm.kl == kl and (arm.rate or 0.0) >= limit

    return _matched(clipped.runs, free.runs, "accuracy", large)


def sampled_kl_agrees(shelf: Sequence[Design]) -> Finding:
    """C23: verdicts of C2 to C8 with sampled and with full support, all equal.

    Among the statements that both decide, at least four.
    """
    pairs = [
        pair
        for pair in _pairs(shelf, SUPPORT, lambda label: label.startswith("sampled"))
        if pair[0].is_grid and pair[1].is_grid and pair[1].fact(SUPPORT) == "full"
    ]
    if not pairs:
        raise Untestable("needs one grid with sampled and with full support")
    sampled, full = (_picture(design) for design in pairs[0])
    both = [key for key in PICTURE if sampled[key] and full[key]]
    against = [key for key in both if sampled[key] != full[key]]
    text = f"{len(both) - len(against)} of {len(both)} statements decided by both agree"
    text += f" (not {', '.join(against)})" if against else ""
    text += f"; claim: all, at least {ENOUGH}"
    source = "; ".join(design.name for design in pairs[0])
    if against:
        return Finding("does not hold", text, source=source)
    enough = len(both) >= ENOUGH
    return Finding("holds" if enough else "cannot be told", text, source=source)


def _picture(design: Design) -> dict[str, str]:
    """Verdict by statement; empty where there is none."""
    runs = low_and_high(design.runs)
    found: dict[str, str] = {}
    for key, test in PICTURE.items():
        try:
            verdict = test(runs).verdict
        except Untestable:
            verdict = "cannot be told"
        found[key] = "" if verdict == "cannot be told" else verdict
    return found


# ---------------------------------------------------------------- long traces


def is_long(design: Design) -> bool:
    """Whether its task needs longer traces than the main one: a fourth operand, or mathematics."""
    return design.fact("task.operands") == "4" or "math" in design.fact("task.kind")


def long_traces(shelf: Sequence[Design]) -> Finding:
    """C24: student rollouts with reverse KL at the low rate, beyond the best other cell: above 0.

    At the step of each run's best accuracy; there the rate gaps in forgetting and sparsity
    above 0 as well.
    """
    for design in shelf:
        runs = low_and_high(design.runs)
        steps = {step for run in runs.runs for step in run.by_step if step > 0}
        if not (is_long(design) and design.is_grid and design.kls >= {"forward", "reverse"}):
            continue
        if len(steps) >= PEAKS and runs.complete.seeds:
            found = all_of([_lead(runs), *_rate_gaps(runs)])
            return replace(found, source=design.name)
    raise Untestable(
        "needs a grid on a task with long traces, evaluated at three steps or more (a trajectory)"
    )


def _lead(runs: Runs) -> Finding:
    """Peak accuracy of the cell that the paper names beyond the best other one."""
    best = where(runs, kl="reverse", rollout="student", rate=rates(runs)[0])
    others = [i for i in range(len(runs.arms)) if i not in best]
    peaks = grid_means(runs, _at_peak(runs, "accuracy"), "peak accuracy")
    lead = peaks.statistic(lambda m: m[:, best].max(axis=1) - m[:, others].max(axis=1))
    return finding("student–reverse–low beyond the best other cell", lead, above=0.0)


def _rate_gaps(runs: Runs) -> Iterator[Finding]:
    """Gaps between the rates in forgetting and sparsity, at the peaks."""
    low, high = (where(runs, rate=rate) for rate in rates(runs))
    for metric, name, sign in ((drop_of(runs), "forgetting", 1), (grid.SPARSE, "sparsity", -1)):
        if not runs.measured(metric):
            continue
        at = grid_means(runs, _at_peak(runs, metric), "at the peak", metric)
        gap = at.statistic(
            lambda m, sign=sign: sign * (m[:, high].mean(axis=1) - m[:, low].mean(axis=1))
        )
        yield finding(f"rate gap in {name}", gap, above=0.0)


def _at_peak(runs: Runs, metric: str) -> Floats:
    """A metric at the step of each run's best accuracy, else at the last step [arms, seeds]."""

    def value(run: Run) -> float:
        steps = {s: v["accuracy"].value for s, v in run.by_step.items() if s and "accuracy" in v}
        there = run.by_step[peak_step(steps)] if steps else run.final
        return (there if metric in there else run.final)[metric].value

    if not runs.measured(metric):
        raise Untestable(f"{metric} was not measured in every cell")
    return np.array(
        [
            [value(run) for run in runs.of(arm) if run.cell.seed in runs.complete.seeds]
            for arm in runs.arms
        ]
    )


# ---------------------------------------------------------------- temperature of generation


def _swaps(shelf: Sequence[Design], policy: str) -> Pairs:
    """(default, swapped) designs in which only the sampling temperature of a policy differs."""
    default = {"student": "1", "teacher": "0.5"}[policy]
    path = GENERATION[policy]
    return [
        (one, other)
        for one in shelf
        for other in shelf
        if policy in one.policies & other.policies
        and one.fact(path) == default != other.fact(path)
        and not one.differs(other, *GENERATION.values())
    ]


def forward_ignores_temperature(shelf: Sequence[Design]) -> Finding:
    """C26: swapped minus default sampling temperature, forward KL: within ±3 pp.

    Accuracy at the low rate, for each policy; 90 % interval, which is two one-sided tests.
    """
    found: list[Finding] = []
    for policy in ("student", "teacher"):
        for default, swapped in _swaps(shelf, policy):
            low = rates(default.runs)[0] if len(default.rates) > 1 else None

            def wanted(arm: Arm, policy: str = policy, low: float | None = low) -> bool:
                return arm.kl == "forward" and arm.rollout == policy and low in (None, arm.rate)

            moved = _matched(swapped.runs, default.runs, "accuracy", wanted)
            if moved.size:
                margin = grid.ACCURACY_MARGIN
                name = f"swapped − default, {policy} rollouts"
                each = over_pairs(name, moved, above=-margin, below=margin, confidence=0.90)
                found.append(replace(each, source=f"{default.name}; {swapped.name}"))
                break
    if len(found) < 2:
        raise Untestable("needs both policies at two sampling temperatures each")
    return all_of(found)


def best_ignores_temperature(shelf: Sequence[Design]) -> Finding:
    """C27: best cell at the swapped minus at the default temperature, within ±3 pp.

    For each policy; 90 % interval, which is two one-sided tests.
    """
    found: list[Finding] = []
    for policy in ("student", "teacher"):
        for default, swapped in _swaps(shelf, policy)[:1]:
            sides = [_best(design, policy) for design in (swapped, default)]
            gap = sides[0][0] - sides[1][0], sides[0][1] - sides[1][1]
            margin = grid.ACCURACY_MARGIN
            name = f"swapped − default, best cell with {policy} rollouts"
            each = finding(name, gap, above=-margin, below=margin, confidence=0.90)
            found.append(replace(each, source=f"{default.name}; {swapped.name}"))
    if len(found) < 2:
        raise Untestable("needs both policies at two sampling temperatures each")
    return all_of(found)


def _best(design: Design, policy: str) -> tuple[float, Floats]:
    runs = low_and_high(design.runs)
    places = where(runs, rollout=policy)
    means = cell_means(runs, "accuracy", design.name)
    return means.statistic(lambda m: m[:, places].max(axis=1))


# ---------------------------------------------------------------- the second family


def _second(shelf: Sequence[Design]) -> list[Design]:
    """Designs of any family but the one with the most designs, which is the first on the shelf."""
    return [design for design in shelf if design.family != shelf[0].family] if shelf else []


def second_forgets_with_lam(shelf: Sequence[Design]) -> Finding:
    """C33: slope of forgetting on λ per seed at the high rate, forward KL, above 0."""
    for design in _second(shelf):
        runs = design.runs
        values: list[float] = []
        drop = drop_of(runs)
        high = max(design.rates, default=None)
        arms = [a for a in runs.arms if a.lam is not None and a.kl == "forward" and a.rate == high]
        if len(arms) < 3 or not runs.measured(drop):
            continue
        lams = [arm.lam or 0.0 for arm in arms]
        for seed in runs.complete.seeds:
            drops = [_by_seed(runs.of(arm), drop)[seed] for arm in arms]
            values.append(100 * float(np.polyfit(lams, drops, 1)[0]))
        found = over_runs("slope of forgetting on λ, pp per unit", values, above=0.0)
        return replace(found, source=design.name)
    raise Untestable("needs a rollout spectrum with a second family of models")


def second_gains_at_low(shelf: Sequence[Design]) -> Finding:
    """C34: mean change of prior abilities at the low rate with the second family, above 0."""
    for design in _second(shelf):
        runs = design.runs
        if not design.is_grid or len(design.rates) < 2 or not runs.measured(drop_of(runs)):
            continue
        return replace(_gain_at_low(runs), source=design.name)
    raise Untestable("needs a grid with a second family of models")


def _gain_at_low(runs: Runs) -> Finding:
    places = where(runs, rate=rates(runs)[0])
    gain = cell_means(runs, drop_of(runs)).statistic(lambda m: -m[:, places].mean(axis=1))
    return finding("final − base at the low rate", gain, above=0.0)
