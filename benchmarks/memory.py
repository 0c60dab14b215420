"""Peak memory and operations of a training step, measured, against what `plan` says.

A student and a teacher of more than 100 million random parameters, saved as folders and trained by
a study; rows run to their limit, so that the plan's lengths are the real ones. Memory is the peak
of the training stage above what is resident after the imports, in a process of its own;
operations are those that torch's own counter sees.
"""

import gc
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import fractionate
from benchmarks import models, ours
from benchmarks.common import MIB, Settings, Spread, extra_memory, in_process, spread
from benchmarks.results import Row, Section, figure, main
from fractionate.models.load import save_model
from fractionate.study.dimensions import Dimensions
from fractionate.study.plan import Plan
from fractionate.study.store import Store

STUDENT = Dimensions(768, 12, 12, 4, 64, 2048, 16384, tied=False)
SIZES = models.Sizes(STUDENT, STUDENT, rows=8, new_tokens=48, prompt=(16, 16))
PROBLEMS = 64


def run(settings: Settings) -> Section:
    """Memory and operations of one cell, measured and planned."""
    sizes = replace(models.QUICK, prompt=(4, 4)) if settings.quick else SIZES
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_study(folder, sizes, steps=1)
        planned = in_process(_prepare_store, str(folder), threads=settings.threads)
        peak = extra_memory(_cell_again, str(folder), threads=settings.threads)
        counted = in_process(_count_operations, str(folder), threads=settings.threads)
    parameters = f"{sizes.student.parameters / 1e6:.0f} M student and teacher"
    return Section(
        name="memory",
        title="Memory and operations of a training step against the plan",
        command="python -m benchmarks.memory",
        rows=[
            Row(
                f"peak memory of a cell, {parameters}, off the plan",
                ours=f"{figure(peak / MIB)} MiB",
                peer=f"plan {figure(planned['memory'] / MIB)} MiB",
                measured=_off(peak, planned["memory"]),
                must=15,
                at_most=True,
                unit="%",
            ),
            Row(
                f"operations of a cell, {parameters}, off the plan",
                ours=f"{figure(counted / 1e9)} GFLOP",
                peer=f"plan {figure(planned['flops'] / 1e9)} GFLOP",
                measured=_off(counted, planned["flops"]),
                must=15,
                at_most=True,
                unit="%",
            ),
        ],
    )


def _off(measured: float, planned: float) -> Spread:
    return spread([100 * abs(measured / planned - 1)])


def _write_study(folder: Path, sizes: models.Sizes, *, steps: int) -> None:
    words = models.tokenizer(sizes.student.vocabulary)
    for seed, (role, dimensions) in enumerate(
        {"student": sizes.student, "teacher": sizes.teacher}.items()
    ):
        model = models.random_model(dimensions, seed=seed, words=words)
        save_model(model.module, model.tokenizer, folder / role)
    prompt = sizes.prompt[1]
    lines = []
    for i in range(PROBLEMS):
        ids = models.prompt_ids(prompt, sizes.student.vocabulary, i)
        lines.append(json.dumps({"question": words.decode(ids), "answer": "7"}))
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    study = _study(folder, sizes, steps)
    (folder / "study.yaml").write_text(json.dumps(study), encoding="utf-8")  # JSON is YAML


def _study(folder: Path, sizes: models.Sizes, steps: int) -> dict[str, Any]:
    prompt, completion = sizes.prompt[1], sizes.new_tokens
    ones = ("student_rollout", "teacher_rollout", "student_loss", "teacher_loss")
    return {
        "name": "memory",
        "models": {"student": str(folder / "student"), "teacher": str(folder / "teacher")},
        "task": {
            "kind": "table",
            "path": str(folder / "data.jsonl"),
            "prompt": "question",
            "answer": "answer",
            "grade": "number",
            "selection": 4,
            "test": 4,
        },
        "method": {"temperature": dict.fromkeys(ones, 1.0)},
        "optimizer": {"lr": 1e-5, "warmup": 0, **ours.FLOAT32},
        "budget": {
            "steps": steps,
            "prompts_per_step": sizes.rows,
            "tokens_per_micro_batch": sizes.rows * (prompt + completion) // 2,
        },
        "lengths": {"prompt": prompt, "completion": completion, "evaluation": completion},
        "seeds": [42],
        "evaluate": {"at": [], "accuracy": None, "sparsity": None},
    }


# ---------------------------------------------------------------- each in its own process


def _plan(folder: str) -> Plan:
    return fractionate.plan(fractionate.load_study(Path(folder) / "study.yaml"))


def _prepare_store(folder: str) -> dict[str, float]:
    """Run the whole study once; returns what the plan says of its cell."""
    plan = _plan(folder)
    fractionate.run(plan, store=Path(folder) / "store")
    key = plan.of_kind("cell")[0].key
    cost = next(stage for stage in plan.cost().stages if stage.key == key)
    return {"memory": cost.memory, "flops": cost.flops}


def _cell_again(folder: str) -> Callable[[], object]:
    """Forget the cell; the call trains it again, everything else being there."""
    from fractionate.study import stages

    assert stages
    plan, store = _plan(folder), Path(folder) / "store"
    shutil.rmtree(Store(store).folder(plan.of_kind("cell")[0]))
    weights = torch.ones(8, 8, requires_grad=True)
    (weights @ weights).sum().backward()
    return lambda: fractionate.run(plan, store=store)


def _count_operations(folder: str) -> int:
    call = _cell_again(folder)
    gc.collect()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


if __name__ == "__main__":
    main(run, __doc__)
