"""The five independent parts of a distillation method, each a union keyed by `kind`.

Formulas and sources: the functions in `fractionate.losses` and `fractionate.rollouts.laws` that
carry the same names.
"""

import math
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from fractionate.config.base import Config, Part

Share = Annotated[float, Field(ge=0.0, le=1.0)]
OpenShare = Annotated[float, Field(gt=0.0, lt=1.0)]

# ---------------------------------------------------------------- whose rollouts


class StudentRollout(Part):
    """On-policy: the student of the current step writes the completions, or an older one.

    Attributes:
        lag: Steps between writing and training; the first steps all train on completions of the
            untrained student.
        stale_cap: With a lag, a completion's loss is weighted by the mean over its tokens of
            min(stale_cap, q / q_old), as in the paper's long-trace arm; none leaves it alone.
    """

    kind: Literal["student"] = "student"
    lag: NonNegativeInt = 0
    stale_cap: PositiveFloat | None = 2.0


class TeacherRollout(Part):
    """Off-policy: the teacher writes the completions.

    Attributes:
        cached: One completion per prompt and visit, made once per seed and shared by all cells of
            that seed; False redraws from the teacher at every step.
    """

    kind: Literal["teacher"] = "teacher"
    cached: bool = True


class SpectrumRollout(Part):
    """A token-level law between teacher (lam -1) and student (+1), extrapolated up to |lam| = 2.

    Attributes:
        lam: Position on the spectrum; 0 is the normalised geometric mean.
        alpha: Plausibility mask of the extrapolation: tokens below alpha times the largest
            probability of the anchor get no bonus.
        clip: Largest log-ratio that counts as bonus, in nats.
    """

    kind: Literal["spectrum"] = "spectrum"
    lam: Annotated[float, Field(ge=-2.0, le=2.0)]
    alpha: OpenShare = 0.2
    clip: PositiveFloat = 2.0 * math.log(3.0)


class CoinRollout(Part):
    """A coin decides who writes: at every token, or once for the whole completion.

    Attributes:
        student_share: Probability of the student.
        per: "token" or "sequence".
    """

    kind: Literal["coin"] = "coin"
    student_share: Share = 0.5
    per: Literal["token", "sequence"] = "token"


class HandoverRollout(Part):
    """The teacher writes the first tokens, the student goes on from there.

    Attributes:
        teacher_tokens: Length of the teacher's prefix, in tokens.
    """

    kind: Literal["handover"] = "handover"
    teacher_tokens: NonNegativeInt


class SkdRollout(Part):
    """Interleaved speculative sampling: the student proposes, the teacher's top-k accepts.

    Attributes:
        top_k: A proposal outside the teacher's `top_k` most likely tokens is redrawn from the
            teacher.
    """

    kind: Literal["skd"] = "skd"
    top_k: PositiveInt = 25


class DatasetRollout(Part):
    """Completions come from the demonstrations of the task."""

    kind: Literal["dataset"] = "dataset"


Rollout = Annotated[
    StudentRollout
    | TeacherRollout
    | SpectrumRollout
    | CoinRollout
    | HandoverRollout
    | SkdRollout
    | DatasetRollout,
    Field(discriminator="kind"),
]


class Temperature(Config):
    """Four temperatures, none implied by the kind of rollout, and the nucleus of the sampler.

    Attributes:
        student_rollout: Temperature at which the student samples.
        teacher_rollout: Temperature at which the teacher samples.
        student_loss: Temperature of the student's law inside the loss.
        teacher_loss: Temperature of the teacher's law inside the loss.
        top_p: Nucleus of the sampler; 1 samples from the whole law.
    """

    student_rollout: PositiveFloat = 1.0
    teacher_rollout: PositiveFloat = 0.5
    student_loss: PositiveFloat = 1.0
    teacher_loss: PositiveFloat = 0.5
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0


# ---------------------------------------------------------------- which divergence


class DivergencePart(Part):
    """A divergence; `parameter` is the one number that some of them take."""

    @property
    def parameter(self) -> float | None:
        """Beta, weight or threshold, as the losses take it."""
        return None


class ForwardDivergence(DivergencePart):
    """Forward KL, KL(teacher || student)."""

    kind: Literal["forward"] = "forward"


class ReverseDivergence(DivergencePart):
    """Reverse KL, KL(student || teacher)."""

    kind: Literal["reverse"] = "reverse"


