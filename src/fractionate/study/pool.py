"""The process executor: long-lived workers, one per slot, each running one stage at a time."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, cast

from fractionate.study.execution import (
    DEFAULT_RUN_STAGE,
    InterruptedRunError,
    Outcome,
    Progress,
    RunStage,
    name_of,
    open_schedule,
    outcome_of,
    run_guarded,
    settle,
    sigterm_interrupts,
    silent,
)
from fractionate.study.keys import Stage
from fractionate.study.plan import Plan
from fractionate.study.schedule import Failure, Schedule
from fractionate.study.store import Store

_UNGUARDED = 78
"""Exit code of a worker that ran the caller's script instead of waiting for stages."""
_GRACE = 10.0
"""Seconds that a worker has to stop before it is killed."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class UnguardedScriptError(RuntimeError):
    """A script that runs stages in processes has no `if __name__ == "__main__":`."""


class FoundElsewhere:
    """Tells of a stage that another process finished first as "cached", not as "done".

    Args:
        tell: Told of every event.

    Attributes:
        keys: Those stages.
    """

    def __init__(self, tell: Progress) -> None:
        self._tell = tell
        self.keys: tuple[str, ...] = ()

    def __call__(self, event: str, stage: Stage, info: Mapping[str, Any]) -> None:
        """Take one event."""
        if event == "progress" and "there" in info:
            self.keys = (*self.keys, stage.key)
        elif event == "done" and stage.key in self.keys:
            self._tell("cached", stage, {})
        else:
            self._tell(event, stage, info)

    def outcome(self, schedule: Schedule, *, interrupted: bool = False) -> Outcome:
        """The outcome of a schedule, with these stages among the cached ones."""
        outcome = outcome_of(schedule, interrupted=interrupted)
        found = tuple(key for key in self.keys if key in outcome.done)
        return replace(outcome, cached=(*outcome.cached, *found))


@dataclass(frozen=True)
class ProcessExecutor:
    """Stages side by side in worker processes of this machine.

    Attributes:
        workers: How many at once.
    """

    workers: int

    def run(
        self,
        plan: Plan,
        store_root: Path,
        run_stage: str | RunStage = DEFAULT_RUN_STAGE,
        progress: Progress | None = None,
    ) -> Outcome:
        """See `Executor.run`. A worker that dies is its stage's failure; the others go on.

        Raises:
            UnguardedScriptError: The script that calls this would call it again in every worker.
        """
        _leave_if_starting()
        tell = FoundElsewhere(progress or silent)
        name = name_of(run_stage)
        schedule, store = open_schedule(plan, store_root, tell)
        with sigterm_interrupts(), _Pool(plan, store.root, name) as pool:
            try:
                self._loop(pool, schedule, tell)
            except KeyboardInterrupt:
                pool.stop()
                raise InterruptedRunError(tell.outcome(schedule, interrupted=True)) from None
        return tell.outcome(schedule)

    def _loop(self, pool: "_Pool", schedule: Schedule, tell: Progress) -> None:
        while True:
            while pool.busy < self.workers and (stage := schedule.next()) is not None:
                schedule.start(stage)
                tell("start", stage, {})
                pool.submit(stage)
            if not pool.busy:
                return
            for stage, message in pool.messages():
                if isinstance(message, _Ended):
                    settle(schedule, stage, message.failure, tell)
                else:
                    tell("progress", stage, message)


@dataclass(frozen=True)
class _Ended:
    """The last message of a stage."""

    failure: Failure | None


@dataclass
class _Worker:
    """A worker process and the stage it has now."""

    process: SpawnProcess
    connection: Connection
    stage: Stage | None = None


class _Pool:
    """Worker processes, started when needed and kept."""

    def __init__(self, plan: Plan, root: Path, run_stage: str) -> None:
        self._arguments = (plan, root, run_stage)
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []

    def __enter__(self) -> "_Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def busy(self) -> int:
        """How many workers have a stage."""
        return sum(worker.stage is not None for worker in self._workers)

    def submit(self, stage: Stage) -> None:
        """Give a stage to an idle worker, a new one if need be."""
        idle = [worker for worker in self._workers if worker.stage is None]
        worker = idle[0] if idle else self._spawn()
        worker.stage = stage
        # a worker that died while idle shows at its sentinel in the next round
        with contextlib.suppress(BrokenPipeError):
            worker.connection.send(stage.key)

    def _spawn(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        plan, root, run_stage = self._arguments
        threads = str(plan.stages[0].execution["threads"])
        process = self._context.Process(target=work, args=(theirs, plan, root, run_stage))
        with _environment(dict.fromkeys(_THREAD_VARIABLES, threads)):
            process.start()
        theirs.close()
        worker = _Worker(process, cast("Connection", ours))
        self._workers.append(worker)
        return worker

    def messages(self) -> Iterator[tuple[Stage, "_Ended | Mapping[str, Any]"]]:
        """Wait for messages of the stages that run now; a worker's death is one."""
        busy = [worker for worker in self._workers if worker.stage is not None]
        handles = [handle for w in busy for handle in (w.connection, w.process.sentinel)]
        ready = set(wait(handles))
        for worker in busy:
            if worker.connection in ready or worker.process.sentinel in ready:
                yield from self._read(worker)

    def _read(self, worker: _Worker) -> Iterator[tuple[Stage, "_Ended | Mapping[str, Any]"]]:
        assert worker.stage is not None
        stage = worker.stage
        try:
            while worker.connection.poll():
                message = worker.connection.recv()
                if isinstance(message, _Ended):
                    worker.stage = None
                yield stage, message
        except (EOFError, OSError):
            self._workers.remove(worker)
            worker.process.join()
            if worker.process.exitcode == _UNGUARDED:
                raise UnguardedScriptError(_GUARD) from None
            if worker.stage is not None:
                yield stage, _Ended(_death(worker.process.exitcode))

    def stop(self) -> None:
        """End all workers: idle ones leave, busy ones stop and keep their unfinished work."""
        for worker in self._workers:
            worker.connection.close()
            if worker.stage is not None:
                worker.process.terminate()
        for worker in self._workers:
            worker.process.join(_GRACE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers.clear()


_GUARD = (
    "every worker process imports the script that started it, and so would run it again: put what "
    "the script does under `if __name__ == \"__main__\":`, or use the executor 'serial'"
)


def _leave_if_starting() -> None:
    """End a worker that runs the script of its parent, without a word: the parent will say it."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(_UNGUARDED)


def _death(code: int | None) -> Failure:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        cause = " (often: out of memory)" if name == "SIGKILL" else ""
        return Failure(f"the worker process was ended by {name}{cause}", "")
    return Failure(f"the worker process ended with exit code {code}", "")


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Generator[None]:
    """A child reads its number of threads when it starts: before any of its code runs."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# ---------------------------------------------------------------- in the worker


def work(connection: Connection, plan: Plan, root: Path, run_stage: str) -> None:
    """Run the stages whose keys arrive, until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; one decides
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    store = Store(root)
    with contextlib.suppress(KeyboardInterrupt, EOFError, BrokenPipeError), sigterm_interrupts():
        while True:
            stage = plan.stage(connection.recv())
            connection.send(_Ended(_run(stage, store, run_stage, connection)))


def _run(stage: Stage, store: Store, run_stage: str, connection: Connection) -> Failure | None:
    def report(info: Mapping[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent is gone, and this process soon
            connection.send(dict(info))

    return run_guarded(stage, store, run_stage, report)


def _leave_with_parent() -> None:
    """Stop when the parent is gone, however it went: nobody would take the result."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
