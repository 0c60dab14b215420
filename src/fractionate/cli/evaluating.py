"""One model on one task, outside any study."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from fractionate.cli.errors import BadInputError, from_the_user
from fractionate.cli.sources import located, sandbox_folder, table_fields
from fractionate.config import Accuracy, CountdownTask, Coverage, Evaluate, Lengths, Temperature
from fractionate.config.task import (
    Gsm8kTask,
    MathTask,
    MedReasonTask,
    ScienceTask,
    TableTask,
)
from fractionate.config.task import Task as TaskConfig
from fractionate.evaluate import Suite, evaluate
from fractionate.models.load import load_model
from fractionate.records import EvalRecord
from fractionate.tasks.base import Grade, Problem, Split, Task
from fractionate.tasks.build import build_task
from fractionate.tasks.sandbox import SandboxCountdown

_SANDBOX_TOKENS = {3: 120, 4: 200}
_OTHER_TOKENS = 512
_PROMPT_TOKENS = 8192
_PUBLIC: Mapping[str, TaskConfig] = {
    "science": ScienceTask(),
    "medreason": MedReasonTask(),
    "math": MathTask(),
    "gsm8k": Gsm8kTask(),
}


@dataclass(frozen=True)
class Request:
    """What is evaluated.

    Attributes:
        model: Hub id, folder, .gguf file, or the name of a sandbox model.
        task: "countdown", "sandbox", a task with public data, or a data file.
        columns: Column names by field of a table task, and its grade.
        operands: Numbers of a Countdown problem.
        items: Problems of the test split; none takes 200, or all rows of a file.
        samples: Completions per problem.
        temperature: Of the sampler.
        max_tokens: Longest completion; none takes what the task needs.
        dtype: Of the weights.
        seed: Of the sampling.
    """

    model: str
    task: str
    columns: dict[str, str | None]
    operands: int
    items: int | None
    samples: int
    temperature: float
    max_tokens: int | None
    dtype: str
    seed: int


@final
class Whole:
    """All rows of a file as one split: an evaluation trains on none."""

    def __init__(self, task: Task) -> None:
        self.name = task.name
        self._task = task

    def problems(self, split: Split, n: int | None = None) -> Sequence[Problem]:  # noqa: ARG002 - one for all
        """The first `n` problems of all, whatever the split.

        Raises:
            ValueError: There are fewer.
        """
        parts: tuple[Split, ...] = ("test", "selection", "train")
        found = [problem for part in parts for problem in self._task.problems(part)]
        if n is not None and n > len(found):
            raise BadInputError(f"--items {n}: {self.name} holds {len(found)} rows")
        return found[:n]

    def grade(self, problem: Problem, completion: str) -> Grade:
        """As the task itself does."""
        return self._task.grade(problem, completion)

    def demonstration(self, problem: Problem, *, seed: int) -> str:
        """As the task itself does."""
        return self._task.demonstration(problem, seed=seed)


def measure(request: Request) -> list[EvalRecord]:
    """Load the model, sample it on the task, and grade it.

    Raises:
        ModelLoadError: The model cannot be loaded.
        BadInputError: The task cannot be built, or the sampling makes no sense.
    """
    if request.samples > 1 and request.temperature == 0:
        raise BadInputError(
            "--samples above 1 with --temperature 0 gives the same completion again and again. "
            "Raise the temperature"
        )
    with from_the_user():
        task = _task(request)
        items = len(task.problems("test", request.items))
        config = _config(request, items)
    model = load_model(located(request.model), dtype=request.dtype)
    return evaluate(
        model,
        config=config,
        suite=Suite(task),
        lengths=Lengths(prompt=_PROMPT_TOKENS, evaluation=_tokens(request)),
        temperature=Temperature(),
        seed=request.seed,
    )


def _is_sandbox(request: Request) -> bool:
    named = request.task == "countdown" and sandbox_folder(request.model) is not None
    return named or request.task == "sandbox"


def _tokens(request: Request) -> int:
    if request.max_tokens is not None:
        return request.max_tokens
    return _SANDBOX_TOKENS[request.operands] if _is_sandbox(request) else _OTHER_TOKENS


def _task(request: Request) -> Task:
    if _is_sandbox(request):
        if request.operands not in _SANDBOX_TOKENS:
            raise BadInputError(f"--operands {request.operands}: the sandbox knows 3 and 4")
        return SandboxCountdown(request.operands)
    if request.task == "countdown":
        size = max(request.items or 0, CountdownTask().test)
        return build_task(CountdownTask(operands=request.operands, test=size), None)
    if request.task in _PUBLIC:
        return build_task(_PUBLIC[request.task], None)
    path = Path(request.task)
    if not path.is_file():
        raise BadInputError(
            f"--task {request.task}: neither 'countdown' nor 'sandbox' nor one of "
            f"{', '.join(_PUBLIC)}, and no such file"
        )
    fields = table_fields(path, request.columns)
    return Whole(build_task(TableTask.model_validate({**fields, "test": 1}), None))


def _config(request: Request, items: int) -> Evaluate:
    if request.items is None and Path(request.task).suffix == "":
        items = min(items, Accuracy().items)
    if request.samples == 1:
        accuracy = Accuracy(items=items, temperature=request.temperature)
        return Evaluate(accuracy=accuracy, sparsity=None)
    coverage = Coverage(
        items=items,
        samples=request.samples,
        k=tuple(2**i for i in range(request.samples.bit_length())),
        temperatures=(request.temperature,),
    )
    return Evaluate(accuracy=None, coverage=coverage, sparsity=None)
