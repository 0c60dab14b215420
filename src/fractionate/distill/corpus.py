"""Teacher completions of a whole run, made once and shared by every off-policy cell of its seed."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from fractionate.config import TeacherRollout, Temperature
from fractionate.distill.prompts import Prompt
from fractionate.models.load import LanguageModel
from fractionate.rng import derive_seed
from fractionate.rollouts.completions import Completions
from fractionate.rollouts.corpus import load_completions, save_completions
from fractionate.rollouts.draw import Speaker, draw

CHUNK_STEPS = 16  # steps decoded together: large enough to fill a batch, small enough to lose


class Corpus:
    """Completions by step, read from a folder that `make_corpus` wrote."""

    def __init__(self, folder: Path) -> None:
        """Open a finished corpus."""
        self._folder = folder
        self._keys: list[list[str]] = json.loads((folder / "keys.json").read_text("utf-8"))
        self._chunk: tuple[int, Completions] | None = None

    def __len__(self) -> int:
        return len(self._keys)

    def step(self, step: int, *, keys: Sequence[str]) -> Completions:
        """The completions of a step.

        Args:
            step: Number of the step, from 0.
            keys: `Problem.key` of the prompts that the step poses.

        Raises:
            ValueError: The corpus ends before, or was made for other prompts.
        """
        if step >= len(self._keys) or self._keys[step] != list(keys):
            raise ValueError(
                f"the corpus in {self._folder} holds {len(self._keys)} steps, and none with the "
                f"prompts of step {step + 1}. Remove it with `fractionate gc` and run again"
            )
        number, offset = divmod(step, CHUNK_STEPS)
        if self._chunk is None or self._chunk[0] != number:
            self._chunk = (number, load_completions(_chunk_path(self._folder, number)))
        per_step = len(self._keys[step])
        first = sum(len(row) for row in self._keys[number * CHUNK_STEPS : step]) if offset else 0
        return self._chunk[1].rows(range(first, first + per_step))


def make_corpus(  # noqa: PLR0913 - who, what, how and where of a whole corpus
    folder: Path,
    *,
    teacher: LanguageModel,
    steps: Sequence[Sequence[Prompt]],
    temperature: Temperature,
    max_new_tokens: int,
    seed: int,
    keep_hidden: bool,
    progress: Callable[[int, int], None],
) -> int:
    """Let the teacher complete every prompt of every step; chunks already there are kept.

    Args:
        folder: Where chunks and keys are written.
        teacher: Who writes.
        steps: Prompts by step.
        temperature: `teacher_rollout` and `top_p` are used.
        max_new_tokens: Longest completion.
        seed: Replicate.
        keep_hidden: Store the teacher's hidden states, so that no cell has to score again.
        progress: Called with (finished steps, all steps).

    Returns:
        Completion tokens in the corpus.
    """
    tokens = 0
    for number, start in enumerate(range(0, len(steps), CHUNK_STEPS)):
        path = _chunk_path(folder, number)
        prompts = [prompt for step in steps[start : start + CHUNK_STEPS] for prompt in step]
        if not path.exists():
            completions = draw(
                TeacherRollout(),
                temperature,
                student=None,
                teacher=Speaker(teacher, [prompt.teacher for prompt in prompts]),
                max_new_tokens=max_new_tokens,
                seed=derive_seed(seed, "corpus", number),
                keep_teacher_hidden=keep_hidden,
            )
            fresh = path.with_suffix(".writing")
            save_completions(fresh, completions)
            fresh.rename(path)
        tokens += load_completions(path).n_tokens
        progress(min(start + CHUNK_STEPS, len(steps)), len(steps))
    keys = [[prompt.problem.key for prompt in step] for step in steps]
    (folder / "keys.json").write_text(json.dumps(keys), encoding="utf-8")
    return tokens


def _chunk_path(folder: Path, number: int) -> Path:
    return folder / f"completions-{number:05d}.safetensors"
