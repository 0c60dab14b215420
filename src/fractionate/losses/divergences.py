"""Token divergences between two next-token laws, one value in nats per position.

Forward means KL(teacher || student), reverse KL(student || teacher). All functions take
log-probabilities `[..., V]` of both laws, keyword-only, and return `[...]`: unreduced, in at least
float32, never negative, and 0 where the laws are equal. Gradients flow to the student's
log-probabilities; detach the teacher's, or score it without gradient.

Infinities: 0 log 0 is 0, so a token impossible for both laws adds nothing. A KL that is infinite
because one law gives no mass where the other has some is a `ValueError` with the position and the
token id: no NaN, and no clamp that would change the objective unseen.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fractionate.losses.checks import Real, not_nan, same_shape, share, vocabulary_axis
from fractionate.losses.log_probs import upcast

_NEVER = -torch.inf


def forward_kl(
    *,
    teacher_log_probs: Float[Tensor, "*batch teacher_vocab"],
    student_log_probs: Float[Tensor, "*batch student_vocab"],
) -> Float[Tensor, "*batch"]:
    """KL(teacher || student) = sum_v p_v log(p_v / q_v), in nats, per position.

    Not a cross-entropy: the teacher's entropy is subtracted, so equal laws give 0. The gradient in
    the student's logits is q - p, its norm at most sqrt(2).

    Raises:
        ValueError: the shapes differ, or the student excludes a token to which the teacher gives
            mass.

    Source: arXiv 2609.35259, section 3.
    """
    teacher, student = _laws(teacher_log_probs, student_log_probs)
    value = relative_entropy(teacher, student)
    refuse_infinite(value, teacher, student, "forward")
    return floor_at_zero(value)


def reverse_kl(
    *,
    teacher_log_probs: Float[Tensor, "*batch teacher_vocab"],
    student_log_probs: Float[Tensor, "*batch student_vocab"],
) -> Float[Tensor, "*batch"]:
    """KL(student || teacher) = sum_v q_v log(q_v / p_v), in nats, per position.

    With r = log(q / p) and R its value, the gradient in the student's logits is q (r - R): it grows
    without bound with the range of r.

    Raises:
        ValueError: the shapes differ, or the teacher excludes a token to which the student gives
            mass.

    Source: arXiv 2609.35259, section 3.
    """
    teacher, student = _laws(teacher_log_probs, student_log_probs)
    value = relative_entropy(student, teacher)
    refuse_infinite(value, teacher, student, "reverse")
    return floor_at_zero(value)


def jsd(
    *,
    teacher_log_probs: Float[Tensor, "*batch teacher_vocab"],
    student_log_probs: Float[Tensor, "*batch student_vocab"],
    beta: Real,
) -> Float[Tensor, "*batch"]:
    """Generalised Jensen-Shannon divergence, in nats, per position.

    `beta KL(teacher || m) + (1 - beta) KL(student || m)` with the mixture of probabilities
    `m = beta teacher + (1 - beta) student`: beta weights the teacher. At most
    `-beta log beta - (1 - beta) log(1 - beta)`, so it is never infinite.

    Limits: `jsd / beta` tends to forward KL as beta tends to 0, `jsd / (1 - beta)` to reverse KL as
    beta tends to 1, and jsd itself is 0 at both ends, gradient included. The scale therefore
    changes with beta; a knob that is continuous from forward to reverse KL is `mixed_kl`.

    Raises:
        ValueError: the shapes differ, or beta lies outside [0, 1].

    Source: arXiv 2306.13649 (GKD), equation 1.
    """
    teacher, student = _laws(teacher_log_probs, student_log_probs)
    return floor_at_zero(jensen_shannon(teacher, student, share("beta", beta)))


def mixed_kl(
    *,
    teacher_log_probs: Float[Tensor, "*batch teacher_vocab"],
    student_log_probs: Float[Tensor, "*batch student_vocab"],
    reverse_weight: Real,
) -> Float[Tensor, "*batch"]:
    """`w KL(student || teacher) + (1 - w) KL(teacher || student)`, w = reverse_weight, in nats.

    Forward KL at 0, reverse KL at 1, linear and continuous between; a term of weight 0 is dropped,
    so that it cannot make the value infinite.

    Raises:
        ValueError: the shapes differ, reverse_weight lies outside [0, 1], or a KL of positive
            weight is infinite.

    Source: arXiv 2605.16826 (there too the weight belongs to the reverse term).
    """
    weight = share("reverse_weight", reverse_weight)
    teacher, student = _laws(teacher_log_probs, student_log_probs)
    value = mixture(teacher, student, weight)
    refuse_infinite(value, teacher, student, "mixed", weight)
    return floor_at_zero(value)


def entropy_aware(
    *,
    teacher_log_probs: Float[Tensor, "*batch teacher_vocab"],
    student_log_probs: Float[Tensor, "*batch student_vocab"],
    threshold: Real,
) -> Float[Tensor, "*batch"]:
    """Reverse KL everywhere, plus forward KL where the teacher is uncertain, in nats.

    `KL(q || p) + [H(p) > threshold] KL(p || q)`: the hard additive gate. At a threshold of at least
    log V it is reverse KL, below 0 the plain sum of both.

    Raises:
        ValueError: the shapes differ, the threshold is NaN, or a KL that takes part is infinite.

    Source: arXiv 2603.07079 (entropy-aware on-policy distillation).
    """
    edge = not_nan("threshold", threshold)
    teacher, student = _laws(teacher_log_probs, student_log_probs)
    value = gated(teacher, student, edge)
    refuse_infinite(value, teacher, student, "entropy_aware", edge)
    return floor_at_zero(value)


def entropy(*, log_probs: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
    """Shannon entropy `-sum_v p_v log p_v` in nats per position; at most log V.

    Raises:
        ValueError: the log-probabilities are a single number.
    """
    vocabulary_axis("log_probs", log_probs)
    values = upcast(log_probs)
    surprise = torch.where(values == _NEVER, 0.0, -values)
    return (values.exp() * surprise).sum(-1)


def cross_entropy(
    *,
    teacher_log_probs: Float[Tensor, "*batch teacher_vocab"],
    student_log_probs: Float[Tensor, "*batch student_vocab"],
) -> Float[Tensor, "*batch"]:
    """`-sum_v p_v log q_v` in nats per position: forward KL plus the teacher's entropy.

    Raises:
        ValueError: the shapes differ, or the value is infinite.
    """
    forward = forward_kl(teacher_log_probs=teacher_log_probs, student_log_probs=student_log_probs)
    return forward + entropy(log_probs=teacher_log_probs)


def relative_entropy(
    law: Float[Tensor, "*batch vocab"],
    other: Float[Tensor, "*batch vocab"],
    where: Bool[Tensor, "*batch"] | None = None,
) -> Float[Tensor, "*batch"]:
    """KL(law || other) from log-probabilities, unchecked and not floored; 0 where not `where`.

    The log-ratio is masked before it is multiplied, so values and gradients stay finite where both
    laws exclude a token. NaN in the input stays NaN.
    """
    possible = law != _NEVER
    if where is not None:
        possible = possible & where.unsqueeze(-1)
    log_ratio = torch.where(possible, law - other, 0.0)
    return (law.exp() * log_ratio).sum(-1)


def jensen_shannon(
    teacher: Float[Tensor, "*batch vocab"], student: Float[Tensor, "*batch vocab"], beta: float
) -> Float[Tensor, "*batch"]:
    """The generalised JSD from log-probabilities, not floored.

    With r = log(q / p), `log m - max(log p, log q) = log1p(b expm1(-|r|))` where b is the weight of
    the smaller one: exact near equality, free of overflow, and finite where one law is 0.
    """
    if beta in {0.0, 1.0}:
        return torch.where(torch.ones_like(student, dtype=torch.bool), 0.0, student).sum(-1)
    in_teacher, in_student = teacher != _NEVER, student != _NEVER
    log_ratio = torch.where(in_teacher | in_student, student - teacher, 0.0)
    smaller = torch.full_like(log_ratio, 1 - beta).masked_fill(log_ratio > 0, beta)
    mixture_over_larger = torch.log1p(smaller * torch.expm1(-log_ratio.abs()))
    from_teacher = torch.where(in_teacher, -mixture_over_larger - log_ratio.relu(), 0.0)
    from_student = torch.where(in_student, -mixture_over_larger - (-log_ratio).relu(), 0.0)
    terms = beta * teacher.exp() * from_teacher + (1 - beta) * student.exp() * from_student
    return terms.sum(-1)


def mixture(
    teacher: Float[Tensor, "*batch vocab"],
    student: Float[Tensor, "*batch vocab"],
    reverse_weight: float,
) -> Float[Tensor, "*batch"]:
    """The linear mix of both KL from log-probabilities, unchecked; a zero weight drops its term."""
    if reverse_weight == 0:
        return relative_entropy(teacher, student)
    if reverse_weight == 1:
        return relative_entropy(student, teacher)
    reverse, forward = relative_entropy(student, teacher), relative_entropy(teacher, student)
    return reverse_weight * reverse + (1 - reverse_weight) * forward


def gated(
    teacher: Float[Tensor, "*batch vocab"], student: Float[Tensor, "*batch vocab"], threshold: float
) -> Float[Tensor, "*batch"]:
    """The entropy-aware sum from log-probabilities, unchecked."""
    gate = entropy(log_probs=teacher) > threshold
    return relative_entropy(student, teacher) + relative_entropy(teacher, student, where=gate)


UNCHECKED: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "forward": lambda teacher, student, _: relative_entropy(teacher, student),
    "reverse": lambda teacher, student, _: relative_entropy(student, teacher),
    "jsd": jensen_shannon,
    "mixed": mixture,
    "entropy_aware": gated,
}
"""(teacher, student, parameter) -> divergence from log-probabilities, by the kind's name."""


