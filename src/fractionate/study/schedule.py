"""Which stage runs next: shared stages first, then the longest whose parents are done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fractionate.study.keys import Stage

_OWN = frozenset({"cell", "cell_evaluation", "rlvr", "rlvr_evaluation"})


@dataclass(frozen=True)
class Failure:
    """Why a stage failed.

    Attributes:
        message: One line.
        traceback: The whole story; empty if there is none.
    """

    message: str
    traceback: str


class Schedule:
    """The state of a run.

    Args:
        stages: In an order in which parents come before children.
        cached: Keys that need not run.
        work: Estimated floating-point operations by key.
    """

    def __init__(
        self, stages: Sequence[Stage], cached: frozenset[str], work: Mapping[str, float]
    ) -> None:
        self._stages = {stage.key: stage for stage in stages}
        self._done = dict.fromkeys(key for key in self._stages if key in cached)
        self._waiting = {key: stage for key, stage in self._stages.items() if key not in cached}
        self._stopped: dict[str, None] = {}
        self._running: dict[str, None] = {}
        self._cached = tuple(self._done)
        self.failed: dict[str, Failure] = {}
        order = list(self._stages)
        self._rank = {
            key: (stage.kind in _OWN, -work.get(key, 0.0), order.index(key))
            for key, stage in self._stages.items()
        }

    @property
    def done(self) -> tuple[str, ...]:
        """Keys of finished stages, cached ones first."""
        return tuple(self._done)

    @property
    def cached(self) -> tuple[str, ...]:
        """Keys of the stages that were finished before the run."""
        return self._cached

    @property
    def left(self) -> tuple[str, ...]:
        """Keys of stages that did not end, in the order of the plan."""
        ended = self._done.keys() | self.failed.keys()
        return tuple(key for key in self._stages if key not in ended)

    @property
    def running(self) -> tuple[str, ...]:
        """Keys of the stages handed out and not ended."""
        return tuple(self._running)

    def next(self) -> Stage | None:
        """The best stage to start now; none if all ended or all wait for running ones."""
        ready = [
            key
            for key, stage in self._waiting.items()
            if all(need in self._done for need in stage.needs)
        ]
        return self._stages[min(ready, key=self._rank.__getitem__)] if ready else None

    def start(self, stage: Stage) -> None:
        """A stage was handed out."""
        del self._waiting[stage.key]
        self._running[stage.key] = None

    def finish(self, stage: Stage) -> None:
        """A stage is in the store."""
        self._running.pop(stage.key, None)
        self._done[stage.key] = None

    def fail(self, stage: Stage, failure: Failure) -> tuple[Stage, ...]:
        """A stage failed.

        Returns:
            The stages that will not run because of it, newly.
        """
        self._running.pop(stage.key, None)
        self.failed[stage.key] = failure
        hopeless = {stage.key, *self._stopped}
        stopped: list[Stage] = []
        for key, other in self._stages.items():
            if key in self._waiting and hopeless.intersection(other.needs):
                hopeless.add(key)
                self._stopped[key] = None
                del self._waiting[key]
                stopped.append(other)
        return tuple(stopped)
