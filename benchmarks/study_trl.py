"""The same cells by TRL; started by `benchmarks.study` in a process of its own."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(job_path: str, result_path: str, started: str) -> None:
    """Train all cells and write what each took.

    Args:
        job_path: Models, prompts and rates, as JSON.
        result_path: Where the result goes.
        started: When the process was asked for, by `time.time`.
    """
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    from trl import DistillationTrainer
    from trl.experimental.gkd import GKDTrainer

    assert DistillationTrainer is not GKDTrainer
    start = time.time() - float(started)
    result = {"start": start, **_train(job)}
    Path(result_path).write_text(json.dumps(result), encoding="utf-8")


def _train(job: dict[str, Any]) -> dict[str, Any]:
    import torch

    from benchmarks import peers
    from fractionate.models.load import load_model

    peers.quiet()
    torch.set_num_threads(job["threads"])
    prompts = job["prompts"]

    def cell(beta: float, rate: float) -> peers.TrlRun:
        return peers.TrlRun(
            student=load_model(job["student"]),
            teacher=load_model(job["teacher"]),
            steps=job["steps"],
            rows=job["rows"],
            new_tokens=job["new_tokens"],
            beta=beta,
            lr=rate,
        )

    def off_policy(texts: list[list[int]] | None) -> Callable[[peers.TrlRun], float]:
        return lambda run: peers.off_policy(run, prompts, texts)

    cells = [(beta, rate) for beta in (0.0, 1.0) for rate in job["rates"]]
    on = [_timed(lambda run: peers.on_policy(run, prompts), cell, *each) for each in cells]
    begin = time.time()
    texts = _dataset(job)
    data = time.time() - begin
    off = [_timed(off_policy(texts), cell, *each) for each in cells]
    seq_kd = [_timed(off_policy(None), cell, *each) for each in cells]
    return {"on": on, "data": data, "off": off, "seq_kd": seq_kd}


def _timed(
    train: Callable[[Any], float], make: Callable[[float, float], Any], beta: float, rate: float
) -> dict[str, float]:
    begin = time.time()
    run = make(beta, rate)
    tokens = train(run) * run.steps
    return {"seconds": time.time() - begin, "tokens": tokens}


def _dataset(job: dict[str, Any]) -> list[list[int]]:
    """Every completion that the teacher writes for the off-policy cells, in large batches."""
    from benchmarks import peers
    from fractionate.models.load import load_model

    teacher = load_model(job["teacher"])
    prompts, size = job["prompts"], 16 * job["rows"]
    texts: list[list[int]] = []
    for first in range(0, len(prompts), size):
        batch = prompts[first : first + size]
        for row in peers.generate(teacher, batch, max_new_tokens=job["new_tokens"]).tolist():
            ends = [i for i, token in enumerate(row) if token in teacher.stop_ids]
            texts.append(row[: ends[0] + 1] if ends else row)
    return texts


if __name__ == "__main__":
    main(*sys.argv[1:])
