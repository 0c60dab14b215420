"""One training step of every kind of method, pinned.

These numbers change only with an intended change of the numerics: raise the version of the stage
"cell" in study/keys.py, add a line under Numerics in CHANGELOG.md, then run
`pytest --update-golden tests/distill/test_golden.py`, which refuses without that line.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from fractionate.config import Method, Optimizer
from fractionate.distill.objective import Objective
from fractionate.distill.prompts import Prompt
from fractionate.distill.scoring import Scorer
from fractionate.distill.sources import FreshRollouts
from fractionate.distill.student import Student
from fractionate.models.load import wrap
from fractionate.rng import stream
from fractionate.tasks.base import Problem
from tiny import llama, tokenizer

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "steps.json"
TOKEN_MEAN = {"reduction": "token_mean"}
METHODS = {
    "forward": {"divergence": {"kind": "forward"}},
    "reverse": {"divergence": {"kind": "reverse"}},
    "jsd": {"divergence": {"kind": "jsd", "beta": 0.3}},
    "mixed": {"divergence": {"kind": "mixed", "reverse_weight": 0.25}},
    "entropy aware": {"divergence": {"kind": "entropy_aware", "threshold": 1.0}},
    "teacher rollouts": {"rollout": {"kind": "teacher", "cached": False}},
    "spectrum": {"rollout": {"kind": "spectrum", "lam": 1.5}},
    "token coin": {"rollout": {"kind": "coin", "student_share": 0.5}},
    "sequence coin": {"rollout": {"kind": "coin", "student_share": 0.5, "per": "sequence"}},
    "handover": {"rollout": {"kind": "handover", "teacher_tokens": 3}},
    "skd": {"rollout": {"kind": "skd", "top_k": 4}},
    "top-k bucket": {"support": {"kind": "topk", "k": 4}},
    "top-k reverse": {
        "divergence": {"kind": "reverse"},
        "support": {"kind": "topk", "k": 4, "tail": "renormalise"},
    },
    "auxiliary token": {"support": {"kind": "sampled"}},
    "own token, exact baseline": {
        "divergence": {"kind": "reverse"},
        "support": {"kind": "sampled", "token": "rollout", "baseline": "exact"},
    },
    "iw-opd": {
        "divergence": {"kind": "reverse"},
        "support": {"kind": "sampled", "token": "rollout"},
        "weighting": {"kind": "iw_opd"},
    },
    "early stop": {"weighting": {"kind": "early_stop", "tokens": 3}, **TOKEN_MEAN},
    "window": {"weighting": {"kind": "window", "first": 0.3}, **TOKEN_MEAN},
    "skip": {"weighting": {"kind": "skip", "tokens": 3}},
    "constant": {"reduction": "constant"},
    "sequence sum": {"reduction": "sequence_sum"},
}


def _step(settings: dict) -> dict[str, float]:
    method = Method.model_validate(settings)
    models = {
        "student": wrap(llama(1), tokenizer()),
        "teacher": wrap(llama(2, width=64), tokenizer()),
    }
    optimizer = Optimizer(
        lr=1e-2, param_dtype="float32", state_dtype="float32", compute_dtype="float32"
    )
    student = Student(models["student"], optimizer)
    before = {name: tensor.clone() for name, tensor in student.weights().items()}
    ids = [(1, 5, 6), (1, 7, 8, 9, 10), (1, 11, 12)]
    prompts = [Prompt(Problem(str(p), (), {}), p, p) for p in ids]
    source = FreshRollouts(method, **models, max_new_tokens=8, seed=42)
    drawn = source.completions(0, prompts).completions
    objective = Objective(method, max_length=8)
    laws = Scorer(**models, vocab_size=32).laws(prompts, drawn, [0, 1, 2])
    loss = objective(
        laws,
        rollout=drawn,
        loss_mask=objective.loss_mask(drawn),
        rows=[0, 1, 2],
        uniforms=torch.from_numpy(stream(42, "auxiliary").random(drawn.tokens.shape))[drawn.mask],
    )
    loss.backward()
    parameters = dict(models["student"].module.named_parameters())
    gradient = _flat([parameters[name].grad for name in before])
    update = student.update(1e-2)
    delta = _flat([student.weights()[name] - tensor for name, tensor in before.items()])
    # Adam's first step has the size of the rate however small a gradient is: of the weights after
    # it, some depend on how a processor rounds. Along the gradient such weights count for nothing.
    return {
        "loss": loss.item(),
        "grad_norm": update.grad_norm,
        "descent": float(-delta @ gradient),
        "checksum": float(gradient @ torch.cos(torch.arange(len(gradient), dtype=torch.float64))),
    }


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors]).double()


def _numerics() -> str:
    """Digest of the Numerics sections of the changelog."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^### Numerics\n(.*?)(?=^##|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return hashlib.sha256("".join(sections).encode()).hexdigest()


@pytest.fixture(scope="module")
def golden(request: pytest.FixtureRequest) -> dict:
    known = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    if request.config.getoption("--update-golden"):
        if known.get("numerics") == _numerics():
            pytest.fail("CHANGELOG.md has no new line under Numerics: say first what changes")
        steps = {name: _step(settings) for name, settings in METHODS.items()}
        known = {"numerics": _numerics(), "steps": steps}
        GOLDEN.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return known["steps"]


@pytest.mark.parametrize("name", METHODS)
def test_a_step_is_what_it_was(name: str, golden: dict):
    step, known = _step(METHODS[name]), dict(golden[name])
    assert step.pop("checksum") == pytest.approx(
        known.pop("checksum"), abs=1e-5 * known["grad_norm"]
    ), __doc__
    assert step == pytest.approx(known, rel=3e-6, abs=1e-9), __doc__


def test_every_golden_step_is_looked_at(golden: dict):
    assert set(golden) == set(METHODS)