class JsdDivergence(DivergencePart):
    """Generalised Jensen-Shannon divergence, mixture beta * teacher + (1 - beta) * student."""

    kind: Literal["jsd"] = "jsd"
    beta: OpenShare = 0.5

    @property
    def parameter(self) -> float:
        """The beta."""
        return self.beta


class MixedDivergence(DivergencePart):
    """Linear mix of the two KLs: reverse_weight * reverse + (1 - reverse_weight) * forward."""

    kind: Literal["mixed"] = "mixed"
    reverse_weight: Share = 0.5

    @property
    def parameter(self) -> float:
        """The reverse weight."""
        return self.reverse_weight


class EntropyAwareDivergence(DivergencePart):
    """Reverse KL everywhere, forward KL added where the teacher's entropy exceeds a threshold.

    Attributes:
        threshold: Entropy in nats above which forward KL is added.
    """

    kind: Literal["entropy_aware"] = "entropy_aware"
    threshold: Annotated[float, Field(ge=0.0)]

    @property
    def parameter(self) -> float:
        """The threshold."""
        return self.threshold


Divergence = Annotated[
    ForwardDivergence
    | ReverseDivergence
    | JsdDivergence
    | MixedDivergence
    | EntropyAwareDivergence,
    Field(discriminator="kind"),
]

# ---------------------------------------------------------------- on which support


class FullSupport(Part):
    """The whole vocabulary, exactly."""

    kind: Literal["full"] = "full"


class TopkSupport(Part):
    """The k likeliest tokens: the teacher's under forward KL, the student's under reverse KL.

    Attributes:
        k: Size of the support.
        tail: What becomes of the rest: one bucket, renormalised away, or cut off.
    """

    kind: Literal["topk"] = "topk"
    k: PositiveInt
    tail: Literal["bucket", "renormalise", "truncate"] = "bucket"


class SampledSupport(Part):
    """One token per position.

    Attributes:
        token: "auxiliary" draws it independently of the rollout, from the teacher for forward and
            from the student for reverse KL; "rollout" takes the rollout's own token.
        estimator: Which estimator of the KL the recorded value is; the gradient is always that of
            the named KL in expectation.
        baseline: "exact" subtracts the exact per-position KL from the reverse-KL advantage.
    """

    kind: Literal["sampled"] = "sampled"
    token: Literal["auxiliary", "rollout"] = "auxiliary"
    estimator: Literal["k1", "k2", "k3"] = "k1"
    baseline: Literal["none", "exact"] = "none"


Support = Annotated[FullSupport | TopkSupport | SampledSupport, Field(discriminator="kind")]

# ---------------------------------------------------------------- with which weights


class UniformWeighting(Part):
    """Every completion token counts."""

    kind: Literal["uniform"] = "uniform"


class IwOpdWeighting(Part):
    """Importance weights that favour early tokens (arXiv 2606.22600); the denominator stays."""

    kind: Literal["iw_opd"] = "iw_opd"
    gamma: Annotated[float, Field(ge=0.0)] = 0.5


class EarlyStopWeighting(Part):
    """Roll out and train on the first `tokens` tokens of a completion only (arXiv 2605.27028).

    Attributes:
        tokens: Length kept, in tokens.
        allow_sequence_mean: Consent to `sequence_mean`, under which cutting completions also
            raises the weight of every kept token.
    """

    kind: Literal["early_stop"] = "early_stop"
    tokens: PositiveInt = 100
    allow_sequence_mean: bool = False


class WindowWeighting(Part):
    """Train on the first or the last share of each completion.

    Attributes:
        first: Share kept at the start.
        last: Share kept at the end.
    """

    kind: Literal["window"] = "window"
    first: Share | None = None
    last: Share | None = None

    @model_validator(mode="after")
    def _one_end(self) -> "WindowWeighting":
        if (self.first is None) == (self.last is None):
            raise ValueError("weighting 'window' takes exactly one of 'first' and 'last'")
        return self


class SkipWeighting(Part):
    """Leave the first `tokens` tokens of each completion out of the loss."""

    kind: Literal["skip"] = "skip"
    tokens: PositiveInt = 3


Weighting = Annotated[
    UniformWeighting | IwOpdWeighting | EarlyStopWeighting | WindowWeighting | SkipWeighting,
    Field(discriminator="kind"),
]

Reduction = Literal["sequence_mean", "token_mean", "constant", "sequence_sum"]
