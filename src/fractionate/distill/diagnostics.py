"""What a step looked like, token by token, whatever loss was trained."""

from dataclasses import dataclass, field
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fractionate.config import Temperature
from fractionate.distill.objective import Laws
from fractionate.losses import DivergenceStats, linear_divergence, log_probs

_CHUNK = 256  # positions whose whole law is in memory at once for the likelihoods


@dataclass
class StepDiagnostics:
    """Collects token statistics over the micro-batches of one step.

    Attributes:
        temperature: At whose loss temperatures divergences are taken.
        share: Share of positions that is looked at.
    """

    temperature: Temperature
    share: float
    _stats: list[DivergenceStats] = field(default_factory=list)
    _teacher: list[Tensor] = field(default_factory=list)
    _student: list[Tensor] = field(default_factory=list)

    @torch.no_grad()
    def look(
        self,
        laws: Laws,
        tokens: Int[Tensor, " tokens"],
        uniforms: Float[Tensor, " tokens"],
    ) -> None:
        """Take the statistics of a micro-batch at positions whose uniform number is small."""
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
        picked = tokens[chosen]
        vocab = laws.vocab_size
        self._student.append(_log_likelihood(student, laws.student_head, picked, vocab))
        self._teacher.append(_log_likelihood(teacher, laws.teacher_head, picked, vocab))

    def summary(self) -> dict[str, float | None]:
        """The token fields of a `StepRecord`; all None where no position was looked at."""

        def values(name: str) -> Tensor:
            return torch.cat([getattr(stats, name) for stats in self._stats]).double()

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
        }


_MEANS = (
    "forward_kl",
    "reverse_kl",
    "teacher_entropy",
    "student_entropy",
    "cross_entropy",
    "forward_grad_norm",
    "reverse_grad_norm",
)
_FIELDS = (
    *_MEANS,
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
