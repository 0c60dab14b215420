"""The next-token law of each rollout policy, as pure functions of log-probabilities.

Every function takes `student_log_probs` and `teacher_log_probs` of one prefix, already at their
sampling temperatures, and returns normalised log-probabilities of the same shape. Natural logs.
The student's and the teacher's own rollouts need no function: the law is the model's.
"""

import math
from typing import Final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fractionate.losses.checks import equal_shapes, positive
from fractionate.losses.log_probs import upcast

DEFAULT_CLIP: Final = 2.0 * math.log(3.0)


def spectrum_log_probs(
    *,
    student_log_probs: Float[Tensor, "*batch vocab"],
    teacher_log_probs: Float[Tensor, "*teacher_batch teacher_vocab"],
    lam: float | int,
    alpha: float | int = 0.2,
    clip: float | int = DEFAULT_CLIP,
) -> Float[Tensor, "*batch vocab"]:
    """The spectrum between teacher (lam = -1) and student (lam = 1), and beyond.

    With s, t the two log-probabilities (arXiv 2609.35259, section 5.2 and D.5):

        |lam| <= 1:  score = (1 + lam) / 2 * s + (1 - lam) / 2 * t
        lam > 1:     score = s + (lam - 1) / 2 * [s >= max s + log alpha] * clip(s - t, 0, clip)
        lam < -1:    the same with student and teacher exchanged and -lam for lam

    then softmax. 0 is the normalised geometric mean; continuous at both ends. The mask gates only
    the bonus: a token outside it keeps its anchor odds. The odds of two tokens change by a factor
    of at most exp(clip * (|lam| - 1) / 2), which is 3 at |lam| = 2 with the default clip.

    Args:
        student_log_probs: s.
        teacher_log_probs: t.
        lam: Position, in [-2, 2]. A coefficient of 0 drops its term, whatever it holds.
        alpha: Tokens below alpha times the anchor's largest probability get no bonus; in [0, 1),
            and 0 masks nothing.
        clip: Largest log-ratio that counts as bonus, in nats; above 0.

    Returns:
        Log-probabilities in at least float32.

    Raises:
        ValueError: |lam| > 2, alpha or clip out of range, laws of different shapes, or no token is
            possible under both models where both count.
    """
    if not abs(lam) <= 2.0:
        raise ValueError(f"lam is {lam}: the spectrum is defined from -2 to 2")
    if not 0 <= alpha < 1:
        raise ValueError(f"alpha is {alpha}: the plausibility mask takes 0 (no mask) up to below 1")
    positive("clip", clip)
    equal_shapes(student_log_probs=student_log_probs, teacher_log_probs=teacher_log_probs)
    student_log_probs, teacher_log_probs = upcast(student_log_probs), upcast(teacher_log_probs)
    if lam >= 1.0:
        anchor, other = student_log_probs, teacher_log_probs
    elif lam <= -1.0:
        anchor, other = teacher_log_probs, student_log_probs
    else:
        score = (1 + lam) / 2 * student_log_probs + (1 - lam) / 2 * teacher_log_probs
        if bool((score == -torch.inf).all(-1).any()):
            raise ValueError(
                "student and teacher share no possible token at some prefix: their geometric mean "
                "is no law. Use lam -1 or 1, or a law without zero probabilities"
            )
        return score.log_softmax(-1)
    if abs(lam) == 1.0:
        return anchor.log_softmax(-1)
    bonus = _bonus(anchor, other, alpha, clip)
    return (anchor + (abs(lam) - 1) / 2 * bonus).log_softmax(-1)


def _bonus(anchor: Tensor, other: Tensor, alpha: float | int, clip: float | int) -> Tensor:
    """The log-ratio that counts, on the plausible tokens; 0 on those that the anchor excludes."""
    edge = math.log(alpha) if alpha > 0 else -math.inf
    plausible = (anchor >= anchor.amax(-1, keepdim=True) + edge) & (anchor > -math.inf)
    return torch.where(plausible, anchor - other, 0.0).clamp(0.0, clip)


def coin_token_log_probs(
    *,
    student_log_probs: Float[Tensor, "*batch vocab"],
    teacher_log_probs: Float[Tensor, "*batch vocab"],
    student_share: float,
) -> Float[Tensor, "*batch vocab"]:
    """A coin at every token: log(a * q + (1 - a) * p) with a the student's share.

    MiniLLM (arXiv 2306.08543) mixes so, with a share of 0.2 for the teacher.
    """
    student, teacher = _log_shares(student_share)
    return torch.logaddexp(student + student_log_probs, teacher + teacher_log_probs)


