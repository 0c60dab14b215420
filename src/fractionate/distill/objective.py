"""The one place where the parts of a method meet: support x divergence x weighting x reduction."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fractionate.config import IwOpdWeighting, Method, SampledSupport, TopkSupport
from fractionate.distill.staleness import Staleness, staleness
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
        product_dtype: In which hidden states meet heads in the loss; none is that of the logits.
    """

    student_hidden: Float[Tensor, "tokens student_dim"]
    student_head: Float[Tensor, "student_vocab student_dim"]
    teacher_hidden: Float[Tensor, "tokens teacher_dim"]
    teacher_head: Float[Tensor, "teacher_vocab teacher_dim"]
    vocab_size: int
    product_dtype: torch.dtype | None = None


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


@dataclass(frozen=True)
class Share:
    """What some rows contribute to a step: their laws, tokens and weights, row after row.

    Attributes:
        laws: Both laws at all completion positions of the rows.
        rollout: Those rows of the step's completions.
        mask: Which of their tokens are in the loss.
        weights: Weight of every completion position, denominator included; 0 outside the loss.
        uniforms: One number in [0, 1) per completion position, for the auxiliary token.
    """

    laws: Laws
    rollout: Completions
    mask: Bool[Tensor, "rows time"]
    weights: Float[Tensor, " tokens"]
    uniforms: Float[Tensor, " tokens"]

    @property
    def tokens(self) -> Int[Tensor, " tokens"]:
        """The rollout's own tokens."""
        return self.rollout.tokens[self.rollout.mask]


