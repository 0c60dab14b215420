"""The teacher's accuracy and the length of its responses, as in table 2 of arXiv 2609.35259."""

from collections.abc import Mapping, Sequence

import numpy as np

from fractionate.analysis.tables import ABSENT, INTERVAL, Column, Row, Table, text_column
from fractionate.records import EvalRecord
from fractionate.statistics import wilson_interval


def teacher_table(teachers: Mapping[str, Sequence[EvalRecord]]) -> Table | None:
    """One row per teacher and suite of single samples; None where there is nothing to show.

    Args:
        teachers: Item records of every teacher, by name.
    """
    columns = (
        text_column("Teacher"),
        text_column("suite"),
        Column("accuracy, %"),
        Column(INTERVAL, "Wilson interval over items"),
        Column("items"),
        Column("response, tokens", "Mean ± standard deviation over responses, stop token included"),
        Column("truncated"),
    )
    rows = [
        _row(name, suite, own)
        for name, records in teachers.items()
        for suite in dict.fromkeys(record.suite for record in records)
        if suite in ("accuracy", "harder")
        and (own := [r for r in records if r.suite == suite and r.samples == 1])
    ]
    return Table(columns, tuple(rows)) if rows else None


def _row(name: str, suite: str, records: Sequence[EvalRecord]) -> Row:
    right, n = sum(record.correct for record in records), len(records)
    low, high = wilson_interval(right, n)
    lengths = [record.tokens for record in records]
    spread = f" ± {np.std(lengths, ddof=1):.1f}" if n > 1 else ABSENT
    temperature = records[0].temperature
    return Row(
        (
            name,
            f"{suite}, T {temperature:g}",
            f"{100 * right / n:.1f}",
            f"[{100 * low:.1f}, {100 * high:.1f}]",
            str(n),
            f"{np.mean(lengths):.1f}{spread}",
            str(sum(record.truncated for record in records)),
        )
    )
