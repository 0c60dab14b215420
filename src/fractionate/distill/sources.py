"""Where a step's completions come from: drawn now, drawn once for all cells, or a dataset."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from fractionate.config import DatasetRollout, Method, TeacherRollout
from fractionate.distill.corpus import Corpus
from fractionate.distill.prompts import Prompt
from fractionate.models.load import LanguageModel
from fractionate.rng import derive_seed
from fractionate.rollouts.completions import Completions
from fractionate.rollouts.draw import Speaker, draw, from_dataset
from fractionate.tasks.base import Task


@dataclass(frozen=True)
class Drawn:
    """The completions of one step.

    Attributes:
        completions: What was written.
        tokens_generated: Tokens that this cell decoded for it.
    """

    completions: Completions
    tokens_generated: int


class RolloutSource(ABC):
    """Gives every step its completions."""

    @abstractmethod
    def completions(self, step: int, prompts: Sequence[Prompt]) -> Drawn:
        """One completion per prompt."""

    def state(self) -> dict[str, Tensor]:
        """What a resumed run needs to go on; most sources need nothing."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` returned.

        Raises:
            ValueError: There is something to go on from that this source cannot have written.
        """
        if state:
            raise ValueError(
                f"a checkpoint holds {sorted(state)}, which this rollout never writes. Remove it"
            )


class FreshRollouts(RolloutSource):
    """Completions drawn at every step from the current models."""

    def __init__(
        self,
        method: Method,
        *,
        student: LanguageModel,
        teacher: LanguageModel,
        max_new_tokens: int,
        seed: int,
    ) -> None:
        """Bind the policy and the models; `student` is the module in training."""
        self._method = method
        self._student = student
        self._teacher = teacher
        self._seed = seed
        weighting = method.weighting
        cut = weighting.tokens if weighting.kind == "early_stop" else max_new_tokens
        self._max_new_tokens = min(max_new_tokens, cut)

    def completions(self, step: int, prompts: Sequence[Prompt]) -> Drawn:
        """Sample one completion per prompt under the rollout policy."""
        completions = draw(
            self._method.rollout,
            self._method.temperature,
            student=Speaker(self._student, [prompt.student for prompt in prompts]),
            teacher=Speaker(self._teacher, [prompt.teacher for prompt in prompts]),
            max_new_tokens=self._max_new_tokens,
            seed=derive_seed(self._seed, "rollout", step),
            keep_teacher_hidden=self._method.rollout.kind == "teacher",
        )
        return Drawn(completions, completions.n_tokens)


class CachedRollouts(RolloutSource):
    """Teacher completions made once per seed, the same for every off-policy cell."""

    def __init__(self, corpus: Corpus) -> None:
        """Read from a corpus whose step s holds the completions of step s."""
        self._corpus = corpus

    def completions(self, step: int, prompts: Sequence[Prompt]) -> Drawn:
        """The stored completions of a step.

        Raises:
            ValueError: The corpus was made for other prompts.
        """
        keys = [prompt.problem.key for prompt in prompts]
        return Drawn(self._corpus.step(step, keys=keys), 0)


class DatasetRollouts(RolloutSource):
    """Demonstrations of the task as completions."""

    def __init__(self, task: Task, *, student: LanguageModel, max_tokens: int, seed: int) -> None:
        """Bind task and tokenizer."""
        self._task = task
        self._student = student
        self._max_tokens = max_tokens
        self._seed = seed

    def completions(self, step: int, prompts: Sequence[Prompt]) -> Drawn:
        """One demonstration per prompt."""
        texts = [
            self._task.demonstration(
                prompt.problem, seed=derive_seed(self._seed, "demonstration", step, i)
            )
            for i, prompt in enumerate(prompts)
        ]
        completions = from_dataset(
            texts,
            self._student.tokenizer,
            end_id=self._student.end_id,
            max_new_tokens=self._max_tokens,
            device=self._student.device,
        )
        return Drawn(completions, 0)


def rollout_source(  # noqa: PLR0913 - one source needs these, another those
    method: Method,
    *,
    task: Task,
    student: LanguageModel,
    teacher: LanguageModel,
    corpus: Corpus | None,
    max_new_tokens: int,
    seed: int,
) -> RolloutSource:
    """The source that a method's rollout policy asks for.

    Raises:
        ValueError: The policy reads a corpus and there is none.
    """
    rollout = method.rollout
    if isinstance(rollout, DatasetRollout):
        return DatasetRollouts(task, student=student, max_tokens=max_new_tokens, seed=seed)
    if isinstance(rollout, TeacherRollout) and rollout.cached:
        if corpus is None:
            raise ValueError("method.rollout 'teacher' with cached: true needs a corpus stage")
        return CachedRollouts(corpus)
    return FreshRollouts(
        method, student=student, teacher=teacher, max_new_tokens=max_new_tokens, seed=seed
    )
