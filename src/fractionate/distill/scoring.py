"""Hidden states of both models at the positions that predict a completion's tokens."""

from collections.abc import Sequence

import torch

from fractionate.distill.objective import Laws
from fractionate.distill.prompts import Prompt
from fractionate.models.hidden import completion_hidden, head_weight
from fractionate.models.load import LanguageModel
from fractionate.rollouts.completions import Completions


class Scorer:
    """Runs student (with gradient) and teacher (without) over the same completions."""

    def __init__(self, *, student: LanguageModel, teacher: LanguageModel, vocab_size: int) -> None:
        """Bind the two models and the vocabulary that their laws share."""
        self._student = student
        self._teacher = teacher
        self._vocab_size = vocab_size
        self.tokens_scored = 0

    def laws(
        self, prompts: Sequence[Prompt], completions: Completions, rows: Sequence[int]
    ) -> Laws:
        """Both laws at all completion positions of `rows`; teacher states are reused if stored."""
        student_hidden = completion_hidden(
            self._student.module, [prompt.student for prompt in prompts], completions, rows=rows
        )
        if completions.hidden is not None:
            index = list(rows)
            teacher_hidden = completions.hidden[index][completions.mask[index]]
        else:
            with torch.no_grad():
                teacher_hidden = completion_hidden(
                    self._teacher.module,
                    [prompt.teacher for prompt in prompts],
                    completions,
                    rows=rows,
                )
            self.tokens_scored += len(teacher_hidden)
        return Laws(
            student_hidden=student_hidden,
            student_head=head_weight(self._student.module),
            teacher_hidden=teacher_hidden,
            teacher_head=head_weight(self._teacher.module).detach(),
            vocab_size=self._vocab_size,
        )
