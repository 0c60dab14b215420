"""What every benchmark needs: paired timing, peak memory, shared flags, the environment.

Two ways of doing the same work run in one process, in turn and in alternating order, so that a
machine that is busier now than a minute ago slows both. The first repeats are dropped. A ratio is
the median over repeats of the ratio within a repeat; its spread is the quartiles and the extremes.
"""

import argparse
import gc
import multiprocessing
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

MIB = 2**20


# ---------------------------------------------------------------- numbers with their spread


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles and extremes.

    Attributes:
        median: Of all values.
        low: Lower quartile.
        high: Upper quartile.
        least: Smallest value.
        most: Largest value.
        repeats: How many values.
    """

    median: float
    low: float
    high: float
    least: float
    most: float
    repeats: int


def spread(values: Sequence[float]) -> Spread:
    """The spread of some values, at least one."""
    several = len(values) > 1
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if several else [*values] * 3
    low, _, high = quartiles
    return Spread(statistics.median(values), low, high, min(values), max(values), len(values))


# ---------------------------------------------------------------- paired timing


@dataclass(frozen=True)
class Timings:
    """Seconds of several ways to do the same work, repeat by repeat.

    Attributes:
        seconds: By name; the values at one index were measured right after each other.
    """

    seconds: Mapping[str, Sequence[float]]

    def of(self, name: str) -> Spread:
        """Seconds of one way."""
        return spread(self.seconds[name])

    def ratio(self, slower: str, faster: str) -> Spread:
        """How many times longer `slower` takes than `faster`, within each repeat."""
        pairs = zip(self.seconds[slower], self.seconds[faster], strict=True)
        return spread([theirs / ours for theirs, ours in pairs])


def interleave(
    work: Mapping[str, Callable[[], object]],
    *,
    repeats: int = 7,
    warmup: int = 1,
    device: str = "cpu",
) -> Timings:
    """Time several ways of doing the same work in turn, each once per repeat.

    Args:
        work: What to call, by name; it returns when the work is submitted, the device is awaited.
        repeats: Repeats that count.
        warmup: Repeats before them that do not.
        device: "cpu" or "cuda".
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    names = list(work)
    for repeat in range(warmup + repeats):
        for name in names if repeat % 2 == 0 else reversed(names):
            took = seconds_of(work[name], device)
            if repeat >= warmup:
                seconds[name].append(took)
    return Timings(seconds)


def seconds_of(call: Callable[[], object], device: str = "cpu") -> float:
    """Wall-clock seconds of one call, with the garbage collected before and the device awaited."""
    gc.collect()
    wait_for(device)
    start = time.perf_counter()
    call()
    wait_for(device)
    return time.perf_counter() - start


def wait_for(device: str) -> None:
    """Return when the device has done all it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


# ---------------------------------------------------------------- peak memory


def extra_memory(
    prepare: Callable[..., Callable[[], object]],
    *arguments: Any,
    device: str = "cpu",
    threads: int = 1,
) -> int:
    """Bytes that a call needs at its peak, beyond what was there before, in a process of its own.

    Args:
        prepare: Importable by name; called with `arguments` in the new process, makes the inputs
            and returns the call to measure. Warming up libraries on tiny inputs belongs here.
        arguments: Of `prepare`; picklable.
        device: "cpu" counts resident memory, "cuda" what the allocator handed out.
        threads: Of torch.
    """
    return in_process(_measure_memory, prepare, arguments, device, threads=threads)


def in_process(function: Callable[..., Any], *arguments: Any, threads: int = 1) -> Any:
    """What a function returns that runs in a new process; both are known there by name."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, torch.set_num_threads, (threads,)) as pool:
        return pool.apply(function, arguments)


def _measure_memory(
    prepare: Callable[..., Callable[[], object]],
    arguments: tuple[Any, ...],
    device: str,
) -> int:
    call = prepare(*arguments)
    gc.collect()
    if device.startswith("cuda"):
        wait_for(device)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        wait_for(device)
        return torch.cuda.max_memory_allocated() - before
    before = reset_peak()
    call()
    return peak_memory() - before


def reset_peak() -> int:
    """Start a new high-water mark of this process; returns what is resident now, in bytes.

    Where the mark cannot be reset it returns the old mark, so that a difference is a lower bound.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return peak_memory()
    return _status("VmRSS")


def peak_memory() -> int:
    """High-water mark of this process's resident memory, in bytes."""
    if Path("/proc/self/status").exists():
        return _status("VmHWM")
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def _status(field_name: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"^{field_name}:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


# ---------------------------------------------------------------- the environment


@dataclass(frozen=True)
class Settings:
    """What every script is told.

    Attributes:
        device: "cpu" or "cuda".
        threads: Of torch, per process.
        repeats: Repeats that count.
        warmup: Repeats before them.
        quick: Tiny sizes: does it work at all?
        preset: "cpu" or "paper".
        output: Folder of the JSON file, if any.
        only: Which parts of a benchmark, all if empty; for those that have parts.
    """

    device: str = "cpu"
    threads: int = 1
    repeats: int = 5
    warmup: int = 2
    quick: bool = False
    preset: str = "cpu"
    output: Path | None = None
    only: tuple[str, ...] = ()

    def wants(self, part: str) -> bool:
        """Whether a part is to be run."""
        return not self.only or part in self.only


def parser(description: str) -> argparse.ArgumentParser:
    """The flags that all scripts share; a script may add its own."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    made.add_argument("--threads", type=int, default=1, help="threads of torch in each process")
    made.add_argument("--repeats", type=int, default=5, help="repeats that count")
    made.add_argument("--warmup", type=int, default=2, help="repeats that are dropped")
    made.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    made.add_argument(
        "--preset", default="cpu", choices=["cpu", "paper"], help="sizes; paper is for a GPU"
    )
    made.add_argument("--output", type=Path, help="folder for the results as JSON")
    made.add_argument("--only", nargs="+", default=[], help="parts of a benchmark that has parts")
    return made


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The shared flags; sets the threads of this process and of those it starts."""
    names = Settings.__dataclass_fields__
    given = {name: value for name, value in vars(arguments).items() if name in names}
    settings = Settings(**{**given, "only": tuple(given["only"])})
    torch.set_num_threads(settings.threads)
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(settings.threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return settings


def environment(settings: Settings) -> str:
    """Versions, processor and threads; neither host nor paths."""
    versions = [f"Python {platform.python_version()}"]
    for package in ("torch", "transformers", "trl"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"no {package}")
    device = (
        torch.cuda.get_device_name() if settings.device.startswith("cuda") else processor_name()
    )
    flags = torch.backends.cpu.get_cpu_capability()
    return (
        f"{', '.join(versions)}; {device} ({flags}, {os.cpu_count()} cores); "
        f"{settings.threads} thread{'s' if settings.threads != 1 else ''}; "
        f"{settings.repeats} repeats after {settings.warmup} dropped"
    )


def processor_name() -> str:
    """The processor as the system names it."""
    path = Path("/proc/cpuinfo")
    if path.exists():
        found = re.search(
            r"^model name\s*:\s*(.+)$", path.read_text(encoding="utf-8"), re.MULTILINE
        )
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()
