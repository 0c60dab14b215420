"""Executors: where the stages of a plan run. The plan decides what, the store whether.

An executor hands keys to whoever runs them and gets nothing back but success or failure; results
are in the store.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fractionate.study.execution import (
    DEFAULT_RUN_STAGE,
    Executor,
    InterruptedRunError,
    Outcome,
    Progress,
    RunStage,
    name_of,
    open_schedule,
    run_guarded,
    settle,
    sigterm_interrupts,
    silent,
)
from fractionate.study.keys import Stage
from fractionate.study.plan import Plan
from fractionate.study.pool import FoundElsewhere, ProcessExecutor
from fractionate.study.schedule import Schedule
from fractionate.study.store import Store


@dataclass(frozen=True)
class SerialExecutor:
    """One stage after the other, in this process."""

    def run(
        self,
        plan: Plan,
        store_root: Path,
        run_stage: str | RunStage = DEFAULT_RUN_STAGE,
        progress: Progress | None = None,
    ) -> Outcome:
        """See `Executor.run`."""
        name = name_of(run_stage)
        tell = FoundElsewhere(progress or silent)
        schedule, store = open_schedule(plan, store_root, tell)
        with sigterm_interrupts():
            try:
                while (stage := schedule.next()) is not None:
                    schedule.start(stage)
                    _run_here(stage, store, name, schedule, tell)
            except KeyboardInterrupt:
                raise InterruptedRunError(tell.outcome(schedule, interrupted=True)) from None
        return tell.outcome(schedule)


def _run_here(
    stage: Stage, store: Store, run_stage: str, schedule: Schedule, tell: Progress
) -> None:
    tell("start", stage, {})
    failure = run_guarded(stage, store, run_stage, lambda info: tell("progress", stage, info))
    settle(schedule, stage, failure, tell)


def _serial(number: str) -> Executor | None:
    return SerialExecutor() if not number else None


def _process(number: str) -> Executor | None:
    whole = number.isascii() and number.isdigit() and int(number) > 0
    return ProcessExecutor(int(number)) if whole else None


EXECUTORS: Mapping[str, Callable[[str], Executor | None]] = {
    "serial": _serial,
    "process": _process,
}
"""By kind: the executor for what stands behind the colon, or none if that is nonsense."""


def parse_executor(text: str) -> Executor:
    """The executor that `serial` or `process:N` names.

    Raises:
        ValueError: It names none; lists the forms.
    """
    kind, _, number = text.partition(":")
    executor = EXECUTORS[kind](number) if kind in EXECUTORS else None
    if executor is None:
        raise ValueError(
            f"executor '{text}': write 'serial', or 'process:N' with N worker processes, for "
            "example 'process:2'"
        )
    return executor
