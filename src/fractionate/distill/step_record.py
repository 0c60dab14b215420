"""The bookkeeping of one step, so that the loop can be read aloud."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fractionate.distill.diagnostics import StepDiagnostics
from fractionate.distill.objective import Laws, LossMask
from fractionate.distill.prompts import Prompt
from fractionate.distill.run import Distillation
from fractionate.distill.sources import Drawn
from fractionate.distill.staleness import Staleness, staleness_summary
from fractionate.distill.student import Update, learning_rate
from fractionate.models.hidden import micro_batches
from fractionate.records import StepRecord, StopReason
from fractionate.rng import stream


class StepTally:
    """Counts what one step used and saw, over its micro-batches."""

    def __init__(self, run: Distillation, step: int, drawn: Drawn, loss_mask: LossMask) -> None:
        """Start counting step number `step`, from 0."""
        self._run = run
        self._step = step
        self._drawn = drawn
        self._loss_mask = loss_mask
        self._scored_before = run.scorer.tokens_scored
        self._loss = 0.0
        self._prompt_tokens = 0
        self._stale: list[Staleness] = []
        look = step % run.diagnostics.every == 0
        share = min(1.0, run.diagnostics.positions / max(1, drawn.completions.n_tokens))
        self._diagnostics = StepDiagnostics(
            run.objective.method.temperature,
            share=share if look else 0.0,
            bins=run.diagnostics.bins,
        )

    def micro_batches(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Groups of rows of similar length, under the token budget of a forward pass."""
        self._prompt_tokens = sum(len(p.student) for p in prompts)
        longest = [max(len(p.student), len(p.teacher)) for p in prompts]
        lengths = self._drawn.completions.lengths.tolist()
        return micro_batches(
            longest,
            lengths,
            self._run.budget.tokens_per_micro_batch,
            packed=self._run.scorer.packed,
        )

    def uniforms(self, purpose: str, rows: list[int]) -> Float[Tensor, " tokens"]:
        """One uniform number per completion position of `rows`; no micro-batching changes it."""
        completions = self._drawn.completions
        numbers = stream(self._run.seed, purpose, self._step).random(completions.tokens.shape)
        device = completions.tokens.device
        return torch.from_numpy(numbers).to(device)[rows][completions.mask[rows]]

    def add(self, loss: Float[Tensor, ""], laws: Laws, rows: list[int]) -> None:
        """Count one micro-batch."""
        self._loss += float(loss.detach())
        completions = self._drawn.completions
        mask = completions.mask[rows]
        tokens, places = completions.tokens[rows][mask], mask.nonzero()[:, 1]
        stale = self._run.objective.staleness(laws, completions, self._loss_mask, rows)
        if stale is not None:
            self._stale.append(stale)
        self._diagnostics.look(laws, tokens, self.uniforms("diagnostics", rows), places)

    def record(self, update: Update) -> StepRecord:
        """The record of the finished step."""
        completions, run = self._drawn.completions, self._run
        return StepRecord(
            step=self._step + 1,
            lr=learning_rate(self._step, run.student.optimizer),
            loss=self._loss,
            grad_norm=update.grad_norm,
            clip_coefficient=update.clip_coefficient,
            completions=len(completions.lengths),
            empty_completions=int((self._loss_mask.mask.sum(1) == 0).sum()),
            finished=sum(reason is StopReason.STOP for reason in completions.stop),
            mean_length=float(completions.lengths.double().mean()),
            tokens_generated=self._drawn.tokens_generated,
            tokens_scored=run.scorer.tokens_scored - self._scored_before,
            tokens_trained=self._loss_mask.n_tokens,
            prompt_tokens=self._prompt_tokens,
            **staleness_summary(self._stale),
            **self._diagnostics.summary(),
        )
