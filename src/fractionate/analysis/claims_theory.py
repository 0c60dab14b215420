"""Claims about bounds (C37, C38), published rates (C40), style (C25) and benchmarks (C36)."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from fractionate.analysis.designs import Design
from fractionate.analysis.evidence import (
    Finding,
    Untestable,
    all_of,
    cell_means,
    finding,
    points,
    rates,
    where,
)
from fractionate.analysis.outcome_names import STYLE_SHARE, benchmark
from fractionate.analysis.paper_rates import PUBLISHED_RATES
from fractionate.analysis.runs import Runs
from fractionate.records import StepRecord
from fractionate.statistics import wilson_interval

FORWARD_SUPREMUM = math.sqrt(2)
REVERSE_PER_RANGE = 1 / (2 * math.sqrt(2))
SLACK = 1e-5
"""Relative slack for norms that were computed in single precision."""
MAJORITY = 0.5
LOST = ("mmlu_pro", "humaneval_instruct", "ifeval", "eq_bench")
GAINED = ("truthfulqa_mc1", "bbq")


# ---------------------------------------------------------------- bounds


def forward_updates_are_bounded(shelf: Sequence[Design]) -> Finding:
    """C37: 99th percentile of ‖q − p‖, at most √2 at every recorded step.

    A census of the bound behind the theorem, which itself is proved and not sampled.
    """
    known = [s.forward_grad_norm_p99 for s in _steps(shelf) if s.forward_grad_norm_p99 is not None]
    if not known:
        raise Untestable("needs steps with token gradient norms recorded")
    inside = sum(value <= FORWARD_SUPREMUM * (1 + SLACK) for value in known)
    text = f"{inside} of {len(known)} steps within √2, largest {max(known):.3f}"
    return Finding("holds" if inside == len(known) else "does not hold", f"{text} (census)")


def reverse_updates_need_a_range(shelf: Sequence[Design]) -> Finding:
    """C38: recorded norms within range/(2√2); the theorem's construction beyond any bound.

    Computed: two rollout policies at a fixed total variation, whose reverse updates differ by
    more than any forward update could, growing as log((1 − δ)/δ). Recorded: a census.
    """
    gaps = [construction(delta) for delta in (1e-2, 1e-8, 1e-64)]
    off = [abs(gap - expected) / expected for gap, expected in gaps]
    # of TV epsilon, with B = 1: a forward update cannot differ by more than 2 sqrt(2) epsilon
    grows = max(off) < SLACK and gaps[-1][0] > 2 * math.sqrt(2) * EPSILON
    text = f"construction: {', '.join(f'{gap:.3f}' for gap, _ in gaps)} at TV {EPSILON:g}"
    pairs = [
        (step.reverse_grad_norm_p99, step.log_ratio_range_max)
        for step in _steps(shelf)
        if step.reverse_grad_norm_p99 is not None and step.log_ratio_range_max is not None
    ]
    inside = sum(norm <= REVERSE_PER_RANGE * width * (1 + SLACK) for norm, width in pairs)
    text += f"; {inside} of {len(pairs)} steps within range/(2√2) (census)"
    return Finding("holds" if grows and inside == len(pairs) else "does not hold", text)


EPSILON = 0.1


def construction(delta: float, epsilon: float = EPSILON) -> tuple[float, float]:
    """Difference of expected reverse updates in theorem C.2, computed and by its formula.

    Two rollout policies differ in mass epsilon on a completion of two tokens: at its first prefix
    student and teacher agree, at the second the student is (1/2, 1/2), the teacher
    (delta, 1 - delta). Parameters are the prefix logits (B = 1), the loss is the sequence mean.
    """
    student, teacher = np.array([0.5, 0.5]), np.array([delta, 1 - delta])
    ratio = np.log(student) - np.log(teacher)
    gradient = student * (ratio - student @ ratio)
    # the update of the extra mass: half of the second prefix's gradient, as there are two tokens
    computed = epsilon * float(np.linalg.norm(gradient)) / 2
    return computed, epsilon * math.sqrt(2) / 8 * math.log((1 - delta) / delta)


def _steps(shelf: Sequence[Design]) -> Iterator[StepRecord]:
    for design in shelf:
        for run in design.runs.runs:
            yield from run.cell.steps


# ---------------------------------------------------------------- published checkpoints


def published_rates_differ() -> Finding:
    """C40: ratio of the median rates of published SFT and RL checkpoints, above 1.

    A census of the printed rates; preference training counts as RL.
    """
    tuned = [rate for stage, rate in PUBLISHED_RATES if stage == "SFT" and rate is not None]
    other = [rate for stage, rate in PUBLISHED_RATES if stage != "SFT" and rate is not None]
    ratio = float(np.median(tuned) / np.median(other))
    text = f"median {np.median(tuned):g} of {len(tuned)} over {np.median(other):g} of {len(other)}"
    text += f": {ratio:.1f}; claim: above 1 (census of the printed rates)"
    return Finding("holds" if ratio > 1 else "does not hold", text)


# ---------------------------------------------------------------- style and benchmarks


def only_reverse_on_policy_resists(runs: Runs) -> Finding:
    """C25: share of responses in the teacher's style, by cell.

    Wilson intervals: below one half for student rollouts with reverse KL, above it elsewhere.
    """
    if not runs.measured(STYLE_SHARE):
        raise Untestable("the style of the responses was not measured")
    resists = where(runs, kl="reverse", rollout="student")
    held: list[bool | None] = []
    shares: dict[bool, list[float]] = {True: [], False: []}
    for i, arm in enumerate(runs.arms):
        values = [run.final[STYLE_SHARE] for run in runs.of(arm)]
        n = sum(value.n for value in values)
        yes = round(sum(value.value * value.n for value in values))
        low, high = wilson_interval(yes, n)
        inside = high < MAJORITY if i in resists else low > MAJORITY
        outside = low > MAJORITY if i in resists else high < MAJORITY
        held.append(True if inside else False if outside else None)
        shares[i in resists].append(yes / n)
    if not shares[False]:
        raise Untestable("needs cells besides student rollouts with reverse KL")
    ends = {side: points(min(found), max(found)) for side, found in shares.items()}
    text = f"student–reverse {ends[True]} %, others {ends[False]} % in the teacher's style; "
    text += f"claim: below and above {points(MAJORITY)} % (Wilson intervals of every cell)"
    if all(held):
        return Finding("holds", text)
    return Finding("does not hold" if False in held else "cannot be told", text)


def benchmark_profile(runs: Runs) -> Finding:
    """C36: change per benchmark at the high rate, from the base.

    Below 0 on MMLU-Pro, HumanEval, IFEval and EQ-Bench, above 0 on TruthfulQA and BBQ.
    """
    missing = [name for name in (*LOST, *GAINED) if not runs.measured(benchmark(name))]
    if missing:
        raise Untestable(f"needs the paper's benchmarks; not measured: {', '.join(missing)}")
    places = where(runs, rate=rates(runs)[1])
    found: list[Finding] = []
    for name in (*LOST, *GAINED):
        base = [run.by_step.get(0, {}).get(benchmark(name)) for run in runs.runs]
        known = [value.value for value in base if value is not None]
        if not known:
            raise Untestable("needs the benchmarks of the untrained student (step 0)")
        start = float(np.mean(known))
        change = cell_means(runs, benchmark(name)).statistic(
            lambda m, start=start: m[:, places].mean(axis=1) - start
        )
        limit = {"below": 0.0} if name in LOST else {"above": 0.0}
        found.append(finding(name, change, **limit))
    return all_of(found)
