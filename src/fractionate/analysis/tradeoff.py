"""What the task gained against what was lost elsewhere: pairs, fronts, and KL as a predictor.

(gain, drop) pairs follow arXiv 2510.18874; the front over a sweep and the fit of forgetting on the
divergence from the base follow arXiv 2509.04259.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fractionate.analysis.answer import show_difference
from fractionate.analysis.evidence import Floats, drop_of
from fractionate.analysis.metrics_table import describe
from fractionate.analysis.runs import RATE, ROLLOUT, Arm, Runs
from fractionate.analysis.tables import ABSENT, Column, Row, Table, text_column
from fractionate.statistics import (
    AddedExplanation,
    PolynomialFit,
    added_explanation,
    pareto_front,
    quadratic_fit,
)

MATCHED = 0.03
"""Arms whose accuracies differ by less than this are compared in what they forgot."""
KL_TO_BASE = "kl_to_base"


@dataclass(frozen=True)
class Tradeoff:
    """Gains on the task against losses elsewhere.

    Attributes:
        pairs: One row per arm, by rising gain; those on the front are marked.
        matched: Student against teacher rollouts at matched accuracy, a sentence.
    """

    pairs: Table
    matched: str


def tradeoff(runs: Runs) -> Tradeoff | None:
    """(gain, drop) of every arm; None where accuracy or forgetting was not measured."""
    drop = drop_of(runs)
    if not runs.measured("accuracy") or not runs.measured(drop):
        return None
    start = [
        run.by_step[0]["accuracy"].value
        for run in runs.runs
        if "accuracy" in run.by_step.get(0, {})
    ]
    base = float(np.mean(start)) if start else 0.0
    accuracy = [_mean(runs, arm, "accuracy") for arm in runs.arms]
    lost = [_mean(runs, arm, drop) for arm in runs.arms]
    front = {int(i) for i in pareto_front(accuracy, [-value for value in lost])}
    columns = (
        text_column("Cell"),
        Column("gain, pp", "Accuracy after minus before training, mean over seeds"),
        Column("drop, pp", f"{describe(drop).label.capitalize()}, mean over seeds"),
        text_column("front", "No other cell has both more accuracy and less forgetting"),
    )
    rows = [
        Row(
            (
                runs.arms[i].label,
                show_difference("accuracy", accuracy[i] - base) if start else ABSENT,
                show_difference(drop, lost[i]),
                "on the front" if i in front else "",
            ),
            "named" if i in front else "",
        )
        for i in sorted(range(len(accuracy)), key=accuracy.__getitem__)
    ]
    return Tradeoff(Table(columns, tuple(rows)), _matched(runs, accuracy, lost))


def _mean(runs: Runs, arm: Arm, metric: str) -> float:
    return float(np.mean([run.final[metric].value for run in runs.of(arm)]))


def _matched(runs: Runs, accuracy: list[float], lost: list[float]) -> str:
    """What student and teacher rollouts forgot where they reach about the same accuracy."""
    on = [i for i, arm in enumerate(runs.arms) if arm.rollout == "student"]
    off = [i for i, arm in enumerate(runs.arms) if arm.rollout == "teacher"]
    pairs = [(i, j) for i in on for j in off if abs(accuracy[i] - accuracy[j]) <= MATCHED]
    if not pairs:
        return (
            "No cell with student rollouts has a cell with teacher rollouts within "
            f"{100 * MATCHED:.0f} pp of its accuracy: what they forgot cannot be compared at "
            "matched accuracy."
        )
    less = sum(lost[i] < lost[j] for i, j in pairs)
    gap = 100 * float(np.mean([lost[i] - lost[j] for i, j in pairs]))
    return (
        f"At matched accuracy (within {100 * MATCHED:.0f} pp, {len(pairs)} pairs of cells, rates "
        f"and KLs free) student rollouts forgot less in {less}, on average {gap:+.1f} pp."
    ).replace("-", "\N{MINUS SIGN}")


# ---------------------------------------------------------------- KL to the base as a predictor


@dataclass(frozen=True)
class DriftFit:
    """Forgetting = a + b K + c K², K the KL from the base on prompts of the task.

    Attributes:
        fit: Over runs; K in nats per token, forgetting in points.
        added: Whether rollout policy and rate explain anything once K and K² are in, by factor.
        sentences: All that in words.
    """

    fit: PolynomialFit
    added: dict[str, AddedExplanation]
    sentences: tuple[str, ...]


def drift_fit(runs: Runs) -> DriftFit | None:
    """The fit over all runs; None where either side was not measured or there are too few runs."""
    drop = drop_of(runs)
    if not runs.measured(KL_TO_BASE) or not runs.measured(drop):
        return None
    kl = np.array([run.final[KL_TO_BASE].value for run in runs.runs])
    lost = 100 * np.array([run.final[drop].value for run in runs.runs])
    try:
        fit = quadratic_fit(kl, lost)
    except ValueError:  # fewer than four runs, or fewer than three divergences
        return None
    added = dict(_added(runs, kl, lost))
    return DriftFit(fit, added, tuple(_sentences(fit, added)))


def _added(runs: Runs, kl: Floats, lost: Floats) -> Iterator[tuple[str, AddedExplanation]]:
    base = {"K": kl, "K squared": kl**2}
    for factor, name in ((ROLLOUT, "the rollout policy"), (RATE, "the learning rate")):
        labels = runs.levels.get(factor, ())
        if len(labels) != 2:
            continue
        code = np.array(
            [1.0 if run.cell.factors[factor] == labels[0] else -1.0 for run in runs.runs]
        )
        try:
            yield name, added_explanation(lost, base, {factor: code})
        except ValueError:  # too few runs, or K tells the levels apart completely
            continue


def _sentences(fit: PolynomialFit, added: dict[str, AddedExplanation]) -> Iterator[str]:
    a, b, c = (f"{value:.2f}".replace("-", "\N{MINUS SIGN}") for value in fit.coefficients)
    r2, loo = (ABSENT if v is None else f"{v:.2f}" for v in (fit.r2, fit.loo_r2))
    yield (
        f"Forgetting in points = {a} + {b} K + {c} K², K the KL from the base in nats per token on "
        f"prompts of the task: R² {r2}, leave-one-out {loo}, {fit.n} runs."
    )
    for name, found in added.items():
        if found.p is not None and found.full_r2 is not None:
            says = "adds to it" if found.p < 0.05 else "adds nothing that noise would not"
            yield f"Once K is in, {name} {says} (R² {found.full_r2:.2f}, p = {found.p:.2g})."
    if fit.note:
        yield f"Caution: {fit.note}."
