"""How far a study is, read from its store."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fractionate.study.keys import Stage
from fractionate.study.plan import Plan
from fractionate.study.store import Store
from fractionate.study.workspace import read_progress

State = Literal["done", "running", "failed", "partial", "corrupt", "missing"]


@dataclass(frozen=True)
class StageStatus:
    """One stage.

    Attributes:
        stage: The stage.
        state: "running" (a process holds it), "failed" (its last attempt raised), "partial"
            (begun and interrupted), "corrupt" (will be computed again), "done" or "missing".
        step: Last step that it reported.
        steps: Of how many.
        seconds_left: Estimate; none where nothing has been timed.
        error: The traceback of a failed stage.
    """

    stage: Stage
    state: State
    step: int | None = None
    steps: int | None = None
    seconds_left: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Status:
    """All stages of a plan.

    Attributes:
        stages: In the order of the plan.
        workers: Stages that are assumed to run side by side.
    """

    stages: tuple[StageStatus, ...]
    workers: int

    @property
    def counts(self) -> Mapping[str, int]:
        """How many stages are in each state."""
        return Counter(stage.state for stage in self.stages)

    @property
    def complete(self) -> bool:
        """Whether every stage is done."""
        return all(stage.state == "done" for stage in self.stages)

    @property
    def seconds_left(self) -> float | None:
        """Wall time until all is done; none while a kind of stage has never been timed."""
        left = [stage.seconds_left for stage in self.stages if stage.state != "done"]
        known = [seconds for seconds in left if seconds is not None]
        return sum(known) / self.workers if len(known) == len(left) else None

    def describe(self) -> str:
        """The status for people."""
        total, counts = len(self.stages), self.counts
        parts = [f"{counts[state]} {state}" for state in sorted(counts) if state != "done"]
        lines = [", ".join([f"{counts.get('done', 0)} of {total} stages done", *parts])]
        for item in self.stages:
            if item.state in ("done", "missing"):
                continue
            at = f" at step {item.step} of {item.steps}" if item.step is not None else ""
            lines.append(f"  {item.state}: {item.stage.name} [{item.stage.kind}]{at}")
            if item.error:
                lines.append(f"    {item.error.strip().splitlines()[-1]}")
        if self.seconds_left:
            lines.append(f"  about {self.seconds_left:.0f} s to go")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The status as plain values."""
        return {
            "complete": self.complete,
            "counts": dict(self.counts),
            "seconds_left": self.seconds_left,
            "stages": [
                {
                    "key": item.stage.key,
                    "kind": item.stage.kind,
                    "name": item.stage.name,
                    "state": item.state,
                    "step": item.step,
                    "steps": item.steps,
                    "seconds_left": item.seconds_left,
                    "error": item.error,
                }
                for item in self.stages
            ],
        }


def status(plan: Plan, store: Store, *, workers: int = 1) -> Status:
    """Look at every stage of a plan.

    Args:
        plan: The plan.
        store: Its store; it need not exist.
        workers: Stages that run side by side, for the estimate of the time left.
    """
    flops = plan.cost().flops_by_key
    pace = _pace(plan, store, flops)
    stages = tuple(
        _stage_status(stage, store, _expected(stage, pace, flops)) for stage in plan.stages
    )
    return Status(stages, workers)


def _stage_status(stage: Stage, store: Store, expected: float | None) -> StageStatus:
    state = store.inspect(stage.key)
    if state == "done":
        return StageStatus(stage, "done", seconds_left=0.0)
    error = store.read_error(stage)
    progress = read_progress(store.partial(stage))
    if store.is_locked(stage):
        found: State = "running"
    elif state == "corrupt":
        found = "corrupt"
    elif error is not None:
        found = "failed"
    else:
        found = "partial" if store.partial(stage).is_dir() else "missing"
    if progress is None:
        return StageStatus(stage, found, seconds_left=expected, error=_of(found, error))
    return StageStatus(
        stage,
        found,
        progress["step"],
        progress["total"],
        _left(progress, expected),
        _of(found, error),
    )


def _of(state: State, error: str | None) -> str | None:
    return error if state == "failed" else None


def _left(progress: Mapping[str, Any], expected: float | None) -> float | None:
    """Seconds left of a stage that is under way, from its own pace if it has one."""
    steps = progress["step"] - progress["first_step"]
    remaining = progress["total"] - progress["step"]
    if steps > 0:
        return remaining * (progress["updated"] - progress["started"]) / steps
    return expected


def _pace(plan: Plan, store: Store, flops: Mapping[str, float]) -> Mapping[str, float]:
    """Seconds per operation of each kind of stage, from the finished ones."""
    seconds: Counter[str] = Counter()
    work: Counter[str] = Counter()
    for stage in plan.stages:
        if store.is_done(stage.key):
            seconds[stage.kind] += store.seconds(stage.key)  # pyright: ignore[reportArgumentType]
            work[stage.kind] += max(flops[stage.key], 1.0)  # pyright: ignore[reportArgumentType]
    return {kind: seconds[kind] / work[kind] for kind in seconds}


def _expected(stage: Stage, pace: Mapping[str, float], flops: Mapping[str, float]) -> float | None:
    per_operation = pace.get(stage.kind)
    return None if per_operation is None else per_operation * max(flops[stage.key], 1.0)
