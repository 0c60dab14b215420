"""What is learnt: the tasks and how their data is named."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from fractionate.config.base import Part


class CountdownTask(Part):
    """Reach a target from given numbers with + - * /, each number exactly once.

    Attributes:
        operands: How many numbers are given.
        numbers: Which numbers may be given; none takes 1-10, 12, 15, 20, 25, 50, 75.
        targets: Smallest and largest target; none is no upper limit.
        replacement: Whether a number may be given twice.
        allow_negative: Whether intermediate results may be negative.
        target_may_be_given: Whether the target may be among the given numbers.
        train: Problems in the training split.
        selection: Problems in the split on which choices are made.
        test: Problems in the split that is reported.
        data_seed: Seed of the generator.
    """

    kind: Literal["countdown"] = "countdown"
    operands: Annotated[int, Field(ge=2, le=6)] = 3
    numbers: tuple[PositiveInt, ...] | None = None
    targets: tuple[int, int | None] = (1, None)
    replacement: bool = True
    allow_negative: bool = False
    target_may_be_given: bool = True
    train: PositiveInt = 4163
    selection: PositiveInt = 200
    test: PositiveInt = 426
    data_seed: NonNegativeInt = 42


class TableTask(Part):
    """A file of your own: JSONL, CSV or Parquet, one problem a row.

    Attributes:
        path: File with the rows.
        prompt: Column with the user's turn, as text.
        messages: Column with the prompt as chat messages, instead of `prompt`.
        system: System turn put before `prompt`.
        completion: Column with a demonstration, for the `dataset` rollout and a conditioned
            teacher.
        answer: Column with the gold answer.
        grade: How an answer is judged: "exact" compares text, "number" compares numbers,
            "choice" compares letters, "none" judges nothing.
        key: Column that identifies a row; none takes the prompt itself.
        selection: Rows held out for choices.
        test: Rows held out for reports.
        split_seed: Seed of the split.
    """

    kind: Literal["table"] = "table"
    path: Path
    prompt: str | None = None
    messages: str | None = None
    system: str | None = None
    completion: str | None = None
    answer: str | None = None
    grade: Literal["exact", "number", "choice", "none"] = "exact"
    key: str | None = None
    selection: NonNegativeInt = 0
    test: PositiveInt = 200
    split_seed: NonNegativeInt = 42

    @model_validator(mode="after")
    def _columns(self) -> "TableTask":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("task takes exactly one of 'prompt' and 'messages' as column names")
        if self.grade != "none" and self.answer is None:
            raise ValueError(
                f"task.grade '{self.grade}' needs the gold answers: name their column in "
                "task.answer, or set task.grade: none"
            )
        return self


Task = Annotated[CountdownTask | TableTask, Field(discriminator="kind")]