def coin_sequence_log_probs(
    *,
    student_log_probs: Float[Tensor, "*batch vocab"],
    teacher_log_probs: Float[Tensor, "*batch vocab"],
    student_share: float,
    student_prefix_log_prob: Float[Tensor, "*batch"],
    teacher_prefix_log_prob: Float[Tensor, "*batch"],
) -> Float[Tensor, "*batch vocab"]:
    """One coin per completion (GKD, arXiv 2306.13649), as a law of the next token.

    The prefix tells who probably writes: w * q + (1 - w) * p with the posterior weight
    w = a * Q(prefix) / (a * Q(prefix) + (1 - a) * P(prefix)). Where the coin is recorded, the law
    is simply the chosen model's.

    Args:
        student_log_probs: log q of the next token.
        teacher_log_probs: log p of the next token.
        student_share: a.
        student_prefix_log_prob: log Q, summed over the completion so far.
        teacher_prefix_log_prob: log P, summed over the completion so far.
    """
    prior_student, prior_teacher = _log_shares(student_share)
    joint = torch.stack(
        [prior_student + student_prefix_log_prob, prior_teacher + teacher_prefix_log_prob], -1
    )
    student, teacher = joint.log_softmax(-1).unsqueeze(-2).unbind(-1)
    return torch.logaddexp(student + student_log_probs, teacher + teacher_log_probs)


def teacher_top_k(
    teacher_log_probs: Float[Tensor, "*batch vocab"], top_k: int
) -> Bool[Tensor, "*batch vocab"]:
    """True on the teacher's `top_k` likeliest tokens, ties by lowest id.

    Raises:
        ValueError: `top_k` is larger than the vocabulary.
    """
    if top_k > teacher_log_probs.shape[-1]:
        raise ValueError(
            f"skd.top_k is {top_k}, the vocabulary has {teacher_log_probs.shape[-1]} tokens"
        )
    smallest = teacher_log_probs.topk(top_k, dim=-1).values[..., -1:]
    above, tied = teacher_log_probs > smallest, teacher_log_probs == smallest
    room = top_k - above.sum(-1, keepdim=True)
    return above | (tied & (tied.cumsum(-1) <= room))


def skd_log_probs(
    *,
    student_log_probs: Float[Tensor, "*batch vocab"],
    teacher_log_probs: Float[Tensor, "*batch vocab"],
    top_k: int,
) -> Float[Tensor, "*batch vocab"]:
    """Interleaved speculative sampling (arXiv 2410.11325): q_v [v in K] + (1 - q(K)) p_v.

    The student proposes; a proposal outside the teacher's top-k set K is redrawn from the teacher.
    """
    accepted = teacher_top_k(teacher_log_probs, top_k)
    return accepted_log_probs(
        student_log_probs=student_log_probs, teacher_log_probs=teacher_log_probs, accepted=accepted
    )


def accepted_log_probs(
    *,
    student_log_probs: Float[Tensor, "*batch vocab"],
    teacher_log_probs: Float[Tensor, "*batch vocab"],
    accepted: Bool[Tensor, "*batch vocab"],
) -> Float[Tensor, "*batch vocab"]:
    """q_v [v in K] + (1 - q(K)) p_v for any acceptance set K."""
    proposed = student_log_probs.masked_fill(~accepted, -torch.inf)
    refused = student_log_probs.masked_fill(accepted, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.logaddexp(proposed, refused + teacher_log_probs)


def nucleus_log_probs(
    log_probs: Float[Tensor, "*batch vocab"], *, top_p: float | int
) -> Float[Tensor, "*batch vocab"]:
    """The nucleus, renormalised: -inf outside.

    The nucleus is the smallest set of likeliest tokens whose mass reaches `top_p`, the crossing
    token included; ties by lowest id. `top_p` = 1 leaves the law alone.

    Raises:
        ValueError: `top_p` is not in (0, 1].
    """
    if not 0.0 < top_p <= 1.0:
        raise ValueError(f"top_p is {top_p}: a nucleus has a mass above 0 and at most 1")
    if top_p == 1.0:
        return log_probs
    ordered, order = log_probs.sort(dim=-1, descending=True, stable=True)
    mass = ordered.double().exp()
    beyond = mass.cumsum(-1) - mass >= top_p
    beyond[..., 0] = False
    outside = torch.zeros_like(beyond).scatter(-1, order, beyond)
    return log_probs.masked_fill(outside, -torch.inf).log_softmax(-1)


def _log_shares(student_share: float) -> tuple[float, float]:
    if not 0.0 <= student_share <= 1.0:
        raise ValueError(f"coin.student_share is {student_share}: a share lies between 0 and 1")
    student = math.log(student_share) if student_share > 0 else -math.inf
    teacher = math.log1p(-student_share) if student_share < 1 else -math.inf
    return student, teacher
