"""The peers: TRL's trainers as they are run by their users, and `generate` of transformers.

TRL gets what is fairest to it: one generation call per step, no gradient checkpointing, no logging
or saving between steps, prompts in a fixed order.
"""

import logging
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PrinterCallback, TrainerCallback
from transformers.utils import logging as transformers_logging

from fractionate.models.load import LanguageModel
from fractionate.models.stepper import pack

StepDone = Callable[[], None]


def quiet() -> None:
    """Leave out what the peers' libraries say on the side."""
    transformers_logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    for name in ("trl", "transformers", "accelerate", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)


# ---------------------------------------------------------------- transformers


def generate(
    model: LanguageModel, prompts: Sequence[Sequence[int]], *, max_new_tokens: int
) -> Tensor:
    """Completion tokens of each prompt, right-padded, by `generate` with a dynamic cache."""
    packed = pack(prompts, model.device)
    width = packed.ids.shape[1]
    columns = torch.arange(width, device=model.device)
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=list(model.stop_ids),
        pad_token_id=model.pad_id,
    )
    call: Any = model.module.generate
    with torch.no_grad():
        written = call(
            input_ids=packed.ids,
            attention_mask=(columns[None, :] >= packed.pads[:, None]).long(),
            generation_config=settings,
        )
    return written[:, width:]


def kept_tokens(model: LanguageModel, tokens: Tensor) -> int:
    """Tokens up to each row's first stop token, that one included."""
    stops = torch.isin(tokens, torch.tensor(model.stop_ids, device=tokens.device))
    lengths = torch.where(stops.any(1), stops.int().argmax(1) + 1, tokens.shape[1])
    return int(lengths.sum())


# ---------------------------------------------------------------- TRL


@dataclass(frozen=True)
class TrlRun:
    """One training run by TRL.

    Attributes:
        student: Trained.
        teacher: Frozen; in bfloat16 for the tuned peer.
        steps: Optimizer steps.
        rows: Prompts of a step.
        new_tokens: Longest completion.
        beta: 0 is forward KL, 1 reverse KL.
        lr: Learning rate.
        autocast: TRL's own default `bf16=True`.
        device: "cpu" or "cuda".
    """

    student: LanguageModel
    teacher: LanguageModel
    steps: int
    rows: int
    new_tokens: int
    beta: float = 1.0
    lr: float = 1e-5
    autocast: bool = False
    device: str = "cpu"

    def arguments(self, folder: str) -> dict[str, Any]:
        """What the configurations of both trainers share."""
        return {
            "output_dir": folder,
            "per_device_train_batch_size": self.rows,
            "gradient_accumulation_steps": 1,
            "max_steps": self.steps,
            "learning_rate": self.lr,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 1.0,
            "use_cpu": self.device == "cpu",
            "bf16": self.autocast,
            "gradient_checkpointing": False,
            "report_to": [],
            "save_strategy": "no",
            "logging_steps": self.steps,
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
            "beta": self.beta,
            "temperature": 1.0,
        }


class _Steps(TrainerCallback):
    """Says when a step is over, and keeps what the trainer logs."""

    def __init__(self, step_done: StepDone) -> None:
        self._step_done = step_done
        self.logged: dict[str, float] = {}

    def on_step_end(self, *_: object, **__: object) -> None:
        self._step_done()

    def on_log(self, *_: object, logs: dict[str, float] | None = None, **__: object) -> None:
        self.logged.update(logs or {})


def on_policy(
    run: TrlRun, prompts: Sequence[Sequence[int]], step_done: StepDone = lambda: None
) -> float:
    """`DistillationTrainer`; returns the completion tokens of a step, on average."""
    from datasets import Dataset
    from trl import DistillationConfig, DistillationTrainer

    words = run.student.tokenizer
    texts = [words.decode(list(ids)) for ids in prompts]
    steps = _Steps(step_done)
    with tempfile.TemporaryDirectory() as folder:
        settings = DistillationConfig(
            **run.arguments(folder),
            max_completion_length=run.new_tokens,
            shuffle_dataset=False,
        )
        trainer = DistillationTrainer(
            model=run.student.module,
            teacher_model=run.teacher.module,
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": texts}),
            processing_class=words,
            callbacks=[steps],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return steps.logged["completions/mean_length"] * run.rows


def off_policy(
    run: TrlRun,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]] | None,
    step_done: StepDone = lambda: None,
) -> float:
    """`GKDTrainer` with lmbda 0, on completions made before, or with seq_kd where there are none.

    Returns:
        The completion tokens of a step, on average.
    """
    from datasets import Dataset
    from trl.experimental.gkd import GKDConfig, GKDTrainer

    steps = _Steps(step_done)
    written = completions if completions is not None else [[run.student.end_id]] * len(prompts)
    rows = [
        {
            "prompt": " ",
            "input_ids": [*prompt, *text],
            "completion_mask": [0] * len(prompt) + [1] * len(text),
        }
        for prompt, text in zip(prompts, written, strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        settings = GKDConfig(
            **run.arguments(folder),
            lmbda=0.0,
            seq_kd=completions is None,
            max_new_tokens=run.new_tokens,
            max_length=None,
            train_sampling_strategy="sequential",
        )
        trainer = GKDTrainer(
            model=run.student.module,
            teacher_model=run.teacher.module,
            args=settings,
            train_dataset=Dataset.from_list(rows),
            processing_class=run.student.tokenizer,
            callbacks=[steps],
        )
        trainer.remove_callback(PrinterCallback)
        counted = _count_labels(trainer)
        trainer.train()
    return sum(counted) / len(counted)


def _count_labels(trainer: Any) -> list[int]:
    """Note how many tokens each loss is over."""
    counted: list[int] = []
    compute = trainer.compute_loss

    def compute_loss(model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        counted.append(int((inputs["labels"][:, 1:] != -100).sum()))
        return compute(model, inputs, *rest, **named)

    trainer.compute_loss = compute_loss
    return counted


def in_bfloat16(model: LanguageModel) -> LanguageModel:
    """A frozen copy with bfloat16 weights: one line for TRL's user."""
    import copy

    module: Any = copy.deepcopy(model.module)
    module = module.to(torch.bfloat16).eval()
    return replace(model, module=module)
