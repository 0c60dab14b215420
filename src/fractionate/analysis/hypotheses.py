"""Hypotheses that were declared before the run: one paired contrast each, judged by fixed rules."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fractionate.analysis.contrasts import PairedEffect, paired_effect
from fractionate.analysis.runs import Runs
from fractionate.config import Hypothesis, resolve
from fractionate.statistics import holm

Verdict = Literal["higher", "lower", "equivalent", "cannot be told"]

ALPHA = 0.05


@dataclass(frozen=True)
class Tested:
    """One declared contrast at one setting of the factors it is made within.

    Attributes:
        hypothesis: As declared.
        effect: The contrast; None where the study cannot make it.
        holm_p: Its p-value, adjusted by Holm over all declared contrasts.
        verdict: "higher" or "lower" (treatment against control: Holm p < .05), "equivalent"
            (two one-sided tests at .05 with the declared margin), or "cannot be told".
        reason: Why it cannot be told, or None.
    """

    hypothesis: Hypothesis
    effect: PairedEffect | None
    holm_p: float | None
    verdict: Verdict
    reason: str | None


def judge_hypotheses(runs: Runs, hypotheses: Sequence[Hypothesis]) -> tuple[Tested, ...]:
    """Judge every declared hypothesis; all of them form one family for Holm.

    A difference is claimed at Holm p < .05. Where it is not, two arms are called equivalent only if
    two one-sided tests show it at the declared margin. A large p-value alone shows nothing, and
    neither do seeds that agree exactly: noise that was not seen is not shown to be absent.

    Args:
        runs: The study.
        hypotheses: As declared, each expanded over the levels of the factors it is made within.
    """
    made = [item for hypothesis in hypotheses for item in _make(runs, hypothesis)]
    testable = [
        (i, item.effect.p)
        for i, item in enumerate(made)
        if item.effect is not None and item.effect.p is not None
    ]
    adjusted = [float(p) for p in holm([p for _, p in testable])] if testable else []
    by_place = {i: p for (i, _), p in zip(testable, adjusted, strict=True)}
    return tuple(_judge(item, by_place.get(i)) for i, item in enumerate(made))


def _make(runs: Runs, hypothesis: Hypothesis) -> list[Tested]:
    within = hypothesis.within or ()
    names = [resolve(name) for name in ((within,) if isinstance(within, str) else within)]
    if absent := [name for name in names if name not in runs.levels]:
        why = f"the study does not vary {', '.join(absent)}"
        return [Tested(hypothesis, None, None, "cannot be told", why)]
    settings = itertools.product(*(runs.levels[name] for name in names))
    levels = (hypothesis.treatment, hypothesis.control)
    made: list[Tested] = []
    for setting in settings:
        held = dict(zip(names, setting, strict=True))
        try:
            effect = paired_effect(
                runs, hypothesis.outcome, hypothesis.factor, levels=levels, within=held, items=True
            )
        except ValueError as error:
            made.append(Tested(hypothesis, None, None, "cannot be told", str(error)))
        else:
            made.append(Tested(hypothesis, effect, None, "cannot be told", None))
    return made


def _judge(item: Tested, adjusted: float | None) -> Tested:
    effect, margin = item.effect, item.hypothesis.equivalence_margin
    if effect is None:
        return item
    if effect.se is None:
        return replace(item, reason="one seed: the noise of a run is unknown")
    if effect.se == 0:
        why = "no spread is seen (all pairs differ by the same amount): the noise is unknown"
        return replace(item, reason=why)
    if adjusted is not None and adjusted < ALPHA:
        return replace(
            item, holm_p=adjusted, verdict="higher" if effect.difference > 0 else "lower"
        )
    if margin is not None and effect.equivalent(margin):
        return replace(item, holm_p=adjusted, verdict="equivalent")
    why = "neither a difference nor equivalence is shown"
    why = why if margin is not None else "no difference is shown, and no margin was declared"
    return replace(item, holm_p=adjusted, reason=why)
