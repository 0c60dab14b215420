"""Measurements as rows of a printed table and as plain values."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fractionate.analysis.metrics_table import describe

if TYPE_CHECKING:
    from fractionate.analysis.measure import Value
    from fractionate.records import EvalRecord


def shown(metric: str, number: float | None) -> str:
    """A number in the metric's unit; shares in percent."""
    if number is None:
        return ""
    return f"{100 * number:.1f} %" if describe(metric).unit == "share" else f"{number:.4g}"


def interval(value: "Value") -> str:
    """The 95 % interval over items, or nothing."""
    if value.low is None or value.high is None:
        return ""
    return f"[{shown(value.metric, value.low)}, {shown(value.metric, value.high)}]"


def plain(values: "Iterable[Value]") -> list[dict[str, Any]]:
    """Values for JSON."""
    return [
        {
            "metric": value.metric,
            "unit": describe(value.metric).unit,
            "value": value.value,
            "low": value.low,
            "high": value.high,
            "n": value.n,
        }
        for value in values
    ]


def losses(records: "Sequence[EvalRecord]") -> dict[str, Any]:
    """How many completions were truncated or could not be read, and why answers were wrong."""
    reasons: dict[str, int] = {}
    for record in records:
        for reason, count in record.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + count
    return {
        "completions": sum(record.samples for record in records),
        "truncated": sum(record.truncated for record in records),
        "unanswered": sum(record.unanswered for record in records),
        "reasons": dict(sorted(reasons.items(), key=lambda item: -item[1])),
    }
