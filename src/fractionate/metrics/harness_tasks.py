"""Which tasks and results the installed lm-evaluation-harness knows, read from its task files.

Nothing here fetches data or runs code of a task.
"""

import difflib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from fractionate.config import Harness
from fractionate.config.measure import PAPER_BENCHMARKS

_POINTS = frozenset({"eqbench"})
"""Results on a scale of 0 to 100; all others are shares."""


class HarnessError(ValueError):
    """A benchmark that cannot be measured; the message names the task and the mend."""


@dataclass(frozen=True)
class Leaf:
    """A task that is no group.

    Attributes:
        name: As the harness spells it.
        output_type: "multiple_choice", "generate_until" or "loglikelihood".
        data: Where its documents come from.
    """

    name: str
    output_type: str
    data: str


@dataclass(frozen=True)
class Target:
    """A benchmark with the result that counts.

    Attributes:
        name: Task or group.
        metric: Per-document metric whose mean is the score.
        filter: The filter after which it is taken; "none" without one.
        leaves: The task itself, or all tasks of the group; a group's score is the mean over its
            documents.
    """

    name: str
    metric: str
    filter: str
    leaves: tuple[Leaf, ...]

    @property
    def result(self) -> str:
        """The key in the harness's results."""
        return f"{self.metric},{self.filter}"

    @property
    def scale(self) -> float:
        """Factor that makes the score a share."""
        return 0.01 if self.metric in _POINTS else 1.0

    @property
    def data(self) -> str:
        """Where the documents come from."""
        return ", ".join(sorted({leaf.data for leaf in self.leaves}))


@final
class TaskIndex:
    """The task files of the harness, and those of a folder of one's own."""

    def __init__(self, manager: Any, *, allow_code: bool) -> None:
        """Wrap a task manager of the harness."""
        self.manager = manager
        self._allow_code = allow_code

    def target(self, name: str, result: str | None) -> Target:
        """What a name means, with the result asked for or the one that counts by default.

        Raises:
            HarnessError: Unknown task or result, a result that is no mean of per-document scores,
                or a task that runs programs.
        """
        configs = dict(self._leaves(name))
        for leaf, config in configs.items():
            self._check_code(leaf, config)
        known = [list(_results(config)) for config in configs.values()]
        common = [key for key in known[0] if all(key in keys for keys in known)]
        wanted = result or PAPER_BENCHMARKS.get(name) or next(iter(common), None)
        if wanted is None or wanted not in common:
            there = f"Those it has: {', '.join(common)}" if common else "It has none of that kind"
            raise HarnessError(
                f"evaluate.forgetting: task '{name}' of the installed harness has no result "
                f"'{wanted}' that is a mean over documents, higher being better. {there}; name one "
                "in evaluate.forgetting.results, or leave the task out"
            )
        metric, _, filtered = wanted.rpartition(",")
        leaves = [
            Leaf(leaf, str(config.get("output_type")), str(config.get("dataset_path")))
            for leaf, config in configs.items()
        ]
        return Target(name, metric, filtered, tuple(leaves))

    def _leaves(self, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        entry = self.manager.task_index.get(name)
        if entry is None or entry.cfg is None:
            near = difflib.get_close_matches(name, self.manager.all_tasks)
            hint = f" Near it: {', '.join(near)}." if near else ""
            raise HarnessError(
                f"evaluate.forgetting: the installed harness has no task or group '{name}'.{hint} "
                "Correct evaluate.forgetting.tasks"
            )
        if isinstance(entry.cfg.get("task"), list):
            for member in entry.cfg["task"]:
                if not isinstance(member, str):
                    raise HarnessError(
                        f"evaluate.forgetting: group '{name}' defines tasks inside itself. Name "
                        "its tasks one by one in evaluate.forgetting.tasks"
                    )
                yield from self._leaves(member)
        else:
            yield name, entry.cfg

    def _check_code(self, name: str, config: Mapping[str, Any]) -> None:
        if config.get("unsafe_code") and not self._allow_code:
            raise HarnessError(
                f"evaluate.forgetting: task '{name}' runs programs that the model writes. Set "
                "evaluate.forgetting.allow_code: true, or leave it out of evaluate.forgetting.tasks"
            )


def open_index(config: Harness) -> TaskIndex:
    """The task files that a configuration can mean.

    Raises:
        HarnessError: The harness is not installed, or `include` is no folder.
    """
    try:
        from lm_eval import tasks
    except ModuleNotFoundError as error:
        raise HarnessError(
            f"evaluate.forgetting: {{kind: harness}} needs lm-evaluation-harness ({error}). "
            "Install fractionate[evaluate], or set evaluate.forgetting: null"
        ) from None
    if config.include is not None and not config.include.is_dir():
        raise HarnessError(f"evaluate.forgetting.include: no such folder: {config.include}")
    own = Path(tasks.__file__).parent
    extra = () if config.include is None else (config.include.resolve(),)
    near = _manager((*_folders_of(own, config.names), *extra))
    if any(name not in near.task_index for name in config.names):
        near = _manager((own, *extra))
    return TaskIndex(near, allow_code=config.allow_code)


def _folders_of(own: Path, names: Sequence[str]) -> list[Path]:
    """Folders named like the beginning of a task: the whole harness takes ten seconds to read."""
    folders = sorted(path.name for path in own.iterdir() if path.is_dir())
    found = {
        max((folder for folder in folders if name.startswith(folder)), key=len, default=None)
        for name in names
    }
    return [own / folder for folder in sorted(folder for folder in found if folder)]


@functools.lru_cache(maxsize=4)
def _manager(folders: tuple[Path, ...]) -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=list(folders), include_defaults=False)


def _results(config: Mapping[str, Any]) -> Iterator[str]:
    """Results of a task file that are means of per-document scores, as the harness names them."""
    filters = [entry["name"] for entry in config.get("filter_list") or [{"name": "none"}]]
    for metric in _metrics(config):
        yield from (f"{metric},{name}" for name in filters)


def _metrics(config: Mapping[str, Any]) -> Iterator[str]:
    from lm_eval.api.registry import DEFAULT_METRIC_REGISTRY

    for entry in config.get("metric_list") or ():
        if entry.get("aggregation", "mean") != "mean" or entry.get("higher_is_better") is False:
            continue
        function = str(entry["metric"]).rpartition(".")[2]
        sizes = entry.get("k", ())
        yield from (
            (f"pass@{k}" for k in sizes) if function == "pass_at_k" and sizes else (function,)
        )
    if not config.get("metric_list"):
        for metric in DEFAULT_METRIC_REGISTRY.get(str(config.get("output_type")), ()):
            if "perplexity" not in metric and "per_byte" not in metric:
                yield str(metric)
