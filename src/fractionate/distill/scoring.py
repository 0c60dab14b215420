"""Hidden states of both models at the positions that predict a completion's tokens."""

from collections.abc import Sequence

import torch

from fractionate.distill.objective import Laws
from fractionate.distill.prompts import Prompt
from fractionate.models.forward import kept_per_token, runs_packed
from fractionate.models.hidden import completion_hidden, head_weight
from fractionate.models.load import LanguageModel
from fractionate.rollouts.completions import Completions


class Scorer:
    """Runs student (with gradient) and teacher (without) over the same completions."""

    def __init__(
        self,
        *,
        student: LanguageModel,
        teacher: LanguageModel,
        vocab_size: int,
        activation_bytes: int | None = None,
        product_dtype: torch.dtype | None = None,
    ) -> None:
        """Bind the two models and the vocabulary that their laws share.

        Args:
            student: The model in training.
            teacher: The frozen model.
            vocab_size: Tokens that both laws are over.
            activation_bytes: Activations of a micro-batch above which its layers are computed
                again in the backward pass; none keeps them always.
            product_dtype: Of the loss's products of hidden states and heads; none is exact.
        """
        self._product_dtype = product_dtype
        self._activation_bytes = activation_bytes
        self.packed = all(
            model.kernel != "compiled" and runs_packed(model.module) for model in (student, teacher)
        )
        self._student = student
        self._teacher = teacher
        self._vocab_size = vocab_size
        self.tokens_scored = 0

    def laws(
        self, prompts: Sequence[Prompt], completions: Completions, rows: Sequence[int]
    ) -> Laws:
        """Both laws at all completion positions of `rows`; teacher states are reused if stored."""
        student_hidden = completion_hidden(
            self._student.module,
            [prompt.student for prompt in prompts],
            completions,
            rows=rows,
            checkpoint=self._recomputes(prompts, completions, rows),
            kernel=self._student.kernel,
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
                    kernel=self._teacher.kernel,
                )
            self.tokens_scored += len(teacher_hidden)
        return Laws(
            student_hidden=student_hidden,
            student_head=head_weight(self._student.module),
            teacher_hidden=teacher_hidden,
            teacher_head=head_weight(self._teacher.module).detach(),
            vocab_size=self._vocab_size,
            product_dtype=self._product_dtype,
        )

    def _recomputes(
        self, prompts: Sequence[Prompt], completions: Completions, rows: Sequence[int]
    ) -> bool:
        if self._activation_bytes is None:
            return False
        lengths = [len(prompts[row].student) + int(completions.lengths[row]) for row in rows]
        module = self._student.module
        tokens = sum(lengths) if self.packed else len(lengths) * max(lengths, default=0)
        needed = tokens * kept_per_token(module.config) * module.dtype.itemsize
        return needed > self._activation_bytes
