"""Training loops that take their steps in turn, in one process.

Each loop runs in a thread of its own and is left as it is: it says when a step is over, and then
waits until all others have had theirs. So the real loops are compared, whatever they do between two
steps, and both see the same minute of the same machine.
"""

import gc
import threading
import time
from collections.abc import Callable, Mapping

import torch

from benchmarks.common import Timings, wait_for

Loop = Callable[[Callable[[], None]], object]
"""Trains; calls what it is given after every step."""


class _Player:
    """A loop in its thread, and the baton that lets it run."""

    def __init__(self, loop: Loop, threads: int) -> None:
        self._loop, self._threads = loop, threads
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._error: BaseException | None = None
        self.ended = False

    def _work(self) -> None:
        self._go.acquire()
        torch.set_num_threads(self._threads)  # a setting of the thread, not of the process
        try:
            self._loop(self._step_done)
        except BaseException as error:  # noqa: BLE001 - raised again where the turn was given
            self._error = error
        self.ended = True
        self._done.release()

    def _step_done(self) -> None:
        self._done.release()
        self._go.acquire()

    def turn(self) -> None:
        """Let the loop take one step."""
        if not self._thread.ident:
            self._thread.start()
        self._go.release()
        self._done.acquire()
        if self._error is not None:
            raise self._error


def take_turns(
    loops: Mapping[str, Loop], *, steps: int, warmup: int, threads: int = 1, device: str = "cpu"
) -> Timings:
    """Seconds of the steps of several loops, in turn and in alternating order.

    Args:
        loops: By name; each takes at least `warmup + steps` steps.
        steps: Steps that count.
        warmup: Steps before them that do not; the first one includes what a loop does to start.
        threads: Of torch, in each loop.
        device: "cpu" or "cuda".

    Raises:
        RuntimeError: A loop ended early.
    """
    players = {name: _Player(loop, threads) for name, loop in loops.items()}
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    names = list(loops)
    for step in range(warmup + steps):
        for name in names if step % 2 == 0 else reversed(names):
            gc.collect()
            wait_for(device)
            start = time.perf_counter()
            players[name].turn()
            wait_for(device)
            took = time.perf_counter() - start
            if players[name].ended:
                raise RuntimeError(f"the loop of {name} ended after {step} steps")
            if step >= warmup:
                seconds[name].append(took)
    for player in players.values():
        while not player.ended:
            player.turn()
    return Timings(seconds)
