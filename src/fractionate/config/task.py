"""What is learnt: the tasks and how their data is named."""

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from fractionate.config.base import Part
from fractionate.config.source import LongestText, Source, Sources


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

    @property
    def lacks_demonstrations(self) -> str | None:
        """Field that would have to name demonstrations; none, for a solver writes them."""
        return None


# ---------------------------------------------------------------- tasks with data


class DataTask(Part):
    """What all tasks with data have in common: where the rows are, and how they are split.

    The splits are disjoint by the content of a problem. Which rows go where is decided by a seeded
    hash of that content, not by the order of the file.

    Attributes:
        source: Where the rows are.
        test_source: Where the rows of the test split are; none holds them out of `source`.
        exclude: Problems that may not be trained on, besides those of the test.
        train: Rows to train on; none takes all that are left.
        selection: Rows on which choices are made; none of them is trained on.
        test: Rows that are reported.
        split_seed: Seed of the split.
    """

    source: Sources = ()
    test_source: Sources = ()
    exclude: Sources = ()
    train: PositiveInt | None = None
    selection: NonNegativeInt = 0
    test: PositiveInt = 200
    split_seed: NonNegativeInt = 42

    @model_validator(mode="after")
    def _has_rows(self) -> "DataTask":
        if not self.inputs:
            raise ValueError("task.source names no data. Give {path: ...} or {hub: owner/name}")
        return self

    @property
    def lacks_demonstrations(self) -> str | None:
        """The field that would have to name demonstrations where it is known to name none."""
        return None

    @property
    def inputs(self) -> Mapping[str, Source]:
        """Every source by the field that names it."""
        named = {"source": self.source, "test_source": self.test_source, "exclude": self.exclude}
        return {
            f"{field}.{i}" if len(sources) > 1 else field: source
            for field, sources in named.items()
            for i, source in enumerate(sources)
        }


class ScienceTask(DataTask):
    """Multiple choice from SciKnowEval: question, choices {text, label}, answerKey.

    Attributes:
        domain: Value of the column `domain`.
        level: Value of `details.level`.
        reasoning: Column with a worked solution, which the public data does not have.
    """

    kind: Literal["science"] = "science"
    source: Sources = (Source(hub="hicai-zju/SciKnowEval", subset="v2", split="test"),)
    domain: str = "Chemistry"
    level: str = "L3"
    reasoning: str | None = None
    test: PositiveInt = 507

    @property
    def lacks_demonstrations(self) -> str | None:
        """The reasoning column, if none is named."""
        return "reasoning" if self.reasoning is None else None


class MedReasonTask(DataTask):
    """Medical multiple choice: question, options (one text), answer (a text), reasoning.

    Attributes:
        reasoning: Column with the reasoning that a demonstration shows; none keeps rows without it.
    """

    kind: Literal["medreason"] = "medreason"
    source: Sources = (Source(hub="UCSC-VLAA/MedReason", split="train"),)
    reasoning: str | None = "reasoning"
    train: PositiveInt | None = 4748
    selection: NonNegativeInt = 200
    test: PositiveInt = 471

    @property
    def lacks_demonstrations(self) -> str | None:
        """The reasoning column, if none is named."""
        return "reasoning" if self.reasoning is None else None


_MATH_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)


def _math(split: str) -> tuple[Source, ...]:
    return tuple(
        Source(hub="EleutherAI/hendrycks_math", subset=subject, split=split)
        for subject in _MATH_SUBJECTS
    )


_NUMINA = Source(
    hub="AI-MO/NuminaMath-CoT",
    split="train",
    where={"source": "synthetic_math"},
    longest=LongestText(
        column="solution", tokens=384, tokenizer="deepseek-ai/DeepSeek-R1-Distill-Llama-8B"
    ),
    limit=12502,
)


class MathTask(DataTask):
    r"""Problems with a final \boxed{} answer, compared by math-verify: problem, solution, answer.

    Attributes:
        seconds: Time limit of one comparison.
    """

    kind: Literal["math"] = "math"
    source: Sources = (*_math("train"), _NUMINA)
    test_source: Sources = (Source(hub="HuggingFaceH4/MATH-500", split="test"),)
    exclude: Sources = _math("test")
    test: PositiveInt = 500
    seconds: PositiveInt = 5


