"""A study that is killed again and again ends as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from fractionate.rng import stream
from fractionate.study.store import Store
from tiny import save_pair

KILLS = 10
RUN = "from fractionate.cli import main; main()"


def _study(folder: Path) -> Path:
    student, teacher = save_pair(folder)
    rows = [
        {"prompt": f"{3 + i % 20} {4 + i % 17} {i % 9}", "answer": str(i % 7)} for i in range(90)
    ]
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps({**row, "key": i}) + "\n" for i, row in enumerate(rows)))
    study = {
        "name": "killed",
        "models": {"student": str(student), "teacher": str(teacher)},
        "task": {
            "kind": "table",
            "path": str(data),
            "prompt": "prompt",
            "answer": "answer",
            "key": "key",
            "selection": 8,
            "test": 16,
        },
        "optimizer": {"lr": 1e-3, "compute_dtype": "float32"},
        "budget": {"steps": 40, "prompts_per_step": 8},
        "lengths": {"prompt": 16, "completion": 24, "evaluation": 24},
        "vary": {"rollout": [{"kind": "student"}, {"kind": "teacher"}]},
        "seeds": [1, 2],
        "checkpoints": {"every": 3},
        "evaluate": {"accuracy": {"items": 16}, "drift": {"items": 8}},
    }
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(study))
    return path


def _start(study: Path, store: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", RUN, "run", str(study), "--store", str(store)]
    return subprocess.Popen(
        [*command, "--executor", "process:2"],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def _bytes_in(store: Path) -> int:
    total = 0
    for path in store.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # renamed while we looked
            continue
    return total


def _start_of_work(process: subprocess.Popen, store: Path) -> float:
    """Wait until the run writes something; the time by the monotonic clock, in seconds."""
    before, started = _bytes_in(store), time.monotonic()
    while process.poll() is None and _bytes_in(store) == before:
        time.sleep(0.02)
        assert time.monotonic() - started < 300, "the run does not begin"
    return time.monotonic()


def _uninterrupted(study: Path, store: Path) -> float:
    """Run the study to its end; how many seconds it was at work."""
    process = _start(study, store)
    begun = _start_of_work(process, store)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors.decode()
    return time.monotonic() - begun


def _kill_at_work(study: Path, store: Path, wait: float) -> bool:
    """Kill the whole run ``wait`` seconds after it has begun to write; False if it ended before."""
    process = _start(study, store)
    deadline = _start_of_work(process, store) + wait
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    if process.poll() is not None:
        return False
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return True


def _files(store: Path) -> dict[str, str]:
    """Checksum of every result file, by stage and name."""
    found = Store(store)
    return {
        f"{key[:16]}/{name}": entry["sha256"]
        for key in found.keys()  # noqa: SIM118 - a method, not a mapping
        for name, entry in found.manifest(key)["files"].items()
    }


@pytest.mark.slow
def test_a_study_killed_at_random_moments_ends_bit_identical(tmp_path):
    study = _study(tmp_path)
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    work = _uninterrupted(study, straight)
    rng = stream(0, "moments of killing")
    # All waits together are shorter than the work, however fast the machine is.
    waits = rng.uniform(0.0, work / KILLS, size=KILLS)
    kills = sum(_kill_at_work(study, killed, wait=float(wait)) for wait in waits)
    _uninterrupted(study, killed)
    assert kills == KILLS, f"the study was over after {kills} kills: make it longer"
    assert _files(killed) == _files(straight)
    assert any("weights" in name for name in _files(straight))
