"""Claims about coverage, the harder task and what follows by reinforcement: C16 to C19."""

from collections.abc import Sequence

import numpy as np

from fractionate.analysis.claims_grid import ACCURACY_MARGIN
from fractionate.analysis.evidence import (
    Finding,
    Floats,
    Untestable,
    all_of,
    cell_means,
    finding,
    over_runs,
    rank_correlation,
    rates,
)
from fractionate.analysis.outcome_names import (
    COVERAGE_TEMPERATURE,
    HARDER,
    harder_pass,
    pass_at,
)
from fractionate.analysis.runs import Run, Runs

HEAD_START = 0.5
"""Rank correlation from which initial accuracy would foretell the final reward."""
COLLAPSE = 0.5
"""Share of its best reward that a collapsed run has lost at the end."""
WINDOW = 0.05
"""Share of the updates over which a reward is averaged."""
FEWEST = 5
"""Configurations that a rank correlation needs."""


def _sides(runs: Runs, kl: str | None = None) -> tuple[list[int], list[int]]:
    """Places with λ > 0 and with λ < 0 at the low rate.

    Raises:
        Untestable: One side is missing.
    """
    held = {arm.rate for arm in runs.arms if arm.rate is not None}
    low = rates(runs)[0] if len(held) > 1 else None
    own = [
        i
        for i, arm in enumerate(runs.arms)
        if arm.lam and kl in (None, arm.kl) and low in (None, arm.rate)
    ]
    plus = [i for i in own if (runs.arms[i].lam or 0.0) > 0]
    minus = [i for i in own if (runs.arms[i].lam or 0.0) < 0]
    if not plus or not minus:
        raise Untestable("needs points on both sides of the rollout spectrum")
    return plus, minus


def forward_covers_more(runs: Runs) -> Finding:
    """C16: forward − reverse for λ > 0 at the low rate: pass@1 within ±3 pp, pass@10 above 0."""
    forward, reverse = _sides(runs, "forward")[0], _sides(runs, "reverse")[0]

    def gap(m: Floats) -> Floats:
        return m[:, forward].mean(axis=1) - m[:, reverse].mean(axis=1)

    one, ten = (pass_at(k, COVERAGE_TEMPERATURE) for k in (1, 10))
    margin = ACCURACY_MARGIN
    first = cell_means(runs, one).statistic(gap)
    many = cell_means(runs, ten).statistic(gap)
    return all_of(
        [
            finding(
                "pass@1, forward − reverse", first, above=-margin, below=margin, confidence=0.9
            ),
            finding("pass@10, forward − reverse", many, above=0.0),
        ]
    )


def student_side_transfers(runs: Runs) -> Finding:
    """C17: harder task, student side minus teacher side of the spectrum, above 0.

    Mean over λ > 0 minus mean over λ < 0 at the low rate; for both KLs, at pass@1 and pass@10.
    """
    found: list[Finding] = []
    for kl in ("forward", "reverse"):
        plus, minus = _sides(runs, kl)
        for metric, name in ((HARDER, "pass@1"), (harder_pass(10), "pass@10")):
            if metric != HARDER and not runs.measured(metric):
                continue
            gap = cell_means(runs, metric).statistic(
                lambda m, plus=plus, minus=minus: m[:, plus].mean(axis=1) - m[:, minus].mean(axis=1)
            )
            found.append(finding(f"{kl}, {name}", gap, above=0.0))
    return all_of(found)


# ---------------------------------------------------------------- RLVR


def reward_curve(run: Run) -> Floats:
    """Mean training reward per update, moving mean over a twentieth of the updates.

    Updates without fresh completions carry no reward and are left out.
    """
    rewards = np.array([record.reward for record in run.cell.rlvr if record.reward is not None])
    width = max(1, round(WINDOW * rewards.size))
    return np.convolve(rewards, np.full(width, 1 / width), "valid") if rewards.size else rewards


def _followed(runs: Runs) -> Sequence[Run]:
    followed = [run for run in runs.runs if reward_curve(run).size]
    if not followed:
        raise Untestable("no cell was trained further by RLVR")
    return followed


def head_start_is_lost(runs: Runs) -> Finding:
    """C18: rank correlation of initial accuracy and final reward, below .5.

    Over the configurations of one seed, at least five; the mean over seeds with its t interval.
    """
    followed = _followed(runs)
    values: list[float] = []
    for seed in dict.fromkeys(run.cell.seed for run in followed):
        own = [run for run in followed if run.cell.seed == seed]
        if len(own) < FEWEST:
            raise Untestable(f"needs RLVR from at least {FEWEST} configurations per seed")
        ends = np.array([(_initial(run), float(reward_curve(run)[-1])) for run in own]).T
        correlation = rank_correlation(*ends)
        if correlation is not None:
            values.append(correlation)
    return over_runs("rank correlation per seed", values, below=HEAD_START, span=(-1.0, 1.0))


def _initial(run: Run) -> float:
    """Held-out accuracy before the first update, else the first training reward."""
    records = [r for r in run.cell.rlvr_evaluations.get(0, ()) if r.suite == "accuracy"]
    if records:
        return float(np.mean([record.correct / record.samples for record in records]))
    return float(reward_curve(run)[0])


def reverse_collapses(runs: Runs) -> Finding:
    """C19: share of its best reward that a run loses by the end, above one half.

    Mean over runs that start from reverse KL at the low rate, with its t interval.
    """
    _followed(runs)
    held = {arm.rate for arm in runs.arms if arm.rate is not None}
    low = rates(runs)[0] if len(held) > 1 else None

    def losses(kl: str) -> list[float]:
        own = [arm for arm in runs.arms if arm.kl == kl and low in (None, arm.rate)]
        curves = [reward_curve(run) for arm in own for run in runs.of(arm)]
        return [float(1 - c[-1] / c.max()) for c in curves if c.size and c.max() > 0]

    reverse, forward = losses("reverse"), losses("forward")
    if not reverse:
        raise Untestable("needs RLVR from reverse-KL students at the low rate")
    found = over_runs("share of the best reward lost, reverse KL", reverse, above=COLLAPSE)
    if not forward:
        return found
    shown = f"{found.text} (forward KL {np.mean(forward):.2f})"
    return Finding(found.verdict, shown, found.detectable)