class Gsm8kTask(DataTask):
    """Word problems whose answer is one number: question, answer with the number after ####."""

    kind: Literal["gsm8k"] = "gsm8k"
    source: Sources = (Source(hub="openai/gsm8k", subset="main", split="train"),)
    test_source: Sources = (Source(hub="openai/gsm8k", subset="main", split="test"),)
    selection: NonNegativeInt = 200


# ---------------------------------------------------------------- a table of one's own


class TableTask(DataTask):
    """Data of your own: one problem a row.

    Attributes:
        path: File or folder with the rows, in place of `source`.
        prompt: Column with the user's turn as text, or with the prompt as chat messages.
        messages: Column with chat messages; a last turn by the assistant is the demonstration.
        template: The user's turn, with a column's name in braces where its value goes.
        system: System turn put before `prompt` or `template`.
        completion: Column with a demonstration, as text or as one chat message, for the `dataset`
            rollout and a conditioned teacher.
        answer: Column with the gold answer.
        grade: How an answer is judged: "exact" compares text, "number" compares numbers,
            "choice" compares letters, "math" compares what is boxed, "none" judges nothing.
        key: Column that identifies a row; none takes the prompt itself.
        duplicates: Two rows with one key are an error, or the later one is dropped and counted.
    """

    kind: Literal["table"] = "table"
    path: Path | None = None
    prompt: str | None = None
    messages: str | None = None
    template: str | None = None
    system: str | None = None
    completion: str | None = None
    answer: str | None = None
    grade: Literal["exact", "number", "choice", "math", "none"] = "exact"
    key: str | None = None
    duplicates: Literal["error", "drop"] = "error"

    @model_validator(mode="after")
    def _has_rows(self) -> "TableTask":
        if (self.path is None) == (not self.source):
            raise ValueError(
                "task takes exactly one of 'path' (a file or folder) and 'source' "
                "({path: ...} or {hub: owner/name})"
            )
        return self

    @model_validator(mode="after")
    def _columns(self) -> "TableTask":
        prompts = (self.prompt, self.messages, self.template)
        if sum(given is not None for given in prompts) != 1:
            raise ValueError(
                "task takes exactly one of 'prompt' and 'messages', which name a column, and "
                "'template'"
            )
        if self.template is not None:
            template_columns(self.template)
        if self.grade != "none" and self.answer is None:
            raise ValueError(
                f"task.grade '{self.grade}' needs the gold answers: name their column in "
                "task.answer, or set task.grade: none"
            )
        return self

    @property
    def lacks_demonstrations(self) -> str | None:
        """The column of completions, if none is named and none can be in the messages."""
        return "completion" if self.completion is None and self.messages is None else None

    @property
    def inputs(self) -> Mapping[str, Source]:
        """Every source by the field that names it."""
        own = {} if self.path is None else {"path": Source(path=self.path)}
        return {**own, **super().inputs}


def template_columns(template: str) -> tuple[str, ...]:
    """The columns that a template takes, in the order of their first use.

    Raises:
        ValueError: It takes none, or braces stand for something else than a column's name.
    """
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"task.template: {error}. Double braces that are meant as such") from None
    named = [(name, spec, how) for _, name, spec, how in parts if name is not None]
    for name, spec, how in named:
        if not name.strip() or name.isdecimal() or spec or how or "[" in name:
            raise ValueError(
                "task.template: braces hold the name of a column and nothing else, as in "
                "'{question}'. Double braces that are meant as such"
            )
    if not named:
        raise ValueError("task.template names no column. Write one in braces, as in '{question}'")
    return tuple(dict.fromkeys(name for name, _, _ in named))


Task = Annotated[
    CountdownTask | ScienceTask | MedReasonTask | MathTask | Gsm8kTask | TableTask,
    Field(discriminator="kind"),
]


def check_demonstrations(task: Task, why: str) -> None:
    """Refuse a task that is known to have no demonstrations.

    Args:
        task: The task.
        why: What needs them, as the beginning of a sentence.

    Raises:
        ValueError: The task names none; names the field.
    """
    field = task.lacks_demonstrations
    if field is not None:
        raise ValueError(f"{why}, but task.{field} names no column. Set task.{field}")
