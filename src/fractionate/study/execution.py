"""What all executors share: how a run starts, how a stage ends, how a run ends."""

import contextlib
import importlib
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, cast

from fractionate.study.cost import require_disk
from fractionate.study.keys import Stage
from fractionate.study.plan import Plan
from fractionate.study.schedule import Failure, Schedule
from fractionate.study.store import Store

Report = Callable[[Mapping[str, Any]], None]
RunStage = Callable[[Stage, Store, Report], None]
Progress = Callable[[str, Stage, Mapping[str, Any]], None]
"""Called with an event and its stage: "cached", "corrupt", "start", "progress", "done", "failed",
"not_run"."""

DEFAULT_RUN_STAGE = "fractionate.study.stages:run_stage"


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        done: Keys of the stages that are finished, the cached ones among them.
        cached: Keys of those that were finished before.
        failed: What went wrong, by key.
        not_run: Keys of the stages that a failure or an interruption kept from running.
        interrupted: Whether the run was stopped from outside.
    """

    done: tuple[str, ...]
    cached: tuple[str, ...]
    failed: Mapping[str, Failure]
    not_run: tuple[str, ...]
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """0 if all is done, 3 if a stage failed, 130 if interrupted."""
        if self.interrupted:
            return 130
        return 3 if self.failed else 0


class InterruptedRunError(KeyboardInterrupt):
    """The run was stopped by Ctrl-C or SIGTERM; running it again goes on.

    Attributes:
        outcome: What was done until then.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("interrupted; run again to go on")
        self.outcome = outcome


class Executor(Protocol):
    """Runs the unfinished stages of a plan."""

    def run(
        self,
        plan: Plan,
        store_root: Path,
        run_stage: str | RunStage = DEFAULT_RUN_STAGE,
        progress: Progress | None = None,
    ) -> Outcome:
        """Run every stage that the store does not have; a failed stage stops its descendants only.

        Args:
            plan: What to run.
            store_root: Folder of the store.
            run_stage: What runs a stage: "module:function", or an importable function.
            progress: Told of every event.

        Raises:
            InterruptedRunError: Ctrl-C or SIGTERM; unfinished work is kept.
            StoreError: The store cannot be written to, or the disk cannot hold the results.
        """
        ...


def run_guarded(stage: Stage, store: Store, run_stage: str, report: Report) -> Failure | None:
    """Run a stage; what it raises becomes a value, because others go on."""
    try:
        resolve_run_stage(run_stage)(stage, store, report)
    except Exception as error:  # noqa: BLE001 - a stage may fail in any way; the text is kept
        return Failure(f"{type(error).__name__}: {error}", traceback.format_exc())
    if not store.is_done(stage.key):
        return Failure("the stage ended without a result in the store", "")
    return None


def settle(schedule: Schedule, stage: Stage, failure: Failure | None, tell: Progress) -> None:
    """Take down how a stage ended, and which stages will not run for it."""
    if failure is None:
        schedule.finish(stage)
        tell("done", stage, {})
        return
    stopped = schedule.fail(stage, failure)
    tell("failed", stage, {"error": failure.message, "traceback": failure.traceback})
    for descendant in stopped:
        tell("not_run", descendant, {"because": stage.name})


def open_schedule(plan: Plan, store_root: Path, tell: Progress) -> tuple[Schedule, Store]:
    """Look at what the store has, set corrupt results aside, and refuse what cannot fit.

    Raises:
        StoreError: The store cannot be written to, or the disk cannot hold the results.
    """
    store = Store(store_root)
    store.prepare()
    cached: list[str] = []
    for stage in plan.stages:
        state = store.inspect(stage.key)
        if state == "corrupt":
            tell("corrupt", stage, store.set_aside(stage))
        elif state == "done":
            cached.append(stage.key)
            tell("cached", stage, {})
    cost = plan.cost(store)
    require_disk(cost, store)
    return Schedule(plan.stages, frozenset(cached), cost.flops_by_key), store


def outcome_of(schedule: Schedule, *, interrupted: bool = False) -> Outcome:
    """The outcome of a schedule as it stands."""
    return Outcome(
        done=schedule.done,
        cached=schedule.cached,
        failed=dict(schedule.failed),
        not_run=schedule.left,
        interrupted=interrupted,
    )


def resolve_run_stage(name: str) -> RunStage:
    """The function that "module:function" names.

    Raises:
        ValueError: There is none.
    """
    module, colon, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function) if colon else None
    except (ImportError, AttributeError) as error:
        raise ValueError(f"run_stage '{name}' cannot be imported ({error})") from error
    if not callable(found):
        raise ValueError(  # noqa: TRY004 - the name is wrong, whatever it names
            f"run_stage '{name}': write it as module:function"
        )
    return cast("RunStage", found)


def name_of(run_stage: str | RunStage) -> str:
    """The "module:function" of a function that another process can import.

    Raises:
        ValueError: It is a lambda or a nested function.
    """
    if isinstance(run_stage, str):
        return run_stage
    name: str = getattr(run_stage, "__qualname__", "")
    if not name.isidentifier():
        raise ValueError(f"run_stage must be a function at the top of a module, not '{name}'")
    return f"{run_stage.__module__}:{name}"


@contextlib.contextmanager
def sigterm_interrupts() -> Generator[None]:
    """SIGTERM stops a run the way Ctrl-C does; only the main thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - its signature
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def silent(event: str, stage: Stage, info: Mapping[str, Any]) -> None:
    """Nobody wants to know."""