class Objective:
    """A method as a function of two laws on a rollout."""

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
        mask = _masked(self.method, completions.mask)
        how = self.method.reduction
        denominator = loss_denominator(mask, how=how, max_length=self.max_length)
        return LossMask(mask=mask, denominator=float(denominator))

    def __call__(
        self,
        laws: Laws,
        *,
        rollout: Completions,
        loss_mask: LossMask,
        rows: Sequence[int],
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
        part = rollout.rows(rows)
        mask = loss_mask.mask[list(rows), : part.tokens.shape[1]]
        weights = token_weights(
            mask,
            how=self.method.reduction,
            denominator=loss_mask.denominator,
            max_length=self.max_length,
        )[part.mask]
        weights = weights.to(loss_dtype(laws))
        stale = self.staleness(laws, rollout, loss_mask, rows)
        if stale is not None and stale.weights is not None:
            weights = weights * stale.weights.to(weights.dtype)[part.mask.nonzero()[:, 0]]
        share = Share(laws, part, mask, weights, uniforms)
        return SUPPORTS[self.method.support.kind](self.method, share)

    def staleness(
        self, laws: Laws, rollout: Completions, loss_mask: LossMask, rows: Sequence[int]
    ) -> Staleness | None:
        """How old some completions are; none where the present student wrote them.

        Args:
            laws: Both laws at all completion positions of `rows`.
            rollout: The step's completions.
            loss_mask: Of the whole step.
            rows: Which completions.
        """
        policy = self.method.rollout
        if policy.kind != "student" or policy.lag == 0:
            return None
        part = rollout.rows(rows)
        dtype = loss_dtype(laws)
        head = laws.student_head[: laws.vocab_size].detach().to(dtype)
        return staleness(
            self.method.temperature,
            logits=laws.student_hidden.detach().to(dtype) @ head.T,
            rollout=part,
            mask=loss_mask.mask[list(rows), : part.tokens.shape[1]],
            cap=policy.stale_cap,
        )


def loss_dtype(laws: Laws) -> torch.dtype:
    """In which logits, weights and losses are formed: at least float32."""
    return torch.promote_types(laws.student_hidden.dtype, torch.float32)


def _masked(method: Method, mask: Bool[Tensor, "batch time"]) -> Bool[Tensor, "batch time"]:
    """The weightings that are masks: they leave numerator and denominator."""
    weighting = method.weighting
    match weighting.kind:
        case "early_stop":
            return early_stop_mask(mask, weighting.tokens)
        case "window":
            return window_mask(mask, first=weighting.first, last=weighting.last)
        case "skip":
            return skip_mask(mask, weighting.tokens)
        case _:
            return mask


# ---------------------------------------------------------------- on which support


def _full(method: Method, share: Share) -> Float[Tensor, ""]:
    laws, temperature = share.laws, method.temperature
    return cast(
        Tensor,
        linear_divergence(
            student_hidden=laws.student_hidden,
            student_head=laws.student_head,
            teacher_hidden=laws.teacher_hidden,
            teacher_head=laws.teacher_head,
            kind=method.divergence.kind,
            parameter=method.divergence.parameter,
            student_temperature=temperature.student_loss,
            teacher_temperature=temperature.teacher_loss,
            vocab_size=laws.vocab_size,
            token_weights=share.weights,
            gemm_dtype=laws.product_dtype,
        ),
    )


def _topk(method: Method, share: Share) -> Float[Tensor, ""]:
    support = cast(TopkSupport, method.support)
    student, teacher = _log_probs(method, share.laws)
    per_token = topk_kl(
        teacher_log_probs=teacher,
        student_log_probs=student,
        direction=method.divergence.kind,
        k=support.k,
        tail=support.tail,
    )
    return (share.weights * per_token).sum()


def _sampled(method: Method, share: Share) -> Float[Tensor, ""]:
    support = cast(SampledSupport, method.support)
    student, teacher = _log_probs(method, share.laws)
    tokens = share.tokens
    if support.token == "auxiliary":
        law = teacher if method.divergence.kind == "forward" else student.detach()
        tokens = inverse_cdf(law.exp(), share.uniforms)
    baseline = None
    if support.baseline == "exact":
        with torch.no_grad():
            baseline = reverse_kl(teacher_log_probs=teacher, student_log_probs=student)
    log_teacher = teacher.gather(-1, tokens[:, None])[:, 0]
    per_token = sampled_loss(
        log_prob_student=student.gather(-1, tokens[:, None])[:, 0],
        log_prob_teacher=log_teacher,
        direction=method.divergence.kind,
        estimator=support.estimator,
        baseline=baseline,
    )
    weights = share.weights
    if method.weighting.kind == "iw_opd":
        weights = weights * _importance(method.weighting, share, log_teacher)
    return (weights * per_token).sum()


SUPPORTS: Mapping[str, Callable[[Method, Share], Tensor]] = {
    "full": _full,
    "topk": _topk,
    "sampled": _sampled,
}


def _log_probs(
    method: Method, laws: Laws
) -> tuple[Float[Tensor, "tokens vocab"], Float[Tensor, "tokens vocab"]]:
    """Both laws of a micro-batch in full, at the loss temperatures."""
    temperature = method.temperature
    dtype = loss_dtype(laws)  # logits are formed as in the fused loss, not in the hidden dtype
    student = log_probs(
        laws.student_hidden.to(dtype) @ laws.student_head.to(dtype).T,
        temperature=temperature.student_loss,
        vocab_size=laws.vocab_size,
    )
    with torch.no_grad():
        teacher = log_probs(
            laws.teacher_hidden.to(dtype) @ laws.teacher_head.to(dtype).T,
            temperature=temperature.teacher_loss,
            vocab_size=laws.vocab_size,
        )
    return student, teacher


def _importance(
    weighting: IwOpdWeighting, share: Share, log_teacher: Float[Tensor, " tokens"]
) -> Float[Tensor, " tokens"]:
    """IW-OPD weights from the rollout-time log-probabilities of the rollout's own tokens."""
    inside = share.rollout.mask
    advantages = torch.zeros(inside.shape, dtype=log_teacher.dtype, device=log_teacher.device)
    behaviour = share.rollout.log_probs[inside].to(log_teacher.dtype)
    advantages[inside] = log_teacher - behaviour
    return iw_opd_weights(advantages, share.mask, gamma=weighting.gamma)[inside]
