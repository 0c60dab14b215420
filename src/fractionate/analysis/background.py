"""What a report says beside the records of its cells."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fractionate.records import EvalRecord


@dataclass(frozen=True)
class Example:
    """One completion shown to the reader, as the model wrote it.

    Attributes:
        cell: Who wrote it.
        prompt: What was asked.
        completion: What came back; shown escaped.
        verdict: How it was graded, e.g. "right" or "wrong_target".
    """

    cell: str
    prompt: str
    completion: str
    verdict: str


@dataclass(frozen=True)
class Background:
    """What a report says beside the records; everything is optional.

    Attributes:
        plan_key: SHA-256 of the plan.
        hypotheses_hash: SHA-256 of the declared hypotheses, margins and rates.
        confounds: Contrasts that change a second thing, one sentence each.
        notes: Warnings of plan and preflight, one sentence each.
        teacher: Item records of the teacher.
        examples: Completions to show.
        provenance: Versions, commit, total time: nested plain values.
        smoke: The run only shows that everything works; its numbers mean nothing.
    """

    plan_key: str | None = None
    hypotheses_hash: str | None = None
    confounds: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    teacher: tuple[EvalRecord, ...] = ()
    examples: tuple[Example, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict[str, Any])
    smoke: bool = False
