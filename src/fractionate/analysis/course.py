"""The course of a study: its evaluations step by step, and the reinforcement learning after it."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fractionate.analysis.answer import show_number
from fractionate.analysis.claims_coverage import reward_curve
from fractionate.analysis.measure import Value, evaluation_values
from fractionate.analysis.outcome_names import STYLE_SHARE
from fractionate.analysis.runs import Arm, Run, Runs
from fractionate.analysis.tables import ABSENT, Column, Row, Table, average, text_column
from fractionate.records import EvalRecord

_FOLLOWED = (
    ("accuracy", "accuracy, %"),
    ("skills", "skills, %"),
    (STYLE_SHARE, "in the teacher's style, %"),
)
"""Outcomes that are shown step by step."""


def course_table(runs: Runs) -> Table | None:
    """Accuracy, skills and style at every step evaluated; None without a step between the ends."""
    steps = sorted(set[int].intersection(*(set(run.by_step) for run in runs.runs)))
    if len(steps) < 3:
        return None
    by_arm = {arm.label: [average(runs.of(arm), step) for step in steps] for arm in runs.arms}
    shown = [
        (place, name, f"{label} · {step}")
        for name, label in _FOLLOWED
        for place, step in enumerate(steps)
        if any(name in values[place] for values in by_arm.values())
    ]
    columns = (text_column("Cell"), *(Column(head, "At this step") for *_, head in shown))
    rows = (
        Row((label, *(_percent(values[place].get(name)) for place, name, _ in shown)))
        for label, values in by_arm.items()
    )
    return Table(columns, tuple(rows)) if shown else None


def _percent(value: Value | None) -> str:
    return ABSENT if value is None else show_number(100 * value.value, ".1f")


def rlvr_table(runs: Runs) -> Table | None:
    """Every arm before, during and after RLVR, means over seeds; None where there was none."""
    followed = [run for run in runs.runs if reward_curve(run).size]
    if not followed:
        return None
    columns = (
        text_column("Start of RLVR"),
        Column("seeds"),
        Column("held out before, %", "Accuracy on held-out problems before the first update"),
        Column("held out after, %", "After the last update"),
        Column("reward, first", "Mean training reward, moving over a twentieth of the updates"),
        Column("reward, best"),
        Column("reward, last"),
        Column("silent groups, %", "Groups of equal rewards, which train nothing"),
        Column("length, last", "Mean completion length in tokens, last tenth of the updates"),
        Column("skills before, %"),
        Column("skills after, %"),
    )
    arms = ((arm, [run for run in runs.of(arm) if run in followed]) for arm in runs.arms)
    rows = (_rlvr_row(arm, own) for arm, own in arms if own)
    return Table(columns, tuple(rows))


def _rlvr_row(arm: Arm, runs: Sequence[Run]) -> Row:
    curves = [reward_curve(run) for run in runs]
    ends = np.mean([(curve[0], curve.max(), curve[-1]) for curve in curves], axis=0)
    silent = [record.silent_groups for run in runs for record in run.cell.rlvr]
    late = [record for run in runs for record in run.cell.rlvr[-max(1, len(run.cell.rlvr) // 10) :]]

    def held_out(metric: str, end: Callable[[Iterable[int]], int]) -> str:
        evaluated = [run.cell.rlvr_evaluations for run in runs if run.cell.rlvr_evaluations]
        found = [_measured(records[end(records)], metric) for records in evaluated]
        return _mean([100 * value for value in found if value is not None], ".1f")

    return Row(
        (
            arm.label,
            str(len(runs)),
            held_out("accuracy", min),
            held_out("accuracy", max),
            *(f"{value:.2f}" for value in ends),
            _mean([100 * s for s in silent if s is not None], ".0f"),
            _mean([record.mean_length for record in late if record.mean_length is not None], ".1f"),
            held_out("skills", min),
            held_out("skills", max),
        )
    )


def _measured(records: Sequence[EvalRecord], metric: str) -> float | None:
    values = (value.value for value in evaluation_values(records, None) if value.metric == metric)
    return next(values, None)


def _mean(values: Sequence[float], form: str) -> str:
    return show_number(float(np.mean(values)), form) if values else ABSENT
