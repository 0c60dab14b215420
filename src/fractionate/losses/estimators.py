"""KL from one sampled token per position: what is estimated, and what is descended.

With d = log q(v) - log p(v) at the sampled token v (q student, p teacher), the estimators are

| want | tokens from | k1 | k2 | k3 |
|---|---|---|---|---|
| reverse KL(q || p) | student | d | d^2 / 2 | exp(-d) - 1 + d |
| forward KL(p || q) | teacher | -d | d^2 / 2 | exp(d) - 1 - d |

k1 and k3 are unbiased, k2 is not; k3 is never negative but has a heavy tail where the sampled law
gives a token far less mass than the other one.

Values and gradients are different things: autograd through an unbiased value can descend another
KL (k3 on student tokens descends forward KL) or nothing (k1 on student tokens). `sampled_loss`
therefore takes the value from the estimator and the gradient from the named KL. The raw forms,
`estimate` (autograd through the value) and `as_reward` (the value as a cost of the sampled token),
stand beside it under their own names, with what each descends.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from fractionate.losses.checks import equal_shapes, one_of
from fractionate.losses.log_probs import upcast

ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda ratio: ratio,
    "k2": lambda ratio: ratio.square() / 2,
    "k3": lambda ratio: torch.expm1(-ratio) + ratio,
}
"""Estimator of a KL from the log-ratio (sampled law over the other one) of a sampled token."""


def sampled_loss(
    *,
    log_prob_student: Float[Tensor, "*batch"],
    log_prob_teacher: Float[Tensor, "*teacher_batch"],
    direction: str,
    estimator: str,
    baseline: Float[Tensor, "*baseline_batch"] | None = None,
) -> Float[Tensor, "*batch"]:
    """Loss of one sampled token per position: value of the estimator, gradient of the named KL.

    Forward takes tokens drawn from the teacher, and its gradient is that of `-log q(v)`; reverse
    takes tokens drawn from the student, with the gradient of `(d - baseline) log q(v)`, d detached.
    Both gradients are unbiased for the KL named by `direction`, whichever estimator gives the value
    (straight-through).

    Args:
        log_prob_student: log q of the sampled tokens, nats, at the loss temperature.
        log_prob_teacher: log p of the same tokens; no gradient flows here.
        direction: `forward` or `reverse`.
        estimator: `k1`, `k2` or `k3` of that KL, for the value; k2 is biased.
        baseline: for `reverse`, any number per position that does not depend on the sampled token;
            the exact reverse KL there is vOPD's. It lowers the variance of the gradient and leaves
            its mean and the value alone.

    Returns:
        Nats per position, unreduced.

    Raises:
        ValueError: unknown direction or estimator, a baseline for `forward`, shapes that differ, or
            a sampled token that one of the laws excludes.

    Source: arXiv 2609.35259, appendix A.2; gradients as in arXiv 2506.09477 and 2510.01555;
    baseline of arXiv 2605.07865.
    """
    value = estimate(
        log_prob_student=log_prob_student,
        log_prob_teacher=log_prob_teacher,
        direction=direction,
        estimator=estimator,
    )
    student = upcast(log_prob_student)
    if direction == "forward":
        if baseline is not None:
            raise ValueError("direction='forward' has no use for a baseline: leave it out")
        surrogate = -student
    else:
        if baseline is not None:
            equal_shapes(log_prob_student=student, baseline=baseline)
        cost = student - upcast(log_prob_teacher)
        surrogate = as_reward(cost if baseline is None else cost - baseline, student)
    return value.detach() + (surrogate - surrogate.detach())


def estimate(
    *,
    log_prob_student: Float[Tensor, "*batch"],
    log_prob_teacher: Float[Tensor, "*teacher_batch"],
    direction: str,
    estimator: str,
) -> Float[Tensor, "*batch"]:
    """k1, k2 or k3 of the named KL, differentiable in the student: the raw "as loss" form.

    Expected autograd gradients. `reverse` on student tokens: k1 gives 0, k2 the reverse gradient,
    k3 the *forward* gradient. `forward` on teacher tokens: k1 and k3 give the forward gradient, k2
    neither. Use `sampled_loss` to train.

    Raises:
        ValueError: unknown direction or estimator, shapes that differ, or a sampled token that one
            law excludes.
    """
    one_of("direction", direction, ("forward", "reverse"))
    one_of("estimator", estimator, ESTIMATORS)
    student, teacher = upcast(log_prob_student), upcast(log_prob_teacher).detach()
    _refuse_excluded(student, teacher)
    ratio = student - teacher if direction == "reverse" else teacher - student
    return ESTIMATORS[estimator](ratio)


def as_reward(
    cost: Float[Tensor, "*batch"], log_prob_student: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """`cost.detach() * log q(v)`: the raw "in reward" (score-function) form.

    On student tokens k1 as cost gives the reverse gradient in expectation, k2 neither gradient, k3
    the reverse minus the forward gradient. On teacher tokens no cost gives a KL's gradient.
    """
    return cost.detach() * log_prob_student


def forward_kl_from_student_tokens(
    *,
    log_prob_student: Float[Tensor, "*batch"],
    log_prob_teacher: Float[Tensor, "*teacher_batch"],
    estimator: str,
) -> Float[Tensor, "*batch"]:
    """Value of forward KL on tokens drawn from the *student*, by importance weighting, detached.

    `k1`: -d exp(-d); `k3`: -d exp(-d) - exp(-d) + 1, never negative. Both unbiased, heavy-tailed.

    Raises:
        ValueError: any other estimator (k2 has no such value), shapes that differ, or a token that
            one law excludes.
    """
    one_of("estimator", estimator, ("k1", "k3"))
    student, teacher = upcast(log_prob_student).detach(), upcast(log_prob_teacher).detach()
    _refuse_excluded(student, teacher)
    ratio = teacher - student
    weighted = ratio * ratio.exp()
    return weighted if estimator == "k1" else weighted - torch.expm1(ratio)


def vopd_advantage(
    *,
    log_prob_student: Float[Tensor, "*batch"],
    log_prob_teacher: Float[Tensor, "*batch"],
    reverse_kl: Float[Tensor, "*batch"],
) -> Float[Tensor, "*batch"]:
    """-(d - R): the advantage of sampled reverse KL with its exact value as baseline, detached.

    Its mean under the student is 0. `reverse_kl` is R at the same positions, in nats, exact or on
    the student's renormalised top k (any token-independent baseline is unbiased).

    Source: arXiv 2605.07865 (vOPD).
    """
    cost = upcast(log_prob_student).detach() - upcast(log_prob_teacher).detach()
    return reverse_kl.detach() - cost


def _refuse_excluded(student: Tensor, teacher: Tensor) -> None:
    equal_shapes(log_prob_student=student, log_prob_teacher=teacher)
    excluded = (student == -torch.inf) | (teacher == -torch.inf)
    if bool(excluded.any()):
        position = tuple(int(index) for index in torch.nonzero(excluded)[0])
        name = "student" if bool(student[position] == -torch.inf) else "teacher"
        raise ValueError(
            f"the sampled token at position {position} has no mass under the {name}: the estimate "
            "is infinite. Pass valid positions only, with laws that are not truncated"
        )
