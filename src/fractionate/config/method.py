"""A method: five parts and the combinations of them that mean something."""

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, model_validator

from fractionate.config.base import Config
from fractionate.config.parts import (
    Divergence,
    ForwardDivergence,
    FullSupport,
    Reduction,
    Rollout,
    StudentRollout,
    Support,
    Temperature,
    UniformWeighting,
    Weighting,
)

Dtype = Literal["float32", "bfloat16"]


class Method(Config):
    """What is trained on and how two next-token laws are compared there.

    Attributes:
        rollout: Whose completions the student trains on.
        temperature: Sampling and loss temperatures.
        divergence: Which divergence of teacher and student law is minimised.
        support: On which tokens of the vocabulary it is evaluated.
        weighting: Which positions count, and how much.
        reduction: How token losses become one number; the denominator is counted after the
            rollout, over the whole optimizer step.
    """

    rollout: Rollout = StudentRollout()
    temperature: Temperature = Temperature()
    divergence: Divergence = ForwardDivergence()
    support: Support = FullSupport()
    weighting: Weighting = UniformWeighting()
    reduction: Reduction = "sequence_mean"

    @model_validator(mode="after")
    def _combination_means_something(self) -> "Method":
        for rule in _RULES:
            rule(self)
        return self


def _lag(method: Method) -> None:
    rollout, support = method.rollout, method.support
    if rollout.kind != "student" or rollout.lag == 0:
        return
    if support.kind == "sampled" and support.token == "rollout":
        raise ValueError(
            f"method.rollout.lag is {rollout.lag}, but support.token 'rollout' takes tokens of the "
            "current student. Set lag: 0, or use support.token 'auxiliary'"
        )


def _sampled_token(method: Method) -> None:
    support, on_policy = method.support, _is_on_policy(method)
    if support.kind != "sampled":
        return
    if support.token == "rollout" and not on_policy:
        raise ValueError(
            f"support.token 'rollout' reuses the rollout's own token, but method.rollout is "
            f"'{method.rollout.label}': its tokens are not drawn from the current student. "
            "Use support.token 'auxiliary', or rollout 'student'"
        )
    if support.token == "rollout" and method.divergence.kind != "reverse":
        raise ValueError(
            "support.token 'rollout' takes student tokens, which estimate the reverse KL only, but "
            f"method.divergence is '{method.divergence.label}'. Use divergence 'reverse', or "
            "support.token 'auxiliary'"
        )
    if support.token == "rollout" and _sampler_differs(method):
        raise ValueError(
            "support.token 'rollout' needs the sampler and the loss to see the same student law: "
            "set temperature.student_rollout equal to temperature.student_loss and top_p to 1"
        )
    if support.baseline == "exact" and method.divergence.kind != "reverse":
        raise ValueError(
            "support.baseline 'exact' is the baseline of the reverse-KL advantage, but "
            f"method.divergence is '{method.divergence.label}'. Use baseline 'none'"
        )
    if support.estimator == "k2" and support.baseline == "exact":
        raise ValueError(
            "support.baseline 'exact' belongs to the k1 advantage; support.estimator 'k2' has none"
        )


def _support_of_divergence(method: Method) -> None:
    if method.support.kind != "full" and method.divergence.kind not in ("forward", "reverse"):
        raise ValueError(
            f"method.support '{method.support.label}' is defined for divergence 'forward' and "
            f"'reverse', not for '{method.divergence.label}'. Use support 'full'"
        )


def _importance_weights(method: Method) -> None:
    if method.weighting.kind != "iw_opd":
        return
    if not _is_on_policy(method):
        raise ValueError(
            f"method.weighting 'iw_opd' weighs the student's own tokens, but method.rollout is "
            f"'{method.rollout.label}'. Use rollout 'student', or another weighting"
        )
    if not (method.support.kind == "sampled" and method.support.token == "rollout"):
        raise ValueError(
            "method.weighting 'iw_opd' needs the rollout's own tokens in the loss, but "
            f"method.support is '{method.support.label}'. Use support "
            "{kind: sampled, token: rollout}"
        )


