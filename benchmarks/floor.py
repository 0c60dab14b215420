"""What this machine can do: matrix products, exponentials and copies, as a floor for the rest."""

from collections.abc import Callable

import torch

from benchmarks.common import MIB, Settings, seconds_of, spread
from benchmarks.results import Section, Table, figure, main

SHAPES = (
    ("2048 x 2048 x 2048", 2048, 2048, 2048),
    ("teacher forward: 4096 x 256 x 1024", 4096, 256, 1024),
    ("decode: 32 x 256 x 1024", 32, 256, 1024),
    ("head at V 49,152: 64 x 256 x 49152", 64, 256, 49152),
)
_ENOUGH = 0.1  # seconds of one measurement


def run(settings: Settings) -> Section:
    """Rates in two precisions, and the memory's."""
    shapes = (("64 x 64 x 64", 64, 64, 64),) if settings.quick else SHAPES
    products = [
        [name, *(_product(settings, rows, inner, columns, dtype) for dtype in _DTYPES.values())]
        for name, rows, inner, columns in shapes
    ]
    kib = 2**10
    sizes = (16 * kib,) if settings.quick else (256 * kib, 256 * MIB)
    copies = [[_size(n), f"{figure(_copy(settings, n))}"] for n in sizes]
    count = 2**10 if settings.quick else 2**17
    return Section(
        name="floor",
        title="What the machine can do",
        command="python -m benchmarks.floor",
        tables=(
            Table("Matrix product (GFLOP/s)", ["rows x inner x columns", *_DTYPES], products),
            Table("Copy (GiB/s, read and written)", ["bytes", "rate"], copies),
            Table(
                "Elementwise (billions per second)",
                ["operation", "rate"],
                [
                    ["exp, float32", figure(_elementwise(settings, count, torch.exp))],
                    ["exponential_, inside multinomial", figure(_exponential(settings, count))],
                ],
            ),
        ),
    )


_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def best(call: Callable[[], object], settings: Settings) -> float:
    """Seconds of one call: the fastest of some rounds, each long enough to be timed."""
    call()
    once = max(seconds_of(call, settings.device), 1e-7)
    calls = 1 if settings.quick else max(1, int(_ENOUGH / once))

    def several() -> None:
        for _ in range(calls):
            call()

    rounds = [seconds_of(several, settings.device) / calls for _ in range(settings.repeats)]
    return spread(rounds).least


def _product(settings: Settings, rows: int, inner: int, columns: int, dtype: torch.dtype) -> str:
    left = torch.ones(rows, inner, dtype=dtype, device=settings.device)
    right = torch.ones(columns, inner, dtype=dtype, device=settings.device)
    out = torch.empty(rows, columns, dtype=dtype, device=settings.device)
    seconds = best(lambda: torch.mm(left, right.T, out=out), settings)
    return figure(2e-9 * rows * inner * columns / seconds)


def _copy(settings: Settings, size: int) -> float:
    source = torch.ones(size // 4, device=settings.device)
    target = torch.empty_like(source)
    return 2 * size / best(lambda: target.copy_(source), settings) / 2**30


def _elementwise(settings: Settings, count: int, call: Callable[..., torch.Tensor]) -> float:
    values = torch.linspace(-4, 0, count, device=settings.device)
    out = torch.empty_like(values)
    return count / best(lambda: call(values, out=out), settings) / 1e9


def _exponential(settings: Settings, count: int) -> float:
    values = torch.empty(count, device=settings.device)
    return count / best(values.exponential_, settings) / 1e9


def _size(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // 2**10} KiB"


if __name__ == "__main__":
    main(run, __doc__)
