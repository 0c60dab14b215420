"""A whole 2 x 2 x 2 study, training only, from the start of a process to its end.

The shipped sandbox models, their own ragged completions, one seed, float32 on both sides. Ours is
`fractionate.run` on the demo's study without measurements. TRL trains the same eight cells one
after the other in one process, which imports it once: on-policy cells by DistillationTrainer,
off-policy cells by GKDTrainer on data that the teacher wrote before, or with seq_kd.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import Settings, parser, settings_of, spread
from benchmarks.results import Row, Section, Table, duration, figure, finish

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "studies/sandbox/demo.yaml"
SEED = 42


@dataclass(frozen=True)
class Grid:
    """How large a study is run.

    Attributes:
        steps: Optimizer steps of a cell.
        rows: Prompts of a step.
        grids: How often all of it is run.
    """

    steps: int = 20
    rows: int = 32
    grids: int = 1

    @property
    def overrides(self) -> list[str]:
        """What differs from the demo: one seed, no measurement, float32, temperature 1."""
        return [
            f"seeds=[{SEED}]",
            f"budget.steps={self.steps}",
            f"budget.prompts_per_step={self.rows}",
            "evaluate={at: [], accuracy: null, sparsity: null}",
            "hypotheses=[]",
            "optimizer.param_dtype=float32",
            "optimizer.state_dtype=float32",
            "optimizer.warmup=0",
            "method.reduction=token_mean",
            *(f"method.temperature.{name}=1.0" for name in ("teacher_rollout", "teacher_loss")),
        ]


def run(settings: Settings, grid: Grid | None = None) -> Section:
    """The study by both sides, in turn."""
    grid = grid or (Grid(steps=1, rows=2) if settings.quick else Grid())
    job = _trl_job(grid)
    ours, theirs = [], []
    for _ in range(grid.grids):
        ours.append(run_ours(grid, "serial", settings))
        theirs.append(_run_trl(job, settings))
    dataset = [trl["start"] + _sum(trl, "on") + trl["data"] + _sum(trl, "off") for trl in theirs]
    seq_kd = [trl["start"] + _sum(trl, "on") + _sum(trl, "seq_kd") for trl in theirs]
    work = f"2 x 2 x 2 study, 1 seed, {grid.steps} steps x {grid.rows} prompts, training only"
    own = spread([run["total"] for run in ours]).median
    rows = []
    for peer, totals, must, aim in (
        ("TRL, data pre-generated", dataset, 2, 4),
        ("TRL, seq_kd", seq_kd, 3, 8),
    ):
        ratios = [theirs / mine["total"] for theirs, mine in zip(totals, ours, strict=True)]
        middle = spread(totals).median
        rows.append(
            Row(work, duration(own), f"{peer} {duration(middle)}", spread(ratios), must, aim)
        )
    return Section(
        name="study",
        title="A whole study, end to end, against the same cells trained by TRL",
        command="python -m benchmarks.study",
        rows=rows,
        tables=[_parts(grid, ours[-1], theirs[-1]), _by_cells(ours[-1], theirs[-1])],
    )


def _sum(run: dict[str, Any], part: str) -> float:
    return sum(cell["seconds"] for cell in run[part])


def _parts(grid: Grid, ours: dict[str, Any], trl: dict[str, Any]) -> Table:
    """Where the time goes, and how many tokens a step trained on."""
    cells = {"on": [], "off": []}
    shared = 0.0
    for stage in ours["stages"]:
        if stage["kind"] == "cell":
            cells["on" if stage["tokens_generated"] else "off"].append(stage)
        else:
            shared += stage["seconds"]
    start = ours["total"] - shared - sum(_sum(cells, part) for part in cells)
    lines = [
        ["start: imports, planning", duration(start), duration(trl["start"]), "", ""],
        [
            "shared: preflight, teacher's completions",
            duration(shared),
            duration(trl["data"]),
            "",
            "",
        ],
    ]
    for name, part, peer in (
        ("on-policy cell", "on", "on"),
        ("off-policy cell, data pre-generated", "off", "off"),
        ("off-policy cell, seq_kd", "off", "seq_kd"),
    ):
        sides = ((cells, part), (trl, peer))
        seconds = [duration(_sum(run, key) / len(run[key])) for run, key in sides]
        tokens = [sum(cell["tokens"] for cell in run[key]) / len(run[key]) for run, key in sides]
        lines.append([name, *seconds, *(figure(count / grid.steps) for count in tokens)])
    columns = ["part", "ours", "TRL", "tokens of a step, ours", "tokens of a step, TRL"]
    return Table("Where the time of a study goes", columns, lines)


def _by_cells(ours: dict[str, Any], trl: dict[str, Any]) -> Table:
    """Seconds until so many cells are done, from the cells of one run."""
    cells = [stage for stage in ours["stages"] if stage["kind"] == "cell"]
    on = [cell["seconds"] for cell in cells if cell["tokens_generated"]]
    off = [cell["seconds"] for cell in cells if not cell["tokens_generated"]]
    before = ours["total"] - sum(on) - sum(off)
    lines = []
    for half in (1, 2, 4):
        mine = before + sum(on[:half]) + sum(off[:half])
        on_policy = trl["start"] + sum(cell["seconds"] for cell in trl["on"][:half])
        data = on_policy + trl["data"] + sum(cell["seconds"] for cell in trl["off"][:half])
        seq_kd = on_policy + sum(cell["seconds"] for cell in trl["seq_kd"][:half])
        lines.append(
            [f"{2 * half}", duration(mine), f"{figure(data / mine)}x", f"{figure(seq_kd / mine)}x"]
        )
    columns = ["cells, half of them off-policy", "ours", "TRL, data / ours", "TRL, seq_kd / ours"]
    return Table("Study by number of cells", columns, lines)


# ---------------------------------------------------------------- each side in its own process


def run_ours(grid: Grid, executor: str, settings: Settings) -> dict[str, Any]:
    """Run the study by `fractionate.run` in a new process and a new store."""
    job = {
        "study": str(STUDY),
        "overrides": grid.overrides,
        "executor": executor,
    }
    return _child("benchmarks.study_ours", job, settings)


def _run_trl(job: dict[str, Any], settings: Settings) -> dict[str, Any]:
    return _child("benchmarks.study_trl", job, settings)


def _child(module: str, job: dict[str, Any], settings: Settings) -> dict[str, Any]:
    job = {**job, "threads": settings.threads}
    with tempfile.TemporaryDirectory() as name:
        path, result = Path(name) / "job.json", Path(name) / "result.json"
        job["store"] = str(Path(name) / "store")
        path.write_text(json.dumps(job), encoding="utf-8")
        command = [sys.executable, "-m", module, str(path), str(result), repr(time.time())]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{module} failed:\n{done.stderr[-2000:]}")
        return json.loads(result.read_text(encoding="utf-8"))


def _trl_job(grid: Grid) -> dict[str, Any]:
    """The same models, prompts in the same order, rates and limits, as plain values."""
    from fractionate import load_study
    from fractionate.distill.prompts import PromptBook, prompt_indices
    from fractionate.models.load import load_model
    from fractionate.models.sandbox import shipped_folder
    from fractionate.tasks.build import build_task

    study = load_study(STUDY, grid.overrides)
    task = build_task(study.task, study.world)
    student = load_model(shipped_folder("components", 0))
    book = PromptBook(
        task.problems("train"), task=task, student=student, limit=study.lengths.prompt
    )
    indices = [
        index
        for step in range(grid.steps)
        for index in prompt_indices(
            step,
            n_problems=len(book),
            prompts_per_step=grid.rows,
            order=study.prompt_order,
            seed=SEED,
        )
    ]
    prompts = [list(book[index].student) for index in indices]
    words = student.tokenizer
    assert all(words(words.decode(ids))["input_ids"] == ids for ids in prompts)
    return {
        "student": str(shipped_folder("components", 0)),
        "teacher": str(shipped_folder("teacher", 0)),
        "prompts": prompts,
        "steps": grid.steps,
        "rows": grid.rows,
        "new_tokens": study.lengths.completion,
        "rates": [float(str(rate)) for rate in study.vary["optimizer.lr"]],
    }


def main() -> None:
    """Run from the command line."""
    flags = parser("A whole study, training only, against TRL")
    flags.add_argument("--steps", type=int, help="optimizer steps of a cell")
    flags.add_argument("--grids", type=int, default=1, help="how often all of it is run")
    arguments = flags.parse_args()
    settings = settings_of(arguments)
    grid = Grid(grids=arguments.grids) if not settings.quick else Grid(steps=1, rows=2)
    if arguments.steps:
        grid = Grid(arguments.steps, grid.rows, grid.grids)
    started = time.perf_counter()
    finish(run(settings, grid), settings, started)


if __name__ == "__main__":
    main()
