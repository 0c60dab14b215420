"""A small GRPO over a tiny model, for the tests of this folder."""

from pathlib import Path

from fractionate.config import Adaptation, Grpo, Lora
from fractionate.models.load import load_model
from fractionate.rlvr.policy import Policy
from fractionate.rlvr.rewards import Rewarder
from fractionate.rlvr.rollouts import GroupRollouts
from fractionate.rlvr.training import Hooks
from fractionate.tasks.base import Grade, Problem
from tiny import llama, tokenizer

RESOLVED = Adaptation(quantization="none", optimizer="adamw", dtype="float32", recompute=False)
ADAPTED = RESOLVED.model_copy(update={"lora": Lora(rank=4, alpha=8)})
FULL = RESOLVED.model_copy(update={"lora": None})


def small_config(**changes) -> Grpo:
    return Grpo(
        **{
            "steps": 6,
            "lr": 1e-2,
            "warmup": 1,
            "group": 4,
            "generation_batch": 8,
            "micro_batch": 4,
            "accumulation": 2,
            "top_p": 1.0,
            "prompt": 8,
            "completion": 6,
            "adaptation": ADAPTED,
            "checkpoint_every": 2,
            **changes,
        }
    )


class EvenFirst:
    """Right answers begin with an even number; a text of stop tokens alone answers nothing."""

    name = "even"

    def problems(self, split, n=None):  # noqa: ARG002 - the signature of a task
        texts = [f"{i} {i + 3}" for i in range(12)][:n]
        return [Problem(t, ({"role": "user", "content": t},), {}) for t in texts]

    def grade(self, problem, completion):  # noqa: ARG002 - the signature of a task
        words = completion.split()
        right = bool(words) and words[0].isdigit() and int(words[0]) % 2 == 0
        return Grade(right, "ok" if right else "odd", answered=bool(words))

    def demonstration(self, problem, *, seed):  # noqa: ARG002 - the signature of a task
        return "4 2"


def model_folder(folder: Path, seed: int = 1) -> Path:
    if not folder.exists():
        llama(seed).save_pretrained(folder)
        tokenizer().save_pretrained(folder)
    return folder


def policy_of(folder: Path, adaptation: Adaptation) -> Policy:
    return Policy(load_model(model_folder(folder)), adaptation, seed=0)


def rollouts_of(policy: Policy, config: Grpo, task=None) -> GroupRollouts:
    task = task or EvenFirst()
    rewarder = Rewarder(task, correct=config.correct_reward, layout=config.format_reward)
    return GroupRollouts(
        policy, task.problems("train"), rewarder=rewarder, config=config, chat_template_kwargs={}
    )


def hooks_of(folder: Path, **changes) -> Hooks:
    folder.mkdir(parents=True, exist_ok=True)
    return Hooks(folder, **changes)
