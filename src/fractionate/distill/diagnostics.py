"""What a step looked like, token by token, whatever loss was trained."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fractionate.config import Temperature
from fractionate.distill.objective import Laws
from fractionate.losses import DivergenceStats, linear_divergence, log_probs
from fractionate.losses.bounds import FORWARD_NORM_SUPREMUM, reverse_norm_bound

_CHUNK = 256  # positions whose whole law is in memory at once for the likelihoods


@dataclass
class StepDiagnostics:
    """Collects token statistics over the micro-batches of one step.

    Attributes:
        temperature: At whose loss temperatures divergences are taken.
        share: Share of positions that is looked at.
        bins: Positions per bin of the profile; none takes no profile.
    """

    temperature: Temperature
    share: float
    bins: int | None = None
    _stats: list[DivergenceStats] = field(default_factory=list)
    _teacher: list[Tensor] = field(default_factory=list)
    _student: list[Tensor] = field(default_factory=list)
    _places: list[Tensor] = field(default_factory=list)

    @torch.no_grad()
    def look(
        self,
        laws: Laws,
        tokens: Int[Tensor, " tokens"],
        uniforms: Float[Tensor, " tokens"],
        places: Int[Tensor, " tokens"],
    ) -> None:
        """Take the statistics of a micro-batch at positions whose uniform number is small.

        Args:
            laws: Both laws at all completion positions of the micro-batch.
            tokens: The rollout's token at each position.
            uniforms: One number in [0, 1) per position.
            places: Number of each position in its completion, from 0.
        """
        chosen = uniforms < self.share
        student, teacher = laws.student_hidden.detach()[chosen], laws.teacher_hidden[chosen]
        _, stats = linear_divergence(
            student_hidden=student,
            student_head=laws.student_head.detach(),
            teacher_hidden=teacher,
            teacher_head=laws.teacher_head,
            kind="forward",
            student_temperature=self.temperature.student_loss,
            teacher_temperature=self.temperature.teacher_loss,
            vocab_size=laws.vocab_size,
            return_stats=True,
        )
        self._stats.append(cast(DivergenceStats, stats))
        self._places.append(places[chosen])
        picked = tokens[chosen]
        vocab = laws.vocab_size
        self._student.append(_log_likelihood(student, laws.student_head, picked, vocab))
        self._teacher.append(_log_likelihood(teacher, laws.teacher_head, picked, vocab))

    def summary(self) -> dict[str, Any]:
        """The token fields of a `StepRecord`; all None where no position was looked at."""
        values = self._values
        if not self._stats or not len(values("forward_kl")):
            return dict.fromkeys(_FIELDS)
        return {
            **{name: float(values(name).mean()) for name in _MEANS},
            "forward_grad_norm_p99": _p99(values("forward_grad_norm")),
            "reverse_grad_norm_p99": _p99(values("reverse_grad_norm")),
            "log_ratio_range_p99": _p99(values("log_ratio_range")),
            "log_ratio_range_max": float(values("log_ratio_range").max()),
            "teacher_log_likelihood": float(torch.cat(self._teacher).double().mean()),
            "student_log_likelihood": float(torch.cat(self._student).double().mean()),
            "bound_violations": sum(count_violations(stats) for stats in self._stats),
            "profile": None if self.bins is None else self._profile(self.bins),
        }

    def _values(self, name: str) -> Tensor:
        return torch.cat([getattr(stats, name) for stats in self._stats]).double()

    def _profile(self, width: int) -> dict[str, Sequence[float]]:
        """Means by bin of completion positions, with the positions that they rest on."""
        index = torch.cat(self._places).div(width, rounding_mode="floor")
        count = torch.bincount(index)
        profile: dict[str, Sequence[float]] = {"tokens": count.double().tolist()}
        for name in _PROFILES:
            total = torch.bincount(index, weights=self._values(name))
            profile[name] = (total / count.clamp(min=1)).tolist()
        return profile


_TOLERANCE = 1e-4
"""Of the bounds, relative and absolute: float32 sums over a vocabulary."""


def count_violations(stats: DivergenceStats) -> int:
    """Positions whose gradients are longer than any two laws allow.

    ||q - p||^2 <= 2, ||q - p||^2 <= min(forward KL, reverse KL) (Pinsker) and ||q (r - R)|| <=
    range(r) / (2 sqrt 2): the per-prefix bounds behind theorem C.1 and corollary C.3 of arXiv
    2609.35259, with sharp constants.
    """
    square = stats.forward_grad_norm.double().square()
    smaller = torch.minimum(stats.forward_kl, stats.reverse_kl).double()
    longest = reverse_norm_bound(stats.log_ratio_range.double())
    pairs = (
        (square, torch.full_like(square, FORWARD_NORM_SUPREMUM**2)),
        (square, smaller),
        (stats.reverse_grad_norm.double(), longest),
    )
    broken = [value > bound * (1 + _TOLERANCE) + _TOLERANCE for value, bound in pairs]
    return int(torch.stack(broken).any(0).sum())


_MEANS = (
    "forward_kl",
    "reverse_kl",
    "teacher_entropy",
    "student_entropy",
    "cross_entropy",
    "forward_grad_norm",
    "reverse_grad_norm",
)
_PROFILES = ("forward_kl", "cross_entropy", "teacher_entropy", "student_entropy")
_FIELDS = (
    *_MEANS,
    "bound_violations",
    "profile",
    "forward_grad_norm_p99",
    "reverse_grad_norm_p99",
    "log_ratio_range_p99",
    "log_ratio_range_max",
    "teacher_log_likelihood",
    "student_log_likelihood",
)


def _p99(values: Tensor) -> float:
    return float(torch.quantile(values, 0.99))


def _log_likelihood(
    hidden: Float[Tensor, "tokens dim"],
    head: Float[Tensor, "vocab dim"],
    tokens: Int[Tensor, " tokens"],
    vocab_size: int,
) -> Float[Tensor, " tokens"]:
    """Log-probability of each token at temperature 1, in nats."""
    parts = [
        log_probs(chunk.float() @ head.float().T, vocab_size=vocab_size).gather(-1, ids[:, None])[
            :, 0
        ]
        for chunk, ids in zip(hidden.split(_CHUNK), tokens.split(_CHUNK), strict=True)
    ]
    return torch.cat(parts) if parts else hidden.new_zeros(0)