def floor_at_zero(value: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Rounding below 0 lifted to 0; the gradient is left as it is."""
    return value + (value.clamp(min=0) - value).detach()


def refuse_infinite(
    value: Float[Tensor, "*batch"],
    teacher: Float[Tensor, "*batch vocab"],
    student: Float[Tensor, "*batch vocab"],
    kind: str,
    parameter: float = 0.0,
    *,
    first_position: int = 0,
) -> None:
    """Nothing, unless a KL that takes part in `kind` is infinite.

    NaN that came in with the numbers goes out with them: only a missing mass is refused.

    Raises:
        ValueError: with the first position (the leading one counted from `first_position`), the
            token id and the mend.
    """
    if kind == "jsd" or bool(torch.isfinite(value).all()):
        return
    forward = _takes_forward(teacher, kind, parameter)
    if not (kind == "forward" or (kind == "mixed" and parameter == 0)):
        _refuse_missing_mass("reverse", student, teacher, ~torch.isnan(student), first_position)
    _refuse_missing_mass("forward", teacher, student, forward.unsqueeze(-1), first_position)


def _takes_forward(teacher: Tensor, kind: str, parameter: float) -> Tensor:
    if kind == "entropy_aware":
        return entropy(log_probs=teacher) > parameter
    takes = kind == "forward" or (kind == "mixed" and parameter < 1)
    return torch.full(teacher.shape[:-1], takes, device=teacher.device)


def _refuse_missing_mass(
    direction: str, law: Tensor, other: Tensor, active: Tensor, first_position: int
) -> None:
    missing = torch.nonzero((law > _NEVER) & (other == _NEVER) & active)
    if not len(missing):
        return
    *position, token = (int(index) for index in missing[0])
    if position:
        position[0] += first_position
    owner, lacking = ("teacher", "student") if direction == "forward" else ("student", "teacher")
    raise ValueError(
        f"{direction} KL is infinite at position {tuple(position)}, token id {token}: the "
        f"{lacking} gives it no mass where the {owner} does. Untruncate the {lacking}'s law, leave "
        "the row out, or use jsd"
    )


def _laws(teacher: Tensor, student: Tensor) -> tuple[Tensor, Tensor]:
    same_shape(teacher, student)
    return upcast(teacher), upcast(student)
