"""Claims about what happens along training: the entropy trap (C28 to C30), likelihoods (C32)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from fractionate.analysis.claims_grid import OOD_MARGIN
from fractionate.analysis.designs import Design
from fractionate.analysis.evidence import (
    Finding,
    Floats,
    Untestable,
    all_of,
    drop_of,
    over_pairs,
    over_runs,
    points,
    rates,
)
from fractionate.analysis.outcome_names import (
    SANDBOX_VOCABULARY,
    resampled_accuracy,
    resampled_entropies,
)
from fractionate.analysis.runs import Run, Runs

EARLY = 50
"""Steps that count as early."""
SMALL = 0.1
"""Divergence over cross-entropy below which the divergence is small."""
NEAR_CEILING = 0.5
"""Share of ln V from which both entropies are near their ceiling."""
SHARP = 0.1
"""Loss of accuracy that counts as sharp."""
DIP = 0.1
"""Loss of likelihood that counts as a dip."""
WINDOW = 5
"""Steps over which likelihoods are averaged, so that a dip is no single batch."""


def on_policy_forward(runs: Runs) -> list[Run]:
    """Runs with student rollouts and forward KL at the low rate.

    Raises:
        Untestable: There are none.
    """
    held = {arm.rate for arm in runs.arms if arm.rate is not None}
    low = rates(runs)[0] if len(held) > 1 else None
    own = [
        run
        for arm in runs.arms
        if arm.rollout == "student" and arm.kl == "forward" and low in (None, arm.rate)
        for run in runs.of(arm)
    ]
    if not own:
        raise Untestable("needs student rollouts with forward KL")
    return own


def small_divergence_hides_entropy(shelf: Sequence[Design]) -> Finding:
    """C28: largest entropy, over ln V, while the divergence is small: above one half.

    Per run the largest min(H(teacher), CE) among the first 50 steps whose KL is below a tenth
    of CE; student rollouts with forward KL at the low rate; mean over runs with its t interval.
    """
    for design in shelf:
        study = design.runs.study
        if study is None or study.world is None:
            continue
        ceiling = math.log(SANDBOX_VOCABULARY)
        values = [_hidden(run) for run in _or_none(design.runs)]
        known = [value / ceiling for value in values if value is not None]
        if known:
            what = "entropy over its ceiling where KL is small"
            found = over_runs(what, known, above=NEAR_CEILING)
            never = f"{found.text} (KL is never small in {known.count(0.0)} of {len(known)} runs)"
            return replace(found, text=never, source=design.name)
    raise Untestable(
        "needs early steps of student rollouts with forward KL, their entropies recorded"
    )


def _or_none(runs: Runs) -> list[Run]:
    try:
        return on_policy_forward(runs)
    except Untestable:
        return []


def _hidden(run: Run) -> float | None:
    """Largest min(H, CE) in nats among early steps whose KL is small; 0 if it never is."""
    known = [
        (step.forward_kl, step.teacher_entropy, step.cross_entropy)
        for step in run.cell.steps[:EARLY]
        if step.forward_kl is not None
    ]
    if not known:
        return None
    hidden = [
        min(entropy, cross)
        for kl, entropy, cross in known
        if entropy is not None and cross is not None and kl <= SMALL * cross
    ]
    return max(hidden, default=0.0)


def ability_is_hidden_by_temperature(runs: Runs) -> Finding:
    """C29: accuracy at temperature .7 minus accuracy at 1, above 10 pp.

    The same prompts at the earliest step evaluated; student rollouts with forward KL at the low
    rate.
    """
    gaps: list[float] = []
    entropies: list[tuple[float, ...]] = []
    for run in on_policy_forward(runs):
        step = next((s for s in run.by_step if s > 0 and _resampled(run, s)), None)
        if step is None:
            raise Untestable("needs the same prompts sampled at temperatures .7 and 1")
        values = run.by_step[step]
        cool, warm = (values[resampled_accuracy(t)].value for t in (0.7, 1.0))
        gaps.append(cool - warm)
        known = [values[name].value for name in resampled_entropies(1.0) if name in values]
        entropies.append(tuple(known))
    found = over_pairs("accuracy at T 0.7 − T 1", np.array([gaps]), above=SHARP)
    means = [float(np.mean(side)) for side in zip(*entropies, strict=False)]
    shown = ", ".join(f"{value:.2f}" for value in means)
    text = f"{found.text} (entropies at T 1: {shown} nats)" if shown else found.text
    return replace(found, text=text)


def _resampled(run: Run, step: int) -> bool:
    return all(resampled_accuracy(t) in run.by_step[step] for t in (0.7, 1.0))


def early_checkpoint_is_useful(runs: Runs) -> Finding:
    """C30: early gain in accuracy above 0, and less than 2 pp forgotten.

    At the last evaluation within the first third; student rollouts with forward KL at the low
    rate.
    """
    drop = drop_of(runs)
    gains: list[float] = []
    drops: list[float] = []
    for run in on_policy_forward(runs):
        both = [s for s, v in run.by_step.items() if "accuracy" in v and (s == 0 or drop in v)]
        early = [step for step in both if 0 < step <= max(both, default=0) / 3]
        if not early or 0 not in both:
            raise Untestable("needs accuracy and forgetting at step 0 and within the first third")
        values = run.by_step[max(early)]
        gains.append(values["accuracy"].value - run.by_step[0]["accuracy"].value)
        drops.append(values[drop].value)
    return all_of(
        [
            over_pairs("gain in accuracy", np.array([gains]), above=0.0),
            over_pairs("forgotten", np.array([drops]), below=OOD_MARGIN),
        ]
    )


def student_confidence_dips(runs: Runs) -> Finding:
    """C32: dip of the student's likelihood of its rollouts below both ends, above .1.

    Geometric means over tokens and five steps; student rollouts with forward KL at the low
    rate; mean over runs with its t interval.
    """
    dips: list[float] = []
    for run in on_policy_forward(runs):
        curve = likelihood_curve(run)
        if curve.size < 3:
            raise Untestable("likelihoods of the rollouts were not recorded")
        dips.append(float(min(curve[0], curve[-1]) - curve.min()))
    found = over_runs("dip of the student's likelihood", dips, above=DIP)
    lowest = points(float(np.mean([likelihood_curve(r).min() for r in on_policy_forward(runs)])))
    return replace(found, text=f"{found.text} (lowest {lowest} %)")


def likelihood_curve(run: Run) -> Floats:
    """Mean token likelihood of the rollouts under the student, moving mean over five steps."""
    logs = np.array(list(_logs(run)))
    if logs.size < WINDOW:
        return np.empty(0)
    return np.exp(np.convolve(logs, np.full(WINDOW, 1 / WINDOW), "valid"))


def _logs(run: Run) -> Iterator[float]:
    for step in run.cell.steps:
        if step.student_log_likelihood is not None:
            yield step.student_log_likelihood
