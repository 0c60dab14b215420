"""Two real steps of a random model, measured: `python step_cost.py NAME` prints JSON.

Run as a process of its own, so that the peak of its memory is that of the steps.
"""

import dataclasses
import json
import sys
import tempfile
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1]))

from fractionate.config import Budget, Diagnostics, Method, Optimizer
from fractionate.distill.journal import Journal
from fractionate.distill.loop import distill
from fractionate.distill.objective import Objective
from fractionate.distill.prompts import Prompt
from fractionate.distill.run import Distillation
from fractionate.distill.scoring import Scorer
from fractionate.distill.sources import Drawn, FreshRollouts, RolloutSource
from fractionate.distill.student import Student
from fractionate.models.load import LanguageModel, wrap
from fractionate.rng import borrow_global, stream
from fractionate.study.dimensions import Dimensions
from fractionate.study.memory import training_memory
from fractionate.study.operations import BYTES, Models, TokenCounts, flops_of
from fractionate.tasks.base import Problem
from tiny import tokenizer

PROMPT, COMPLETION, ROWS, STEPS = 48, 32, 8, 2
FLOAT32 = {"param_dtype": "float32", "state_dtype": "float32", "compute_dtype": "float32"}
MASTER = {"master_weights": "float32", "state_dtype": "float32"}
SIZES = {
    "tiny": Dimensions(64, 8, 4, 2, 16, 192, 300, tied=False),
    "100M": Dimensions(768, 8, 12, 4, 64, 2304, 32000, tied=False),
    "100M tied": Dimensions(960, 8, 15, 5, 64, 2560, 32000, tied=True),
}
CASES = {
    "tiny": ("tiny", FLOAT32, "float32", 4 * 2**30),
    "tiny, recomputed": ("tiny", FLOAT32, "float32", 1),
    "float32": ("100M", FLOAT32, "float32", 4 * 2**30),
    "float32, recomputed": ("100M", FLOAT32, "float32", 1),
    "bfloat16": ("100M", {}, "bfloat16", 4 * 2**30),
    "master copy": ("100M tied", MASTER, "bfloat16", 4 * 2**30),
}


def _model(size: Dimensions, seed: int, dtype: str) -> LanguageModel:
    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        tie_word_embeddings=size.tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        dtype=dtype,
    )
    before = torch.get_default_dtype()
    with borrow_global(seed, "random model"):
        torch.set_default_dtype(getattr(torch, dtype))
        module = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(before)
    # nothing stops a completion: every length is its limit, which a plan assumes
    model = dataclasses.replace(wrap(module, tokenizer()), stop_ids=())
    return dataclasses.replace(model, vocab_size=size.vocabulary)


def _prompts(step: int, vocabulary: int) -> list[Prompt]:
    rows = stream(step, "prompts").integers(3, vocabulary, (ROWS, PROMPT)).tolist()
    return [Prompt(Problem(str(i), (), {}), tuple(row), tuple(row)) for i, row in enumerate(rows)]


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


class Written(RolloutSource):
    """Completions written before anything is counted: a native kernel would not be."""

    def __init__(self, source: FreshRollouts, vocabulary: int) -> None:
        self._steps = [source.completions(i, _prompts(i, vocabulary)) for i in range(STEPS)]

    def completions(self, step: int, prompts: list[Prompt]) -> Drawn:  # noqa: ARG002
        """Those of a step."""
        return self._steps[step]


def measure(name: str, *, count: bool) -> dict[str, float]:
    """Operations and peak bytes of two on-policy steps, measured and as a plan has them.

    Args:
        name: One of `CASES`.
        count: Whether operations are counted, decoding excepted; that takes memory.
    """
    sizes, precision, teacher_dtype, activations = CASES[name]
    size, optimizer = SIZES[sizes], Optimizer(lr=1e-5, warmup=0, **precision)
    baseline = _resident("VmRSS")
    student = _model(size, 1, "float32" if precision else "bfloat16")
    teacher = _model(size, 2, teacher_dtype)
    teacher.module.requires_grad_(False)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts again here
    method = Method.model_validate({"divergence": {"kind": "reverse"}})
    budget = Budget(
        steps=STEPS,
        prompts_per_step=ROWS,
        tokens_per_micro_batch=1024,
        activation_bytes=activations,
    )
    models = {"student": student, "teacher": teacher}
    counter = FlopCounterMode(display=False)
    source = FreshRollouts(method, **models, max_new_tokens=COMPLETION, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        run = Distillation(
            student=Student(student, optimizer),
            scorer=Scorer(**models, vocab_size=size.vocabulary, activation_bytes=activations),
            source=Written(source, size.vocabulary) if count else source,
            objective=Objective(method, max_length=COMPLETION),
            prompts=lambda step: _prompts(step, size.vocabulary),
            budget=budget,
            diagnostics=Diagnostics(every=STEPS, positions=1),
            seed=1,
            journal=Journal(Path(folder), Path(folder)),
            checkpoint_every=STEPS,
            save_at=frozenset(),
            save=lambda *_: None,
        )
        if count:
            with counter:
                distill(run, progress=lambda *_: None)
        else:
            distill(run, progress=lambda *_: None)
    config = {
        "budget": budget.model_dump(mode="json"),
        "lengths": {"prompt": PROMPT, "completion": COMPLETION},
    }
    made = STEPS * ROWS * COMPLETION
    tokens = TokenCounts(0 if count else made, made, made, STEPS * ROWS * PROMPT)
    context = PROMPT + COMPLETION / 2
    plain = optimizer.model_dump(mode="json")
    return {
        "flops": counter.get_total_flops(),
        "planned flops": flops_of(
            tokens,
            student=size,
            teacher=size,
            writer=size,
            context=context,
            recomputed=activations == 1,
        ),
        "memory": _resident("VmHWM") - baseline,
        "planned memory": training_memory(config, plain, Models(size, size, BYTES[teacher_dtype])),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(measure(sys.argv[1], count=sys.argv[2:] == ["count"])))
