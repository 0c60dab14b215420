"""What a run shows while it runs: bars on a terminal, plain lines elsewhere."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, final

from fractionate.cli.printing import note

if TYPE_CHECKING:
    from rich.progress import TaskID

    from fractionate.study.keys import Stage

_ENDED = frozenset({"cached", "done", "failed", "not_run"})


@dataclass
class Tally:
    """Counts how the stages of a run end.

    Attributes:
        total: Stages of the plan.
        cached: Stages that were finished before.
        done: Stages computed by this run.
        failed: Error text by the name of the stage, and the file with its traceback.
        not_run: Names of the stages that a failure kept from running.
    """

    total: int
    cached: int = 0
    done: int = 0
    failed: dict[str, tuple[str, Path]] = field(default_factory=dict)
    not_run: list[str] = field(default_factory=list)

    @property
    def ended(self) -> int:
        """Stages that will not change any more."""
        return self.cached + self.done + len(self.failed) + len(self.not_run)

    def add(self, event: str, stage: "Stage", info: Mapping[str, Any], root: Path) -> None:
        """Count one event of the executor."""
        if event == "cached":
            self.cached += 1
        elif event == "done":
            self.done += 1
        elif event == "failed":
            file = root / stage.kind / f"{stage.short}.error.txt"
            self.failed[stage.name] = (str(info["error"]), file)
        elif event == "not_run":
            self.not_run.append(stage.name)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "stages": self.total,
            "computed": self.done,
            "cached": self.cached,
            "failed": {name: error for name, (error, _) in self.failed.items()},
            "not_run": list(self.not_run),
        }


class Screen(Protocol):
    """Where events are shown."""

    def show(self, event: str, stage: "Stage", info: Mapping[str, Any], tally: Tally) -> None:
        """Show one event, counted already."""
        ...

    def open(self) -> None:
        """Begin."""
        ...

    def close(self) -> None:
        """End."""
        ...


@final
class RunDisplay:
    """The progress callback of a run; a context manager.

    Args:
        total: Stages of the plan.
        root: Folder of the store.
        fancy: Bars; needs a terminal.
    """

    def __init__(self, total: int, root: Path, *, fancy: bool) -> None:
        self.tally = Tally(total)
        self._root = root
        self._screen: Screen = Bars(total) if fancy else Lines()

    def __enter__(self) -> Self:
        self._screen.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._screen.close()

    def __call__(self, event: str, stage: "Stage", info: Mapping[str, Any]) -> None:
        """Take one event of the executor."""
        self.tally.add(event, stage, info, self._root)
        if event == "cached" and stage.kind == "preflight":
            for warning in self._old_warnings(stage):
                self._screen.show("progress", stage, {"warning": warning}, self.tally)
        self._screen.show(event, stage, info, self.tally)

    def _old_warnings(self, stage: "Stage") -> list[str]:
        """What a preflight that ran before warned of: it holds for this run, too."""
        path = self._root / stage.kind / stage.short / "preflight.json"
        if not path.is_file():
            return []
        return list(json.loads(path.read_text(encoding="utf-8")).get("warnings", []))


@final
class Lines:
    """One line per stage, on stderr."""

    def __init__(self) -> None:
        self._started: dict[str, float] = {}

    def open(self) -> None:
        """Nothing to set up."""

    def close(self) -> None:
        """Nothing to tear down."""

    def show(self, event: str, stage: "Stage", info: Mapping[str, Any], tally: Tally) -> None:
        """Print an event, unless it is a step."""
        if event == "progress" and "warning" not in info:
            return
        if event == "start":
            self._started[stage.key] = time.monotonic()
        told = f"{_sentence(event, stage, info)}{self._took(event, stage)}"
        note(f"[{tally.ended}/{tally.total}] {told}")

    def _took(self, event: str, stage: "Stage") -> str:
        started = self._started.get(stage.key)
        if event not in _ENDED or started is None:
            return ""
        return f" ({time.monotonic() - started:.1f} s)"


@final
class Bars:
    """A bar for the whole run, and one for each stage at work."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._progress: Progress = Progress(*columns, console=Console(stderr=True))
        self._whole: TaskID = self._progress.add_task("all stages", total=total)
        self._bars: dict[str, TaskID] = {}

    def open(self) -> None:
        """Take the terminal."""
        self._progress.start()

    def close(self) -> None:
        """Give the terminal back."""
        self._progress.stop()

    def show(self, event: str, stage: "Stage", info: Mapping[str, Any], tally: Tally) -> None:
        """Move the bars; what should be read later is printed above them."""
        if event == "start":
            self._bars[stage.key] = self._progress.add_task(_short(stage), total=None)
        elif event == "progress" and "total" in info:
            bar = self._bars[stage.key]
            self._progress.update(bar, completed=info["step"], total=info["total"])
        elif event in _ENDED and stage.key in self._bars:
            self._progress.remove_task(self._bars.pop(stage.key))
        if event in ("failed", "corrupt") or "warning" in info:
            self._progress.console.print(_sentence(event, stage, info), markup=False)
        self._progress.update(self._whole, completed=tally.ended)


def _short(stage: "Stage") -> str:
    return stage.name if len(stage.name) <= 60 else f"{stage.name[:57]}..."


def _sentence(event: str, stage: "Stage", info: Mapping[str, Any]) -> str:
    """An event for people."""
    if "warning" in info:
        return f"warning: {info['warning']}"
    if event == "failed":
        return f"failed: {stage.name}: {info['error']}"
    if event == "not_run":
        return f"not run: {stage.name}, because of: {info['because']}"
    if event == "corrupt":
        moved = f", moved to {info['moved_to']}" if "moved_to" in info else ""
        return f"corrupt, computed again: {stage.name}: {info.get('problem', '')}{moved}"
    return f"{event}: {stage.name}"
