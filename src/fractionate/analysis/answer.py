"""The answer of a study in three sentences, by rules that were fixed before any run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fractionate.analysis.attribution import Attribution, attribute
from fractionate.analysis.contrasts import (
    PairedEffect,
    difference_of_differences,
    paired_effect,
)
from fractionate.analysis.knobs import Knob, Share, knob_name
from fractionate.analysis.metrics_table import bounded, describe, in_points
from fractionate.analysis.runs import ROLLOUT, Runs

OUTCOMES = ("accuracy", "skills_drop", "sparsity@1e-06")
"""Target task, forgetting, update sparsity: the outcomes of the answer."""

ACCURACY_MARGIN = 0.03
"""Two rollout policies closer than this are called equal in accuracy (methods: ±3 pp)."""

SPLIT_CONFIDENCE = 0.99
"""Of the interval that must exclude 0 before a gain is said to depend on another knob: several
knobs are looked at, and nobody declared the one that is picked."""

POLICIES = ("student", "teacher")
SHARED = "shared_flops"
COSTS = ("tokens_generated", "flops", "seconds")

Worth = Literal["worth", "not worth", "depends", "cannot be told", "not studied"]


@dataclass(frozen=True)
class OnPolicy:
    """What student rollouts gained and cost against teacher rollouts.

    Attributes:
        verdict: "depends" (the gain differs between two levels of another knob by more than 6 pp,
            99 % interval without 0), "worth" (the gain in accuracy lies above 0, in the interval
            over seeds and in the one over seeds and items), "not worth" (it lies below 0, or both
            policies are shown equal within ±3 pp while student rollouts cost more), else "cannot
            be told"; "not studied" without both policies.
        gain: The paired contrast in accuracy; None where it was not studied.
        split: The gain at both levels of the knob it depends on.
        ratios: Student over teacher cost per cell by cost metric, mean over cells.
        generated: Tokens that a cell with student rollouts generates, mean.
    """

    verdict: Worth
    gain: PairedEffect | None
    split: tuple[PairedEffect, ...]
    ratios: Mapping[str, float]
    generated: float


@dataclass(frozen=True)
class Answer:
    """The study's answer.

    Attributes:
        sentences: Three, plain text: accuracy; forgetting and sparsity; the worth of on-policy.
        attributions: By outcome, those that the study measured.
        on_policy: Behind the third sentence.
        cautions: What a reader must know before using the sentences.
    """

    sentences: tuple[str, ...]
    attributions: Mapping[str, Attribution]
    on_policy: OnPolicy
    cautions: tuple[str, ...]


def answer(runs: Runs) -> Answer:
    """Answer which knob matters for what, and whether on-policy rollouts are worth their cost."""
    if not runs.complete.seeds:
        none = "Nothing can be told yet: no seed is complete in every arm."
        return Answer((none,), {}, on_policy_worth(runs), ())
    attributions = {
        outcome: attribute(runs, outcome) for outcome in OUTCOMES if runs.measured(outcome)
    }
    on_policy = on_policy_worth(runs)
    second = [_sentence(attributions.get(name), name) for name in OUTCOMES[1:]]
    return Answer(
        sentences=(
            _capital(_sentence(attributions.get("accuracy"), "accuracy")) + ".",
            _capital("; ".join(second)) + ".",
            _capital(_worth(on_policy)) + ".",
        ),
        attributions=attributions,
        on_policy=on_policy,
        cautions=tuple(_cautions(runs, attributions)),
    )


def show_number(value: float, form: str = ".2f") -> str:
    """A number with a real minus sign, and none before a zero."""
    text = format(value, form)
    if float(text) == 0:
        text = text.replace("-", "")
    return text.replace("-", "\N{MINUS SIGN}")


def show_difference(metric: str, value: float) -> str:
    """A difference with sign and unit; shares in points: `+3.2 pp`."""
    if in_points(metric):
        return f"{show_number(100 * value, '+.1f')}\N{NO-BREAK SPACE}pp"
    return f"{show_number(value, '+.3g')}\N{NO-BREAK SPACE}{describe(metric).unit}"


def show_interval(metric: str, low: float | None, high: float | None) -> str:
    """An interval of a difference, without the unit: `[+1.0, +5.4]`.

    Differences of shares lie within ±100 points, and so do the ends that are shown.
    """
    if low is None or high is None:
        return "[no interval]"
    if bounded(metric):
        low, high = max(low, -1.0), min(high, 1.0)
    scale, digits = (100, ".1f") if in_points(metric) else (1, ".3g")
    lower, upper = (show_number(scale * end, f"+{digits}") for end in (low, high))
    return f"[{lower},\N{NO-BREAK SPACE}{upper}]"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _sentence(found: Attribution | None, outcome: str) -> str:
    about = describe(outcome).label.split(",")[0]
    about = {"unmoved": "update sparsity"}.get(about, about)
    if found is None:
        return f"{about} was not measured in every cell"
    if found.joint is not None:
        names = " and ".join(knob_name(factor) for factor in found.joint.factors)
        return (
            f"no single knob explains {about}: {names} act together (their interaction: "
            f"{_omega(found.joint)})"
        )
    if found.named is None:
        return f"which knob explains most of {about} cannot be told here: {found.reason}"
    knob = next(knob for knob in found.knobs if knob.factor == found.named)
    verb = "is the only knob varied and moves" if len(found.knobs) == 1 else "explains most of"
    return f"the {knob_name(knob.factor)} {verb} {about} ({_triple(knob, outcome)})"


def _omega(share: Share) -> str:
    low, high = show_number(share.low or 0.0), show_number(share.high or 0.0)
    return f"ω² {show_number(share.omega2 or 0.0)} [{low},\N{NO-BREAK SPACE}{high}]"


def _triple(knob: Knob, outcome: str) -> str:
    swing = knob.swing
    reach = show_difference(outcome, swing.value).lstrip("+")
    ends = show_interval(outcome, swing.low, swing.high).replace("+", "")
    return f"{_omega(knob.share)}; worst-case swing {reach} {ends}"


def on_policy_worth(runs: Runs) -> OnPolicy:
    """Compare student with teacher rollouts: accuracy gained, and cost ratios."""
    levels = runs.levels.get(ROLLOUT, ())
    both = {"student", "teacher"} <= set(levels) and bool(runs.complete.seeds)
    if not both or not runs.measured("accuracy"):
        return OnPolicy("not studied", None, (), {}, 0.0)
    ratios, generated = _costs(runs)
    gain = paired_effect(runs, "accuracy", ROLLOUT, levels=POLICIES, items=True)
    split = _split(runs)
    dearer = ratios.get("flops", ratios.get("tokens_generated", math.inf)) > 1
    sure = gain.told and _excludes_zero(gain.item_low, gain.item_high)
    verdict: Worth = "cannot be told"
    if split:
        verdict = "depends"
    elif sure:
        verdict = "worth" if gain.difference > 0 else "not worth"
    elif gain.equivalent(ACCURACY_MARGIN) and dearer:
        verdict = "not worth"
    return OnPolicy(verdict, gain, split, ratios, generated)


def _excludes_zero(low: float | None, high: float | None) -> bool:
    return low is None or high is None or low * high > 0


def _split(runs: Runs) -> tuple[PairedEffect, ...]:
    """The gain at the two levels of the knob on which it depends most, if it is shown to."""
    found: list[tuple[float, tuple[PairedEffect, ...]]] = []
    for factor, labels in runs.varied().items():
        if factor == ROLLOUT or len(labels) != 2:
            continue
        levels = (labels[0], labels[1])
        dod = difference_of_differences(
            runs,
            "accuracy",
            first=(ROLLOUT, POLICIES),
            second=(factor, levels),
            confidence=SPLIT_CONFIDENCE,
        )
        large = abs(dod.difference) > 2 * ACCURACY_MARGIN
        if large and dod.low is not None and _excludes_zero(dod.low, dod.high):
            found.append((abs(dod.difference), (dod.first, dod.second)))
    return max(found, key=lambda pair: pair[0])[1] if found else ()


def _costs(runs: Runs) -> tuple[dict[str, float], float]:
    """Mean cost of a student-rollout cell over that of a teacher-rollout cell, shares included."""
    ratios: dict[str, float] = {}
    generated = 0.0
    for metric in COSTS:
        means: dict[str, float] = {}
        for policy in POLICIES:
            cells = [run for run in runs.runs if run.cell.factors[ROLLOUT] == policy]
            if not all(metric in run.final for run in cells):
                break
            own = float(np.mean([run.final[metric].value for run in cells]))
            shared = [run.final[SHARED].value for run in cells if SHARED in run.final]
            extra = float(np.mean(shared)) if metric == "flops" and shared else 0.0
            means[policy] = own + extra
        if len(means) == len(POLICIES):
            student, teacher = means["student"], means["teacher"]
            ratios[metric] = student / teacher if teacher else math.inf
            generated = student if metric == "tokens_generated" else generated
    return ratios, generated


def _worth(found: OnPolicy) -> str:
    if found.gain is None:
        return "whether on-policy rollouts are worth their cost was not studied here"
    verdicts: Mapping[Worth, str] = {
        "worth": "on-policy rollouts bought accuracy here",
        "not worth": "on-policy rollouts were not worth their cost here",
        "cannot be told": "whether on-policy rollouts are worth their cost cannot be told here",
        "depends": "whether on-policy rollouts are worth their cost depends on the other knobs",
        "not studied": "",
    }
    if found.split:
        gains = " and ".join(f"{_gain(e)} under {_held(e)}" for e in found.split)
    else:
        gains = _gain(found.gain)
    return f"{verdicts[found.verdict]}: {gains} against teacher rollouts, {cost_text(found)}"


def _gain(effect: PairedEffect) -> str:
    ends = show_interval(effect.outcome, effect.low, effect.high)
    return f"{show_difference(effect.outcome, effect.difference)} {ends}"


def _held(effect: PairedEffect) -> str:
    return " · ".join(f"{knob_name(factor)} {label}" for factor, label in effect.within.items())


def cost_text(found: OnPolicy) -> str:
    """The cost of student rollouts in words: `at 1.9 times the FLOPs per cell and ...`."""
    names = {"flops": "the FLOPs", "seconds": "the seconds", "tokens_generated": "the tokens"}
    parts = [
        f"{ratio:.2g} times {names[metric]}"
        for metric, ratio in found.ratios.items()
        if math.isfinite(ratio)
    ]
    if math.isinf(found.ratios.get("tokens_generated", 0.0)):
        parts.append(
            f"{found.generated:,.0f} generated tokens where teacher rollouts are made once "
            "and shared"
        )
    return f"per cell at {', '.join(parts)}" if parts else "at a cost that was not recorded"


def _cautions(runs: Runs, attributions: Mapping[str, Attribution]) -> Sequence[str]:
    cautions: list[str] = []
    for outcome, found in attributions.items():
        top = found.knobs[0].share.omega2 if found.knobs else None
        for term in found.interactions[:1]:
            large = term.omega2 is not None and top is not None and term.omega2 > 0.5 * top
            if large and term.low is not None and term.low > 0:
                names = " and ".join(knob_name(factor) for factor in term.factors)
                cautions.append(
                    f"{describe(outcome).label}: {names} interact (ω² {term.omega2:.2f}); read the "
                    "effects at each setting, not the averages."
                )
    seeds = len(runs.complete.seeds)
    if seeds < 5:
        cautions.append(
            f"{seeds} seed{'s' if seeds != 1 else ''}: intervals are wide, and small effects "
            "cannot be told from the noise of a run."
        )
    return cautions
