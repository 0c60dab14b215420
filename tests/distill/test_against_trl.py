"""One distillation step of ours equals one of TRL's DistillationTrainer on the same rollouts."""

import pytest
import torch

from fractionate.config import Method
from fractionate.distill.objective import Objective
from fractionate.distill.prompts import Prompt
from fractionate.distill.scoring import Scorer
from fractionate.models.load import wrap
from fractionate.records import StopReason
from fractionate.rollouts.completions import Completions
from fractionate.tasks.base import Problem
from tiny import llama, tokenizer

PROMPTS = [[1, 5, 6], [1, 7, 8, 9, 10], [1, 11, 12], [1, 13, 14, 15]]
COMPLETIONS = [[16, 17, 18, 2], [19, 2], [20, 21, 22, 23, 24, 25], [26]]
DIVERGENCES = {
    "forward": ({"kind": "forward"}, 0.0),
    "reverse": ({"kind": "reverse"}, 1.0),
    "jsd": ({"kind": "jsd", "beta": 0.3}, 0.3),
}


def _models():
    names = {"student": llama(1), "teacher": llama(2, width=64)}
    return {name: wrap(module, tokenizer()) for name, module in names.items()}


def _rollouts() -> Completions:
    longest = max(map(len, COMPLETIONS))
    return Completions(
        tokens=torch.tensor([c + [0] * (longest - len(c)) for c in COMPLETIONS]),
        lengths=torch.tensor([len(c) for c in COMPLETIONS]),
        log_probs=torch.zeros(len(COMPLETIONS), longest),
        source=torch.zeros(len(COMPLETIONS), longest, dtype=torch.int64),
        stop=tuple(StopReason.STOP for _ in COMPLETIONS),
    )


def _our_step(divergence: dict, micro_batches: list[list[int]]) -> tuple[float, dict]:
    models = _models()
    method = Method.model_validate(
        {
            "divergence": divergence,
            "reduction": "token_mean",
            "temperature": {"student_loss": 1.0, "teacher_loss": 1.0},
        }
    )
    objective = Objective(method, max_length=8)
    scorer = Scorer(student=models["student"], teacher=models["teacher"], vocab_size=32)
    prompts = [Prompt(Problem(str(p), (), {}), tuple(p), tuple(p)) for p in PROMPTS]
    rollout = _rollouts()
    loss_mask = objective.loss_mask(rollout)
    total = 0.0
    for rows in micro_batches:
        laws = scorer.laws(prompts, rollout, rows)
        uniforms = torch.zeros(len(laws.student_hidden))
        loss = objective(laws, rollout=rollout, loss_mask=loss_mask, rows=rows, uniforms=uniforms)
        loss.backward()
        total += loss.item()
    gradients = {n: p.grad for n, p in models["student"].module.named_parameters()}
    return total, gradients


def _trl_step(beta: float, folder) -> tuple[float, dict]:
    from datasets import Dataset
    from trl import DistillationConfig, DistillationTrainer

    models = _models()
    arguments = DistillationConfig(
        output_dir=str(folder),
        beta=beta,
        temperature=1.0,
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=len(PROMPTS),
    )
    trainer = DistillationTrainer(
        model=models["student"].module,
        teacher_model=models["teacher"].module,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["5 6"] * len(PROMPTS)}),
        processing_class=tokenizer(),
    )
    student = models["student"].module
    student.zero_grad()
    loss = trainer.compute_loss(student.train(), _trl_inputs())
    loss.backward()
    return loss.item(), {n: p.grad for n, p in student.named_parameters()}


def _trl_inputs() -> dict[str, torch.Tensor]:
    rollout, longest = _rollouts(), max(map(len, PROMPTS))
    return {
        "prompt_ids": torch.tensor([[0] * (longest - len(p)) + p for p in PROMPTS]),
        "prompt_mask": torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in PROMPTS]),
        "completion_ids": rollout.tokens,
        "completion_mask": rollout.mask.long(),
        "num_items_in_batch": rollout.mask.sum(),
    }


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.filterwarnings("ignore")  # TRL's and its dependencies' own deprecations
def test_a_step_equals_trl(name: str, tmp_path):
    divergence, beta = DIVERGENCES[name]
    theirs, their_gradients = _trl_step(beta, tmp_path)
    ours, our_gradients = _our_step(divergence, [[0, 1, 2, 3]])
    assert ours == pytest.approx(theirs, rel=1e-5)
    _assert_close(our_gradients, their_gradients)


@pytest.mark.parametrize("split", [[[0], [1], [2], [3]], [[3, 1], [0, 2]]])
def test_any_split_into_micro_batches_is_the_same_step(split: list[list[int]]):
    whole, gradients = _our_step({"kind": "reverse"}, [[0, 1, 2, 3]])
    parts, part_gradients = _our_step({"kind": "reverse"}, split)
    assert parts == pytest.approx(whole, rel=5e-6)  # a small KL of rounded logits
    _assert_close(part_gradients, gradients)


def _assert_close(left: dict, right: dict) -> None:
    for name, gradient in left.items():
        error = (gradient - right[name]).norm() / right[name].norm()
        assert error < 1e-5, name
