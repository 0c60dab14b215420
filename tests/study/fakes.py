"""Cheap stand-ins: checkpoints of a few bytes, studies over them, stages that only write."""

import hashlib
import json
import os
import signal
import time
from pathlib import Path

from fractionate.config.files import parse_study

ROLLOUTS = [{"kind": "student"}, {"kind": "teacher"}]
DIVERGENCES = [{"kind": "forward"}, {"kind": "reverse"}]
MODEL = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 344,
    "vocab_size": 128,
    "tie_word_embeddings": True,
}


def make_checkpoints(folder: Path, names=("teacher-0", "components-0", "components-1")) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(MODEL))
        (folder / name / "model.safetensors").write_text(f"weights of {name}")
    return folder


def make_tree(folder: Path, **changes):
    if not folder.exists():
        make_checkpoints(folder)
    return {
        "name": "fake",
        "world": {"kind": "sandbox", "bases": 2, "checkpoints": str(folder)},
        "method": {"rollout": {"kind": "student"}},
        "budget": {"steps": 4, "prompts_per_step": 2},
        "lengths": {"prompt": 16, "completion": 32, "evaluation": 32, "harder": 64},
        "vary": {"method.rollout": ROLLOUTS, "kl": DIVERGENCES},
        "seeds": [42, 43],
        "evaluate": {"at": [0, "last"]},
        **changes,
    }


def make_study(folder: Path, **changes):
    return parse_study(make_tree(folder, **changes))


# ---------------------------------------------------------------- stages


def write_result(stage, store, report):
    """A result that depends on the key and on the parents' results, and on nothing else."""
    with store.open_stage(stage) as work:
        if work.done:
            return
        digest = hashlib.sha256(stage.key.encode())
        for key in stage.parents:
            digest.update((store.path(key) / "result.txt").read_bytes())
        report({"step": 1, "total": 1})
        (work.path / "result.txt").write_text(digest.hexdigest())
        (work.path / "threads.txt").write_text(os.environ.get("OMP_NUM_THREADS", "unset"))
        with (store.root / "ran.txt").open("a") as log:
            log.write(stage.key + "\n")


def fail_on_reverse(stage, store, report):
    """Training with reverse KL fails after it has made a checkpoint."""
    if _is_reverse(stage):
        with store.open_stage(stage) as work:
            (work.scratch / "checkpoint").write_text("half way")
            raise ValueError("loss is NaN at step 2")
    write_result(stage, store, report)


def die_on_reverse(stage, store, report):
    """The process that trains with reverse KL is killed."""
    if _is_reverse(stage):
        os.kill(os.getpid(), signal.SIGKILL)
    write_result(stage, store, report)


def write_nothing(stage, store, report):
    """A stage that forgets to write its result."""


def interrupt_on_reverse(stage, store, report):
    """Ctrl-C in the middle of a stage."""
    if _is_reverse(stage):
        with store.open_stage(stage) as work:
            (work.scratch / "checkpoint").write_text("half way")
            raise KeyboardInterrupt
    write_result(stage, store, report)


def sleep_on_reverse(stage, store, report):
    """Training with reverse KL takes longer than any test waits."""
    if _is_reverse(stage):
        with store.open_stage(stage) as work:
            (work.scratch / "checkpoint").write_text("half way")
            report({"step": 1, "total": 2})
            time.sleep(600)
    write_result(stage, store, report)


def resumable(stage, store, report):
    """Ten small steps, each with a checkpoint; the result is a running hash over all of them."""
    with store.open_stage(stage) as work:
        if work.done:
            return
        saved = work.scratch / "state.json"
        state = json.loads(saved.read_text()) if saved.exists() else {"step": 0, "hash": stage.key}
        while state["step"] < 10:
            time.sleep(0.005)
            step = state["step"] + 1
            state = {
                "step": step,
                "hash": hashlib.sha256(f"{state['hash']}{step}".encode()).hexdigest(),
            }
            temporary = work.scratch / "state.tmp"
            temporary.write_text(json.dumps(state))
            temporary.replace(saved)
            work.progress(step, 10)
        (work.path / "result.txt").write_text(state["hash"])


def _is_reverse(stage) -> bool:
    return stage.kind == "cell" and stage.config["method"]["divergence"]["kind"] == "reverse"


def write_elsewhere(stage, store, report):
    """Another process finished every training run before this one could."""
    if stage.kind == "cell":
        write_result(stage, store, report)
        report({"there": True})
        return
    write_result(stage, store, report)
