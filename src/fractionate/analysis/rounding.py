"""Update sparsity beside its null: what rounding alone keeps unmoved, and what lies beyond it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fractionate.analysis.answer import show_difference, show_interval
from fractionate.analysis.contrasts import PairedEffect, paired_effect
from fractionate.analysis.knobs import knob_name
from fractionate.analysis.runs import KL, ROLLOUT, Arm, Runs
from fractionate.analysis.tables import ABSENT, INTERVAL, Column, Row, Table, text_column
from fractionate.statistics import AddedExplanation, added_explanation, t_interval

OBSERVED, PREDICTED, BEYOND = "sparsity@1e-06", "rounding_null@1e-06", "sparsity_excess@1e-06"
BOUND = "rounding_bound"


@dataclass(frozen=True)
class Rounding:
    """Observed against predicted sparsity of a study.

    Attributes:
        cells: One row per arm: observed, predicted by simulation, analytic bound, and the excess
            with its interval over seeds.
        effects: What rollout policy and KL direction change of the excess, one row each.
        explanation: Whether their codes explain anything of sparsity once the prediction is in
            (nested F test over runs); None with too few runs.
        sentence: That in words.
    """

    cells: Table
    effects: Table | None
    explanation: AddedExplanation | None
    sentence: str


def rounding(runs: Runs) -> Rounding | None:
    """Sparsity beside the rounding null; None where the study did not measure both."""
    if not all(runs.measured(name) for name in (OBSERVED, PREDICTED, BEYOND)):
        return None
    columns = (
        text_column("Cell"),
        Column("unmoved, %", "Weights moved by less than 1e-6, mean over seeds"),
        Column("predicted, %", "By rounding alone: Adam on these weights, without a model"),
        Column("bound, %", "Weights too large for the rate to move, by their spacing"),
        Column("beyond, pp", "Observed minus predicted"),
        Column(INTERVAL, "t interval over seeds"),
    )
    rows = tuple(_cell_row(runs, arm) for arm in runs.arms)
    effects = tuple(_effect_row(effect) for effect in _effects(runs))
    explanation = _explanation(runs)
    return Rounding(
        cells=Table(columns, rows),
        effects=Table(_EFFECTS, effects) if effects else None,
        explanation=explanation,
        sentence=_sentence(explanation),
    )


_EFFECTS = (
    text_column("Contrast"),
    Column("beyond rounding", "Difference in the excess, mean over matched pairs"),
    Column(INTERVAL, "t interval over pairs of runs"),
    text_column("reading"),
)


def _cell_row(runs: Runs, arm: Arm) -> Row:
    own = runs.of(arm)

    def mean(name: str) -> str:
        held = [run.final[name].value for run in own if name in run.final]
        return f"{100 * float(np.mean(held)):.1f}" if held else ABSENT

    excess = [run.final[BEYOND].value for run in own]
    ends = ABSENT
    if len(excess) > 1 and np.ptp(excess) > 0:
        found = t_interval(excess)
        ends = show_interval(BEYOND, found.low, found.high)
    shown = show_difference(BEYOND, float(np.mean(excess)))
    return Row((arm.label, mean(OBSERVED), mean(PREDICTED), mean(BOUND), shown, ends))


def _effects(runs: Runs) -> Iterator[PairedEffect]:
    """Rollout and KL, whole contrasts over all matched pairs."""
    if not runs.complete.seeds:
        return
    for factor, levels in ((ROLLOUT, ("student", "teacher")), (KL, ("forward", "reverse"))):
        if set(levels) <= set(runs.levels.get(factor, ())):
            yield paired_effect(runs, BEYOND, factor, levels=levels)


def _effect_row(effect: PairedEffect) -> Row:
    name = f"{knob_name(effect.factor)}, {effect.treatment} − {effect.control}"
    reading = "explains something beyond rounding" if effect.told else "cannot be told from nothing"
    return Row(
        (
            name,
            show_difference(BEYOND, effect.difference),
            show_interval(BEYOND, effect.low, effect.high),
            reading,
        ),
        "named" if effect.told else "",
    )


def _explanation(runs: Runs) -> AddedExplanation | None:
    observed = [run.final[OBSERVED].value for run in runs.runs]
    codes: dict[str, list[float]] = {}
    for factor in (ROLLOUT, KL):
        labels = runs.levels.get(factor, ())
        if len(labels) == 2:
            codes[factor] = [
                1.0 if run.cell.factors[factor] == labels[0] else -1.0 for run in runs.runs
            ]
    predicted = [run.final[PREDICTED].value for run in runs.runs]
    if not codes or len(observed) < len(codes) + 4:
        return None
    try:
        return added_explanation(observed, {"prediction": predicted}, codes)
    except ValueError:  # equal predictions (one rate), or codes that say the same
        return None


def _sentence(found: AddedExplanation | None) -> str:
    if found is None or found.base_r2 is None or found.full_r2 is None:
        return "Too few runs, or one prediction for all of them, to say what rounding explains."
    text = f"Rounding alone explains {100 * found.base_r2:.1f} % of the variance of sparsity "
    text += f"between runs; with rollout policy and KL direction it is {100 * found.full_r2:.1f} %"
    if found.p is None:
        return f"{text}."
    told = "more than noise would add" if found.p < 0.05 else "no more than noise would add"
    return f"{text}, {told} (F test, p = {found.p:.2g})."
