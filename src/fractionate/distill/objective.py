"""The one place where the parts of a method meet: support x divergence x weighting x reduction."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fractionate.config import Method
from fractionate.losses import (
    early_stop_mask,
    iw_opd_weights,
    linear_divergence,
    log_probs,
    loss_denominator,
    reverse_kl,
    sampled_loss,
    skip_mask,
    token_weights,
    topk_kl,
    window_mask,
)
from fractionate.rollouts.completions import Completions
from fractionate.rollouts.sampling import inverse_cdf


@dataclass(frozen=True)
class Laws:
    """Two next-token laws at the completion positions of some rows, as hidden states and heads.

    Attributes:
        student_hidden: Student's last hidden states; carries the gradient.
        student_head: Student's output matrix.
        teacher_hidden: Teacher's last hidden states at the same positions.
        teacher_head: Teacher's output matrix.
        vocab_size: Tokens that both laws are over.
    """

    student_hidden: Float[Tensor, "tokens student_dim"]
    student_head: Float[Tensor, "student_vocab student_dim"]
    teacher_hidden: Float[Tensor, "tokens teacher_dim"]
    teacher_head: Float[Tensor, "teacher_vocab teacher_dim"]
    vocab_size: int


@dataclass(frozen=True)
class LossMask:
    """Which tokens of a step are in the loss; taken after the rollout.

    Attributes:
        mask: True on tokens in the loss.
        denominator: Of the whole optimizer step, over all micro-batches.
    """

    mask: Bool[Tensor, "batch time"]
    denominator: float

    @property
    def n_tokens(self) -> int:
        """Tokens in the loss."""
        return int(self.mask.sum())


class Objective:
    """A method as a function of two laws on a rollout: `loss = objective(laws, ...)`."""

    def __init__(self, method: Method, *, max_length: int) -> None:
        """Bind the method.

        Args:
            method: The five parts.
            max_length: Longest completion in tokens, for the `constant` reduction.
        """
        self.method = method
        self.max_length = max_length

    def loss_mask(self, completions: Completions) -> LossMask:
        """Which tokens count, and what the step's losses are divided by."""
        mask = self._masked(completions.mask)
        how = self.method.reduction
        denominator = loss_denominator(mask, how=how, max_length=self.max_length)
        return LossMask(mask=mask, denominator=float(denominator))

    def _masked(self, mask: Bool[Tensor, "batch time"]) -> Bool[Tensor, "batch time"]:
        weighting = self.method.weighting
        match weighting.kind:
            case "early_stop":
                return early_stop_mask(mask, weighting.tokens)
            case "window":
                return window_mask(mask, first=weighting.first, last=weighting.last)
            case "skip":
                return skip_mask(mask, weighting.tokens)
            case _:
                return mask

    def __call__(
        self,
        laws: Laws,
        *,
        rollout: Completions,
        loss_mask: LossMask,
        rows: list[int],
        uniforms: Float[Tensor, " tokens"],
    ) -> Float[Tensor, ""]:
        """The share of the step's loss that some rows contribute; sum it over micro-batches.

        Args:
            laws: Both laws at all completion positions of `rows`, row after row.
            rollout: The step's completions.
            loss_mask: Of the whole step.
            rows: Which completions the laws belong to.
            uniforms: One number in [0, 1) per position, for the auxiliary token.
        """
        inside = rollout.mask[rows]
        weights = token_weights(
            loss_mask.mask[rows],
            how=self.method.reduction,
            denominator=loss_mask.denominator,
            max_length=self.max_length,
        )[inside].to(laws.student_hidden.dtype)
        if self.method.support.kind == "full":
            return self._full(laws, weights)
        student, teacher = self._log_probs(laws)
        if self.method.support.kind == "topk":
            return (weights * self._topk(student, teacher)).sum()
        tokens = self._tokens(student, teacher, rollout.tokens[rows][inside], uniforms)
        per_token = self._sampled(student, teacher, tokens)
        if self.method.weighting.kind == "iw_opd":
            weights = weights * self._importance(teacher, rollout, loss_mask, rows)
        return (weights * per_token).sum()

    def _full(self, laws: Laws, weights: Float[Tensor, " tokens"]) -> Float[Tensor, ""]:
        divergence, temperature = self.method.divergence, self.method.temperature
        return linear_divergence(
            student_hidden=laws.student_hidden,
            student_head=laws.student_head,
            teacher_hidden=laws.teacher_hidden,
            teacher_head=laws.teacher_head,
            kind=divergence.kind,
            parameter=divergence_parameter(self.method),
            student_temperature=temperature.student_loss,
            teacher_temperature=temperature.teacher_loss,
            vocab_size=laws.vocab_size,
            token_weights=weights,
        )

    def _log_probs(
        self, laws: Laws
    ) -> tuple[Float[Tensor, "tokens vocab"], Float[Tensor, "tokens vocab"]]:
        temperature = self.method.temperature
        student = log_probs(
            laws.student_hidden @ laws.student_head.T,
            temperature=temperature.student_loss,
            vocab_size=laws.vocab_size,
        )
        with torch.no_grad():
            teacher = log_probs(
                laws.teacher_hidden @ laws.teacher_head.T,
                temperature=temperature.teacher_loss,
                vocab_size=laws.vocab_size,
            )
        return student, teacher

    def _topk(
        self, student: Float[Tensor, "tokens vocab"], teacher: Float[Tensor, "tokens vocab"]
    ) -> Float[Tensor, " tokens"]:
        support = self.method.support
        return topk_kl(
            teacher_log_probs=teacher,
            student_log_probs=student,
            direction=self.method.divergence.kind,
            k=support.k,
            tail=support.tail,
        )

    def _tokens(
        self,
        student: Float[Tensor, "tokens vocab"],
        teacher: Float[Tensor, "tokens vocab"],
        rollout_tokens: Int[Tensor, " tokens"],
        uniforms: Float[Tensor, " tokens"],
    ) -> Int[Tensor, " tokens"]:
        """The rollout's own tokens, or one drawn from the law that the direction asks for."""
        if self.method.support.token == "rollout":
            return rollout_tokens
        law = teacher if self.method.divergence.kind == "forward" else student.detach()
        return inverse_cdf(law.exp(), uniforms)

    def _sampled(
        self,
        student: Float[Tensor, "tokens vocab"],
        teacher: Float[Tensor, "tokens vocab"],
        tokens: Int[Tensor, " tokens"],
    ) -> Float[Tensor, " tokens"]:
        support, direction = self.method.support, self.method.divergence.kind
        log_student = student.gather(-1, tokens[:, None])[:, 0]
        log_teacher = teacher.gather(-1, tokens[:, None])[:, 0]
        loss = sampled_loss(
            log_prob_student=log_student,
            log_prob_teacher=log_teacher,
            direction=direction,
            estimator=support.estimator,
        )
        if support.baseline == "exact":
            with torch.no_grad():
                exact = reverse_kl(teacher_log_probs=teacher, student_log_probs=student)
            loss = loss - exact * (log_student - log_student.detach())
        return loss

    def _importance(
        self,
        teacher: Float[Tensor, "tokens vocab"],
        rollout: Completions,
        loss_mask: LossMask,
        rows: list[int],
    ) -> Float[Tensor, " tokens"]:
        """IW-OPD weights from the rollout-time log-probabilities of the rollout's own tokens."""
        inside = rollout.mask[rows]
        tokens = rollout.tokens[rows][inside]
        advantages = torch.zeros(inside.shape, dtype=teacher.dtype, device=teacher.device)
        log_teacher = teacher.gather(-1, tokens[:, None])[:, 0]
        advantages[inside] = log_teacher - rollout.log_probs[rows][inside].to(teacher.dtype)
        weights = iw_opd_weights(
            advantages, loss_mask.mask[rows], gamma=self.method.weighting.gamma
        )
        return weights[inside]


def divergence_parameter(method: Method) -> float | None:
    """The number that a divergence takes: beta, reverse weight or entropy threshold."""
    divergence = method.divergence
    match divergence.kind:
        case "jsd":
            return divergence.beta
        case "mixed":
            return divergence.reverse_weight
        case "entropy_aware":
            return divergence.threshold
        case _:
            return None
