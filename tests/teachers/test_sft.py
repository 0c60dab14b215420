import pytest
import torch

from fractionate.config import Adaptation, Lora, SftTraining
from fractionate.models.load import load_model
from fractionate.models.prompts import render
from fractionate.rlvr.policy import Policy
from fractionate.rlvr.training import Hooks
from fractionate.tasks.base import Problem
from fractionate.teachers.sft import lessons, sft_arguments, train_sft
from tiny import llama, tokenizer

CONFIG = SftTraining(
    steps=12,
    lr=3e-2,
    warmup=1,
    batch=4,
    micro_batch=2,
    prompt=8,
    completion=4,
    adaptation=Adaptation(
        lora=Lora(rank=8, alpha=16),
        quantization="none",
        optimizer="adamw",
        dtype="float32",
        recompute=False,
    ),
)


class Echo:
    """The demonstration repeats the prompt's last word; two problems have a longer one."""

    name = "echo"

    def problems(self, split, n=None):  # noqa: ARG002 - the signature of a task
        words = [f"{i} {i + 1}" for i in range(8)]
        return [Problem(t, ({"role": "user", "content": t},), {}) for t in words][:n]

    def demonstration(self, problem, *, seed):  # noqa: ARG002 - the signature of a task
        word = problem.key.split()[-1]
        return " ".join([word] * (6 if word in ("1", "2") else 1))


def _policy(folder):
    llama(1).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return Policy(load_model(folder), CONFIG.adaptation, seed=0)


def test_the_loss_is_on_the_demonstration_and_its_end_alone(tmp_path):
    policy = _policy(tmp_path)
    learnt = lessons(policy, Echo(), Echo().problems("train"), CONFIG, {})
    model = policy.plain()
    prompt = render(model.tokenizer, Echo().problems("train")[2].messages)
    answer = [model.tokenizer.convert_tokens_to_ids("3"), model.end_id]
    assert learnt.inputs[0] == prompt + answer
    assert learnt.labels[0] == [-100] * len(prompt) + answer
    assert (len(learnt.inputs), learnt.too_long) == (6, 2)


def test_a_limit_that_fits_no_demonstration_is_an_error(tmp_path):
    config = CONFIG.model_copy(update={"completion": 1})
    with pytest.raises(ValueError, match=r"fits into teacher_training\.completion 1"):
        lessons(_policy(tmp_path), Echo(), Echo().problems("train"), config, {})


def test_the_demonstrations_are_learnt_and_the_loss_is_their_cross_entropy(tmp_path):
    policy = _policy(tmp_path / "model")
    problems = Echo().problems("train")[4:]
    learnt = lessons(policy, Echo(), problems, CONFIG, {})
    before = _cross_entropy(policy, learnt)
    records = train_sft(policy, learnt, CONFIG, Hooks(tmp_path / "scratch"), device="cpu")
    assert records[0].loss == pytest.approx(before, rel=1e-4)
    assert [record.step for record in records] == list(range(1, 13))
    assert records[0].lr == 0.0
    assert _cross_entropy(policy, learnt) < 0.95 * before


@torch.no_grad()
def _cross_entropy(policy, learnt) -> float:
    """Mean over the demonstration tokens of all lessons, which have one length here."""
    ids, labels = torch.tensor(learnt.inputs), torch.tensor(learnt.labels)
    logits = policy.plain().module(ids).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten()).item()


def test_the_paper_s_settings_are_the_defaults(tmp_path):
    settled = SftTraining(adaptation=CONFIG.adaptation)
    arguments = sft_arguments(settled, Hooks(tmp_path), device="cpu")
    assert (arguments.max_steps, arguments.learning_rate, arguments.warmup_steps) == (500, 5e-5, 10)
    assert arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps == 32
    assert (arguments.max_grad_norm, arguments.weight_decay) == (1.0, 0.0)
    assert arguments.lr_scheduler_type == "cosine"
    assert Lora() == Lora(rank=256, alpha=256, dropout=0.0)
