"""Claims about training itself, from step records: C12, C20, C21, C31 and C39."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fractionate.analysis.evidence import (
    Finding,
    Untestable,
    agree,
    drop_of,
    over_runs,
    rank_correlation,
    rates,
    where,
)
from fractionate.analysis.runs import KL, Run, Runs

EARLY = 50
"""Steps that count as early."""
PAPER_CLIP = 1.0
APART = 0.1


def forgetting_is_early(runs: Runs) -> Finding:
    """C12: drop in skills at the last evaluation within the first third, over the final drop."""
    drop, places = drop_of(runs), where(runs, rate=rates(runs)[1])
    ratios: list[float] = []
    for place in places:
        for run in runs.of(runs.arms[place]):
            steps = [step for step, values in run.by_step.items() if drop in values]
            early = [step for step in steps if 0 < step <= max(steps, default=0) / 3]
            if not early:
                raise Untestable("needs skills evaluated within the first third of training")
            final = run.by_step[max(steps)][drop].value
            if final > 0:
                ratios.append(run.by_step[max(early)][drop].value / final)
    return over_runs("early over final drop at the high rate", ratios, above=0.5)


def clipping_always_acts(runs: Runs) -> Finding:
    """C20: share of steps with a norm above the clip value, in every run: a census, no sample."""
    clip = runs.study.optimizer.clip if runs.study else PAPER_CLIP
    limit = PAPER_CLIP if clip is None else clip
    shares = {run.cell.cell: _share_above(run, limit) for run in runs.runs if run.cell.steps}
    if not shares:
        raise Untestable("no step was recorded")
    low, high = min(shares.values()), max(shares.values())
    text = f"{100 * low:.0f} to {100 * high:.0f} % of steps per run above {limit:g}"
    return Finding(
        "holds" if low == 1.0 else "does not hold", f"{text}; claim: 100 % in all (census)"
    )


def _share_above(run: Run, limit: float) -> float:
    return sum(step.grad_norm > limit for step in run.cell.steps) / len(run.cell.steps)


def _norms(run: Run) -> list[float]:
    return [step.grad_norm for step in run.cell.steps[:EARLY]]


def reverse_is_spikier(runs: Runs) -> Finding:
    """C21: log2 ratio reverse over forward of early gradient norms, median and 99th percentile."""
    arms = {arm.key: arm for arm in runs.arms}
    measures: dict[str, Callable[[list[float]], float]] = {
        "median": lambda norms: float(np.median(norms)),
        "p99": lambda norms: float(np.quantile(norms, 0.99)),
    }
    logs: dict[str, list[float]] = {name: [] for name in measures}
    for arm in runs.arms:
        other = arms.get(tuple({**arm.levels, KL: "forward"}.values()))
        if arm.levels.get(KL) != "reverse" or other is None:
            continue
        partners = {run.cell.seed: run for run in runs.of(other)}
        for run in runs.of(arm):
            partner = partners.get(run.cell.seed)
            if partner is None or not run.cell.steps or not partner.cell.steps:
                continue
            for name, measure in measures.items():
                above, below = measure(_norms(run)), measure(_norms(partner))
                if above > 0 and below > 0:
                    logs[name].append(math.log2(above / below))
    if not logs["median"]:
        raise Untestable("needs forward and reverse KL as levels")
    found = [over_runs(f"log₂ ratio of {name}", values, above=0.0) for name, values in logs.items()]
    return agree(found)


def likelihoods_start_apart(runs: Runs) -> Finding:
    """C31: student minus teacher likelihood of student rollouts at the first step."""
    places = where(runs, rollout="student")
    gaps: dict[int, list[float]] = {}
    levels: list[tuple[float, float]] = []
    for place in places:
        for run in runs.of(runs.arms[place]):
            first = run.cell.steps[0] if run.cell.steps else None
            if first is None or first.student_log_likelihood is None:
                continue
            if first.teacher_log_likelihood is None:
                continue
            pair = math.exp(first.student_log_likelihood), math.exp(first.teacher_log_likelihood)
            levels.append(pair)
            gaps.setdefault(run.cell.seed, []).append(pair[0] - pair[1])
    if not gaps:
        raise Untestable("likelihoods of the rollouts were not recorded")
    found = over_runs(
        "student − teacher likelihood", [float(np.mean(g)) for g in gaps.values()], above=APART
    )
    student, teacher = (float(np.mean(side)) for side in zip(*levels, strict=True))
    text = f"{found.text} (geometric means: student {student:.2f}, teacher {teacher:.2f})"
    return replace(found, text=text)


def spikes_follow_ranges(runs: Runs) -> Finding:
    """C39: rank correlation over steps of gradient norm and p99 log-ratio range, reverse KL."""
    values: list[float] = []
    for place in where(runs, kl="reverse"):
        for run in runs.of(runs.arms[place]):
            pairs = [
                (step.grad_norm, step.log_ratio_range_p99)
                for step in run.cell.steps
                if step.log_ratio_range_p99 is not None
            ]
            if len(pairs) < 3:
                raise Untestable("log-ratio ranges were not recorded")
            norms, ranges = np.array(pairs).T
            correlation = rank_correlation(norms, ranges)
            if correlation is not None:
                values.append(correlation)
    return over_runs("rank correlation per run", values, above=0.0, span=(-1.0, 1.0))
