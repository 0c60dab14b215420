"""Two worker processes on two cores against one, on a whole study, training only."""

import time

from benchmarks.common import Settings, Timings, parser, settings_of
from benchmarks.results import Section, Table, duration, figure, finish, ratio_row
from benchmarks.study import Grid, run_ours


def run(settings: Settings, grid: Grid | None = None) -> Section:
    """The same study by one worker and by two, in turn, starts and shared stages included."""
    grid = grid or (Grid(steps=1, rows=2) if settings.quick else Grid(steps=60, grids=2))
    seconds: dict[str, list[float]] = {"one": [], "two": []}
    for repeat in range(grid.grids):
        order = [("one", 1), ("two", 2)]
        for name, workers in order if repeat % 2 == 0 else reversed(order):
            seconds[name].append(run_ours(grid, f"process:{workers}", settings)["total"])
    timings = Timings(seconds)
    one, two = timings.of("one").median, timings.of("two").median
    row = ratio_row(
        f"2 x 2 x 2 study, 1 seed, {grid.steps} steps, two workers on two cores",
        timings,
        peer="one",
        ours="two",
        must=1.8,
        aim=1.95,
    )
    lines = [["1", duration(one), "1x"], ["2", duration(two), f"{figure(one / two)}x"]]
    return Section(
        name="workers",
        title="Workers",
        command="python -m benchmarks.workers",
        rows=[row],
        tables=[Table("Study by number of workers", ["workers", "time", "faster"], lines)],
    )


def main() -> None:
    """Run from the command line."""
    flags = parser("Two workers against one")
    flags.add_argument("--steps", type=int, default=60, help="optimizer steps of a cell")
    flags.add_argument("--grids", type=int, default=2, help="how often all of it is run")
    arguments = flags.parse_args()
    settings = settings_of(arguments)
    grid = None if settings.quick else Grid(arguments.steps, grids=arguments.grids)
    started = time.perf_counter()
    finish(run(settings, grid), settings, started)


if __name__ == "__main__":
    main()
