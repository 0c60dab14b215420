"""A small study, its data, and the command line as a function."""

import json
from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from fractionate.cli import app

STUDY = """
name: tiny
models: {student: student, teacher: teacher}
task: {kind: table, path: rows.jsonl, prompt: question, answer: answer, test: 8, selection: 8}
method: {rollout: {kind: student}}
optimizer: {lr: 1e-3, warmup: 1, compute_dtype: float32}
budget: {steps: 2, prompts_per_step: 2}
lengths: {prompt: 16, completion: 6, evaluation: 6}
vary: {method.divergence: [{kind: forward}, {kind: reverse}]}
seeds: [1]
evaluate: {at: [0, last], accuracy: {items: 8}}
"""
ROWS = [{"question": f"{i % 29} {3 * i % 29} {i // 29}", "answer": str(i % 29)} for i in range(40)]


def invoke(*arguments: object) -> Result:
    """Run a command line in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write_rows(path: Path, rows=ROWS) -> None:
    """A JSONL file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_study(folder: Path, **changes: str) -> Path:
    """The study above beside its data; `changes` replace lines by their first word."""
    lines = STUDY.strip().splitlines()
    for name, value in changes.items():
        places = [i for i, line in enumerate(lines) if line.startswith(f"{name}:")]
        lines[places[0] :] = [f"{name}: {value}", *lines[places[0] + 1 :]]
    path = folder / "study.yaml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path
