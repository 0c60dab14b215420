"""KL on the k likeliest tokens of one law, with three ways to treat the tail.

With K the support, P = p(K), Q = q(K):
`KL(p||q) = KL_binary(P, Q) + P KL(p|K || q|K) + (1 - P) KL(p|tail || q|tail)`.
`bucket` keeps the first two terms, `renormalise` is KL(p|K || q|K), `truncate` the partial sum.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fractionate.losses.checks import one_of, same_shape, vocabulary_axis
from fractionate.losses.divergences import (
    floor_at_zero,
    forward_kl,
    refuse_infinite,
    relative_entropy,
    reverse_kl,
)
from fractionate.losses.log_probs import upcast

TAILS = ("bucket", "renormalise", "truncate")


def topk_kl(
    *,
    teacher_log_probs: Float[Tensor, "*batch teacher_vocab"],
    student_log_probs: Float[Tensor, "*batch student_vocab"],
    direction: str,
    k: int,
    tail: str,
) -> Float[Tensor, "*batch"]:
    """KL restricted to the k likeliest tokens, in nats per position.

    The support is the teacher's top k for `forward`, KL(teacher || student), and the student's for
    `reverse`. At k = V every tail equals the full KL. Otherwise

    - `bucket`: the tail is one more token. A lower bound of the KL; all tail tokens get a gradient
      of the one sign of P - Q, whatever the sign of their own error.
    - `renormalise`: both laws are conditioned on the support: no pressure on the tail's mass.
    - `truncate`: the sum over the support alone. It can be negative, and is not floored.

    Raises:
        ValueError: shapes that differ, k outside 1..V, an unknown direction or tail, or a law that
            gives no mass to a token of the support (or to the whole tail) where the other does.

    Source: arXiv 2609.35259, section 3; the decomposition is the chain rule.
    """
    one_of("direction", direction, ("forward", "reverse"))
    one_of("tail", tail, TAILS)
    same_shape(teacher_log_probs, student_log_probs)
    forward = direction == "forward"
    teacher, student = upcast(teacher_log_probs), upcast(student_log_probs)
    law, other = (teacher, student) if forward else (student, teacher)
    ids = topk_ids(law, k=k)
    if k == law.shape[-1]:
        full = forward_kl if forward else reverse_kl
        return full(teacher_log_probs=teacher, student_log_probs=student)
    kept, kept_other = law.gather(-1, ids), other.gather(-1, ids)
    truncated = relative_entropy(kept, kept_other)
    outside = torch.ones_like(law, dtype=torch.bool).scatter(-1, ids, value=False)
    _refuse_infinite(truncated, (teacher, student), outside, direction)
    if tail == "truncate":
        return truncated
    if tail == "renormalise":
        return floor_at_zero(relative_entropy(kept.log_softmax(-1), kept_other.log_softmax(-1)))
    bucketed, bucketed_other = (
        torch.cat([of_kept, _log_mass(of_law, outside)], dim=-1)
        for of_law, of_kept in ((law, kept), (other, kept_other))
    )
    value = relative_entropy(bucketed, bucketed_other)
    _refuse_infinite(value, (teacher, student), ~outside, direction)
    return floor_at_zero(value)


def topk_ids(log_probs: Float[Tensor, "*batch vocab"], *, k: int) -> Int[Tensor, "*batch kept"]:
    """Ids of the k likeliest tokens over the whole vocabulary, likeliest first, ties by lowest id.

    Raises:
        ValueError: k outside 1..V, or no vocabulary axis.
    """
    vocabulary_axis("log_probs", log_probs)
    width = log_probs.shape[-1]
    if not 1 <= k <= width:
        raise ValueError(f"k={k} must lie in 1..{width}, the size of the vocabulary")
    return log_probs.detach().sort(dim=-1, descending=True, stable=True).indices[..., :k]


def _log_mass(law: Tensor, outside: Tensor) -> Tensor:
    """Log of the tail's mass, `[..., 1]`; summed, because 1 - P would cancel.

    The tail of an impossible law is -inf with zero gradient.
    """
    empty = (law.isneginf() | ~outside).all(-1, keepdim=True)
    tail = torch.where(outside, law, -torch.inf)
    mass = torch.where(empty, 0.0, tail).logsumexp(-1, keepdim=True)
    return torch.where(empty, -torch.inf, mass)


def _refuse_infinite(
    value: Tensor, laws: tuple[Tensor, Tensor], ignored: Tensor, direction: str
) -> None:
    """Raise where a row is infinite, naming the token by its id in the whole vocabulary."""
    broken = ~torch.isfinite(value.detach())
    if bool(broken.any()):
        ignored = ignored | ~broken.unsqueeze(-1)
        teacher, student = (torch.where(ignored, -torch.inf, law.detach()) for law in laws)
        refuse_infinite(value, teacher, student, direction)
