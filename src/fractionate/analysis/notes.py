"""Sentences of a report that depend on its numbers: floors, and the noise of finite items."""

from collections.abc import Sequence

import numpy as np

from fractionate.analysis.answer import show_number
from fractionate.analysis.measure import evaluation_values
from fractionate.analysis.metrics_table import describe
from fractionate.analysis.runs import Runs
from fractionate.records import EvalRecord
from fractionate.statistics import binomial_se

SOLVED = ("accuracy", "harder")
"""Outcomes that count solved items, and so have a floor."""


def floor_notes(runs: Runs, teacher: Sequence[EvalRecord] = ()) -> tuple[str, ...]:
    """One sentence per outcome that no student moves off zero.

    Args:
        runs: The study.
        teacher: Item records of the teacher, to show that the items can be solved.
    """
    able = {value.metric: value.value for value in evaluation_values(teacher, None)}
    notes: list[str] = []
    for metric in SOLVED:
        if not runs.measured(metric) or any(run.final[metric].value > 0 for run in runs.runs):
            continue
        label = describe(metric).label
        note = f"{label[:1].upper()}{label[1:]} is at the floor: no student solves any"
        if metric in able:
            note += f" (the teacher model: {show_number(100 * able[metric], '.1f')} %)"
        notes.append(f"{note}. It cannot tell the cells apart.")
    return tuple(notes)


def item_note(runs: Runs) -> str | None:
    """How far the finite set of items alone blurs the accuracy of one run; None if not measured."""
    if not runs.measured("accuracy"):
        return None
    values = [run.final["accuracy"] for run in runs.runs]
    items = min(value.n for value in values)
    mean = float(np.mean([value.value for value in values]))
    start = f"Accuracy is measured on a finite set of items: with {items} of them a single run at "
    start += f"{show_number(100 * mean, '.1f')} %"
    if mean in (0.0, 1.0):
        reach = show_number(100 * min(1.0, 3 / items), ".1f")
        return f"{start} may be up to {reach} pp off (95 %, rule of three) from the items alone."
    error = show_number(100 * binomial_se(mean, items), ".1f")
    return f"{start}, the mean here, has a standard error of up to {error} pp from the items alone."
