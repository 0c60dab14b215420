"""From completions to counted verdicts: what was written, how it was judged, one record an item."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fractionate.models.load import LanguageModel
from fractionate.records import EvalRecord, StopReason
from fractionate.rollouts.completions import Completions
from fractionate.tasks.base import Grade, Problem, Task


@dataclass(frozen=True)
class Answer:
    """One completion as grading and counting see it.

    Attributes:
        text: Without stop and padding tokens.
        tokens: Its length, stop token included.
        truncated: Whether it met the length limit.
        entropy: Mean entropy of the model's law along it at temperature 1, in nats, if measured.
    """

    text: str
    tokens: int
    truncated: bool
    entropy: float | None = None


def read_answers(
    model: LanguageModel, completions: Completions, entropy: Tensor | None = None
) -> list[Answer]:
    """Completions as text.

    Stop and padding tokens are left out by id; other special tokens stay, because a tokenizer may
    count the tags around thoughts and answers as such.

    Args:
        model: Whose tokenizer and stop tokens the completions have.
        completions: What was written.
        entropy: [batch] mean entropy of each completion, in nats.
    """
    silent = {*model.stop_ids, model.pad_id}
    entropies = [None] * len(completions.stop) if entropy is None else entropy.tolist()
    rows = zip(
        completions.tokens.tolist(),
        completions.lengths.tolist(),
        completions.stop,
        entropies,
        strict=True,
    )
    return [
        Answer(
            _decoded(model, [token for token in tokens[:length] if token not in silent]),
            length,
            stop is StopReason.LENGTH,
            mean,
        )
        for tokens, length, stop, mean in rows
    ]


def _decoded(model: LanguageModel, ids: list[int]) -> str:
    return str(model.tokenizer.decode(ids, skip_special_tokens=False))


def count_verdicts(
    task: Task,
    problem: Problem,
    answers: Sequence[Answer],
    *,
    suite: str,
    temperature: float,
) -> EvalRecord:
    """Judge the samples of one item and count; equal texts are judged once.

    Args:
        task: The judge.
        problem: The item.
        answers: Its samples.
        suite: Name of the record's suite.
        temperature: Of the sampler.
    """
    judged: dict[str, Grade] = {}
    for answer in answers:
        if answer.text not in judged:
            judged[answer.text] = task.grade(problem, answer.text)
    grades = [judged[answer.text] for answer in answers]
    return EvalRecord(
        suite=suite,
        item=problem.key,
        temperature=temperature,
        samples=len(answers),
        correct=sum(grade.correct for grade in grades),
        distinct=len({grade.solution for grade in grades if grade.correct}),
        unanswered=sum(not grade.answered for grade in grades),
        truncated=sum(answer.truncated for answer in answers),
        tokens=sum(answer.tokens for answer in answers),
        entropy=_mean_entropy(answers),
        reasons=dict(sorted(Counter(grade.reason for grade in grades).items())),
    )


def _mean_entropy(answers: Sequence[Answer]) -> float | None:
    """Mean over all generated positions; none unless every completion was measured."""
    measured = [answer.entropy * answer.tokens for answer in answers if answer.entropy is not None]
    tokens = sum(answer.tokens for answer in answers)
    return sum(measured) / tokens if tokens and len(measured) == len(answers) else None
