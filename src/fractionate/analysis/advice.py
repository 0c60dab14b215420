"""What a pilot study says about spending the rest of the budget, with its uncertainty."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special  # pyright: ignore[reportMissingTypeStubs] - scipy ships none

from fractionate.analysis.answer import OnPolicy, cost_text, on_policy_worth, show_number
from fractionate.analysis.attribution import Attribution, attribute
from fractionate.analysis.evidence import NO_SPREAD, Draws, cell_means
from fractionate.analysis.knobs import knob_name
from fractionate.analysis.runs import Arm, Runs
from fractionate.statistics import binomial_se, factorial_mde, seeds_needed

GAPS = (0.03, 0.05, 0.10)
POWER = 0.8
CONTENDER = 0.05
"""An arm that is the best in at least this share of draws cannot be ruled out."""


@dataclass(frozen=True)
class SeedsNeeded:
    """Seeds per cell that find a true gap between two cells, paired by seed, at 80 % power.

    Attributes:
        gap: True difference, a share.
        seeds: At the estimated noise.
        fewest: At the lower end of the noise's 95 % interval.
        most: At its upper end.
    """

    gap: float
    seeds: int
    fewest: int
    most: int


@dataclass(frozen=True)
class Noise:
    """The spread of accuracy between runs that differ in their seed only.

    Attributes:
        sd: Standard deviation of a run, a share; seeds' common part removed.
        low: Lower end of its 95 % interval (chi-square).
        high: Upper end.
        df: Degrees of freedom behind it.
        items_sd: What a finite set of items alone would give at the mean accuracy.
        detectable: Smallest knob effect that the runs at hand find with 80 % power.
    """

    sd: float
    low: float
    high: float
    df: int
    items_sd: float
    detectable: float


@dataclass(frozen=True)
class Advice:
    """What to do next.

    Attributes:
        lines: The advice in sentences, most important first.
        noise: None without replicates, or without spread between them.
        seeds: Seeds for gaps of 3, 5 and 10 points.
        contenders: Arms that may be the best in accuracy, best mean first; only the best seen
            where the noise of a run is unknown, though none can be ruled out then.
        cheapest: The contender that costs the fewest FLOPs; None where cost is unknown.
        on_policy: Gain and cost of student rollouts.
    """

    lines: tuple[str, ...]
    noise: Noise | None
    seeds: tuple[SeedsNeeded, ...]
    contenders: tuple[Arm, ...]
    cheapest: Arm | None
    on_policy: OnPolicy


def advise(runs: Runs) -> Advice:
    """Read a pilot study of accuracy.

    Args:
        runs: The pilot, from `gather`.

    Raises:
        ValueError: Accuracy was not measured, or no seed is complete in every arm.
    """
    found = attribute(runs, "accuracy")
    noise = _noise(runs, found)
    seeds = tuple(_needed(gap, noise) for gap in GAPS) if noise and noise.sd > 0 else ()
    means = cell_means(runs, "accuracy")
    contenders = _contenders(runs, means)
    cheapest = _cheapest(runs, contenders)
    on_policy = on_policy_worth(runs)
    lines = [*_knob_lines(found), *_arm_lines(runs, contenders, cheapest, unknown=means.unknown)]
    lines += [*_noise_lines(noise, seeds, unknown=means.unknown), *_policy_lines(on_policy)]
    return Advice(tuple(lines), noise, seeds, contenders, cheapest, on_policy)


def _noise(runs: Runs, found: Attribution) -> Noise | None:
    anova = found.anova
    if anova is None or not found.residual_sd or found.seeds < 2:
        return None
    sd, df = found.residual_sd, anova.residual.df
    tails = [float(special.chdtri(df, tail)) for tail in (0.025, 0.975)]
    items = max(run.final["accuracy"].n for run in runs.runs)
    return Noise(
        sd=sd,
        low=sd * math.sqrt(df / tails[0]),
        high=sd * math.sqrt(df / tails[1]),
        df=df,
        items_sd=binomial_se(anova.mean, items),
        detectable=factorial_mde(sd=sd, runs=anova.n, residual_df=df) if sd > 0 else 0.0,
    )


def _needed(gap: float, noise: Noise) -> SeedsNeeded:
    # A difference of two runs of one seed has sqrt(2) times the noise of a run.
    estimates = [
        seeds_needed(gap, sd=math.sqrt(2) * sd, paired=True, power=POWER)
        for sd in (noise.sd, noise.low, noise.high)
    ]
    return SeedsNeeded(gap, *estimates)


def _contenders(runs: Runs, means: Draws) -> tuple[Arm, ...]:
    if means.unknown:
        return (runs.arms[int(means.means.argmax())],)
    best = np.bincount(means.draws.argmax(axis=1), minlength=len(runs.arms)) / len(means.draws)
    order = [int(i) for i in np.argsort(-means.means)]
    return tuple(runs.arms[i] for i in order if i == order[0] or best[i] >= CONTENDER)


def _cheapest(runs: Runs, contenders: tuple[Arm, ...]) -> Arm | None:
    costs: dict[tuple[str, ...], float] = {}
    for arm in contenders:
        held = [run.final for run in runs.of(arm)]
        if not all("flops" in final for final in held):
            return None
        own = [final["flops"].value for final in held]
        shared = [final["shared_flops"].value for final in held if "shared_flops" in final]
        costs[arm.key] = float(np.mean(own)) + (float(np.mean(shared)) if shared else 0.0)
    return min(contenders, key=lambda arm: costs[arm.key])


def _points(share: float) -> str:
    return f"{show_number(100 * share, '.1f')} pp"


def _knob_lines(found: Attribution) -> list[str]:
    if found.joint is not None:
        names = " and ".join(knob_name(factor) for factor in found.joint.factors)
        return [f"Vary {names} together: their interaction explains most of accuracy."]
    if found.named is None:
        return [f"No knob stands out for accuracy: {found.reason}."]
    knob = next(knob for knob in found.knobs if knob.factor == found.named)
    lowest = _points(knob.swing.low or 0.0)
    first = f"Spend on the {knob_name(knob.factor)} first: at the worst setting it moves accuracy "
    lines = [f"{first}by {_points(knob.swing.value)} (95 % interval from {lowest})."]
    open_knobs = [
        f"{knob_name(other.factor)} ({_points(other.effect)} ± {_points(other.half_width)})"
        for other in found.knobs
        if other is not knob and other.effect is not None and other.half_width is not None
        if abs(other.effect) < other.half_width
    ]
    if open_knobs:
        lines.append(f"Not settled, sign unknown: {', '.join(open_knobs)}.")
    return lines


def _arm_lines(
    runs: Runs, contenders: tuple[Arm, ...], cheapest: Arm | None, *, unknown: str | None
) -> list[str]:
    if len(runs.arms) == 1:
        return []
    if unknown:
        why = f"({unknown}: the noise of a run is unknown)"
        return [f"The best cell seen is {contenders[0].label}; no other can be ruled out {why}."]
    if len(contenders) == 1:
        return [f"The best cell is {contenders[0].label}; no other is in reach of it."]
    names = "; ".join(arm.label for arm in contenders)
    lines = [f"{len(contenders)} cells may be the best and are not told apart: {names}."]
    if cheapest is not None:
        lines.append(f"Of these, {cheapest.label} costs the least compute: prefer it.")
    return lines


def _noise_lines(
    noise: Noise | None, seeds: tuple[SeedsNeeded, ...], *, unknown: str | None
) -> list[str]:
    if noise is None and unknown == NO_SPREAD:
        agree = "The seeds agree exactly in every cell, as they may with few items or at a floor: "
        return [f"{agree}the noise of a run is unknown. Add items, or change the difficulty."]
    if noise is None:
        return ["Run at least two seeds: without replicates no difference can be judged."]
    known = f"{_points(noise.sd)} [{_points(noise.low)}, {_points(noise.high)}]"
    items = f"the finite set of items alone would give {_points(noise.items_sd)}"
    lines = [f"The noise of a run is {known} ({noise.df} degrees of freedom); {items}."]
    if noise.items_sd**2 > 0.5 * noise.sd**2:
        lines.append("Most of it comes from the items: more items or samples buy more than seeds.")
    else:
        lines.append("Most of it comes from training: more seeds buy more than more items.")
    lines.append(
        f"The runs at hand find a knob effect of {_points(noise.detectable)} with 80 % power."
    )
    lines += [
        f"A gap of {_points(plan.gap)} between two cells needs {plan.seeds} seeds "
        f"({plan.fewest} to {plan.most}, given how well the noise is known)."
        for plan in seeds
    ]
    return lines


def _policy_lines(found: OnPolicy) -> list[str]:
    if found.gain is None:
        return []
    advice = {
        "worth": "Student rollouts pay: keep them",
        "not worth": "Teacher rollouts suffice: drop student rollouts",
        "depends": "Whether student rollouts pay depends on the other knobs: choose per setting",
        "cannot be told": "Whether student rollouts pay is open: start with the cheaper policy",
    }
    gain = found.gain
    ends = "" if gain.low is None or gain.high is None else (
        f" [{show_number(100 * gain.low, '.1f')}, {show_number(100 * gain.high, '.1f')}]"
    )  # fmt: skip
    measured = f"{_points(gain.difference)}{ends} in accuracy, {cost_text(found)}"
    return [f"{advice[found.verdict]} ({measured})."]
