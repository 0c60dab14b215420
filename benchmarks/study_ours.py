"""One study by `fractionate.run`; started by `benchmarks.study` in a process of its own."""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def main(job_path: str, result_path: str, started: str) -> None:
    """Run the job and write what it took.

    Args:
        job_path: What to run, as JSON.
        result_path: Where the result goes.
        started: When the process was asked for, by `time.time`.
    """
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    import fractionate

    begun: dict[str, float] = {}
    took: dict[str, float] = {}

    def note(event: str, stage: Any, _: Mapping[str, Any]) -> None:
        if event == "start":
            begun[stage.key] = time.time()
        elif event == "done":
            took[stage.key] = time.time() - begun[stage.key]

    study = fractionate.load_study(job["study"], job["overrides"])
    plan = fractionate.plan(study)
    fractionate.run(plan, store=job["store"], executor=job["executor"], progress=note)
    total = time.time() - float(started)
    stages = [_stage(plan.stage(key), took[key], job["store"]) for key in took]
    result = {"total": total, "stages": stages}
    Path(result_path).write_text(json.dumps(result), encoding="utf-8")


def _stage(stage: Any, seconds: float, store: str) -> dict[str, Any]:
    found = {"kind": stage.kind, "name": stage.name, "seconds": seconds}
    if stage.kind != "cell":
        return found
    records = Path(store) / "cell" / stage.key[:16] / "steps.jsonl"
    steps = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    return {
        **found,
        "tokens": sum(step["tokens_trained"] for step in steps),
        "tokens_generated": sum(step["tokens_generated"] for step in steps),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