def _early_stop(method: Method) -> None:
    weighting = method.weighting
    if weighting.kind != "early_stop" or weighting.allow_sequence_mean:
        return
    if method.reduction == "sequence_mean":
        raise ValueError(
            "method.weighting 'early_stop' shortens completions, which under method.reduction "
            "'sequence_mean' also raises the weight of every kept token. Use reduction "
            "'token_mean' or 'sequence_sum', or set weighting.allow_sequence_mean: true"
        )


_RULES: tuple[Callable[[Method], None], ...] = (
    _lag,
    _sampled_token,
    _support_of_divergence,
    _importance_weights,
    _early_stop,
)


def _is_on_policy(method: Method) -> bool:
    return method.rollout.kind == "student"


def _sampler_differs(method: Method) -> bool:
    temperature = method.temperature
    return temperature.student_rollout != temperature.student_loss or temperature.top_p != 1.0


class Optimizer(Config):
    """AdamW with a linear warm-up to a constant rate, and the precision it works in.

    Attributes:
        lr: Learning rate after warm-up.
        warmup: Linear warm-up, in steps; step 0 has rate 0, as in the Hugging Face schedule.
        clip: Largest global gradient norm, or none.
        betas: Decay of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled decay per step, times the rate.
        param_dtype: In which the weights are stored and updated.
        master_weights: "float32" keeps a float32 copy that takes the updates; the stored weights
            are its rounding.
        state_dtype: Of the two moments; it follows the tensor that is updated.
        compute_dtype: In which forward and backward run; "float32" computes exactly on the stored
            (rounded) weights.
        logits_dtype: Of the matrix products behind the loss's logits: "bfloat16" rounds operands
            and products, as transformers does with a bfloat16 model; sums and softmax stay
            float32. It concerns the whole-vocabulary support.
    """

    lr: PositiveFloat = 1e-5
    warmup: NonNegativeInt = 10
    clip: PositiveFloat | None = 1.0
    betas: tuple[
        Annotated[float, Field(ge=0.0, lt=1.0)], Annotated[float, Field(ge=0.0, lt=1.0)]
    ] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    param_dtype: Dtype = "bfloat16"
    master_weights: Literal["none", "float32"] = "none"
    state_dtype: Dtype = "bfloat16"
    compute_dtype: Dtype = "bfloat16"
    logits_dtype: Dtype = "float32"

    @model_validator(mode="after")
    def _precision_is_possible(self) -> "Optimizer":
        updated = "float32" if self.master_weights == "float32" else self.param_dtype
        if self.master_weights == "float32" and self.param_dtype == "float32":
            raise ValueError(
                "optimizer.master_weights 'float32' beside optimizer.param_dtype 'float32' is a "
                "second copy of the same numbers. Use master_weights 'none'"
            )
        if self.state_dtype != updated:
            raise ValueError(
                f"optimizer.state_dtype '{self.state_dtype}' does not fit: with param_dtype "
                f"'{self.param_dtype}' and master_weights '{self.master_weights}' the update "
                f"happens in {updated}, and so do its moments. Set state_dtype: {updated}"
            )
        if self.logits_dtype == "bfloat16" and self.compute_dtype != "bfloat16":
            raise ValueError(
                "optimizer.logits_dtype 'bfloat16' would round the logits of a float32 forward "
                "pass. Set logits_dtype: float32, or compute_dtype: bfloat16"
            )
        if self.param_dtype == "float32" and self.compute_dtype != "float32":
            raise ValueError(
                "optimizer.compute_dtype 'bfloat16' with param_dtype 'float32' would round the "
                "weights at every use. Set compute_dtype: float32, or param_dtype: bfloat16"
            )
        return self
