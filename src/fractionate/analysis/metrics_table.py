"""The names, units and directions of everything that a results table can hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Unit = Literal["share", "nats", "tokens", "count", "norm", "FLOP", "seconds"]


@dataclass(frozen=True)
class Metric:
    """What one value of a results table means.

    Attributes:
        label: Short text for axes and table heads.
        unit: Of the stored value; shares lie in 0..1 and are shown in percent.
        higher_is_better: None where neither direction is good by itself.
        description: One sentence for the report's glossary.
    """

    label: str
    unit: Unit
    higher_is_better: bool | None
    description: str


METRICS: Mapping[str, Metric] = {
    "accuracy": Metric(
        "accuracy", "share", True, "Right answers, one sample per item; unanswered counts as wrong."
    ),
    "completion_rate": Metric(
        "finished", "share", True, "Completions that ended before the length limit."
    ),
    "parse_rate": Metric("parsed", "share", True, "Completions with an answer that can be read."),
    "mean_length": Metric("length", "tokens", None, "Mean completion length."),
    "entropy": Metric(
        "entropy", "nats", None, "Mean entropy of the sampled model at temperature 1."
    ),
    "skills": Metric(
        "skills", "share", True, "Prior skills: unweighted mean accuracy over skills."
    ),
    "skills_drop": Metric(
        "forgetting", "share", False, "Skills of the untrained student minus skills after training."
    ),
    "skills_chance_corrected": Metric(
        "skills above chance", "share", True, "Mean over skills of (a - chance) / (1 - chance)."
    ),
    "skills_relative_drop": Metric(
        "forgetting, relative", "share", False, "Drop of the mean, over the mean of the base."
    ),
    "skills_mean_relative_drop": Metric(
        "forgetting, mean relative", "share", False, "Mean over skills of drop over base."
    ),
    "skills_loss_only": Metric(
        "forgetting, losses only", "share", False, "Mean over skills of the drops, gains being 0."
    ),
    "ood": Metric(
        "benchmarks", "share", True, "Unweighted mean over the benchmarks outside the task."
    ),
    "ood_drop": Metric(
        "forgetting", "share", False, "Benchmarks of the untrained student minus after training."
    ),
    "ood_relative_drop": Metric(
        "forgetting, relative", "share", False, "Drop of the mean, over the base's mean."
    ),
    "ood_mean_relative_drop": Metric(
        "forgetting, mean relative", "share", False, "Mean over benchmarks of drop over base."
    ),
    "ood_loss_only": Metric(
        "forgetting, losses only", "share", False, "Mean of the drops, gains being 0."
    ),
    "ood_parse_rate": Metric(
        "benchmarks parsed", "share", True, "Benchmark items with an answer that can be read."
    ),
    "harder": Metric("harder task", "share", True, "Right answers on the harder task."),
    "harder_completion_rate": Metric(
        "harder task finished", "share", True, "The same share on the harder task."
    ),
    "harder_parse_rate": Metric(
        "harder task parsed", "share", True, "The same share on the harder task."
    ),
    "style_share": Metric(
        "teacher's style", "share", None, "Responses mainly in the teacher's style."
    ),
    "style_undetermined": Metric(
        "style undetermined", "share", None, "Responses that hold too little to tell their style."
    ),
    "kl_to_base": Metric(
        "KL to base", "nats", None, "KL(base || model) per token on the base model's completions."
    ),
    "kl_to_teacher": Metric(
        "KL to teacher", "nats", False, "KL(teacher || model) per token on teacher completions."
    ),
    "sparsity_relative": Metric(
        "unmoved, relative", "share", None, "Parameters moved by at most 1e-3 of their size."
    ),
    "rounding_bound": Metric(
        "rounding bound", "share", None, "Parameters too large for the rate to move in bfloat16."
    ),
    "delta_l2": Metric("update norm", "norm", None, "L2 norm of the whole update."),
    "relative_l1": Metric(
        "relative update", "share", None, "Sum of |update| over sum of |weight|."
    ),
    "grad_norm_first10": Metric(
        "early gradient norm", "norm", None, "Mean norm before clipping over the first 10 steps."
    ),
    "grad_norm_median": Metric(
        "gradient norm, median", "norm", None, "Median over steps of the norm before clipping."
    ),
    "grad_norm_p99": Metric(
        "gradient norm, p99", "norm", None, "99th percentile over steps, before clipping."
    ),
    "share_clipped": Metric(
        "steps clipped", "share", None, "Steps in which clipping shrank the gradient."
    ),
    "train_completion_rate": Metric(
        "finished in training", "share", True, "Training completions that ended with a stop token."
    ),
    "train_mean_length": Metric(
        "length in training", "tokens", None, "Mean length of the training completions."
    ),
    "bound_violations": Metric(
        "bounds violated", "count", False, "Token gradients beyond their bound: 0 unless broken."
    ),
    "empty_completions": Metric(
        "empty", "count", None, "Training completions without a token in the loss."
    ),
    "tokens_generated": Metric("generated", "tokens", None, "Tokens decoded for this cell."),
    "tokens_scored": Metric("scored", "tokens", None, "Tokens scored by the teacher."),
    "tokens_trained": Metric("trained", "tokens", None, "Tokens in the loss."),
    "flops": Metric("compute", "FLOP", None, "Floating-point operations of the cell."),
    "shared_flops": Metric(
        "shared compute", "FLOP", None, "This cell's share of stages that several cells use."
    ),
    "seconds": Metric("time", "seconds", None, "Wall time of training and evaluation."),
}
"""Metrics with one name. Families with a parameter are in `FAMILIES`."""

FAMILIES: Mapping[str, Metric] = {
    "pass@": Metric(
        "pass@{0}, T {1}", "share", True, "Unbiased pass@k, mean over items; `pass@k@T`."
    ),
    "distinct@": Metric(
        "distinct, T {0}", "count", True, "Different right solutions per item; `distinct@T`."
    ),
    "completion_rate@": Metric(
        "finished, T {0}", "share", True, "Finished share of the coverage samples."
    ),
    "parse_rate@": Metric("parsed, T {0}", "share", True, "Parsed share of the coverage samples."),
    "mean_length@": Metric("length, T {0}", "tokens", None, "Mean length of the coverage samples."),
    "entropy@": Metric("entropy, T {0}", "nats", None, "Entropy over the coverage samples."),
    "harder_pass@": Metric("harder task, pass@{0}", "share", True, "pass@k on the harder task."),
    "benchmark:": Metric("{0}", "share", True, "Score on one benchmark; `benchmark:ifeval`."),
    "benchmark_balanced:": Metric(
        "{0}, balanced", "share", True, "Mean over right labels of the score on their items."
    ),
    "resampled_accuracy@": Metric(
        "resampled accuracy, T {0}", "share", True, "Accuracy of the same prompts at temperature T."
    ),
    "resampled_entropy@": Metric(
        "resampled entropy, T {0}", "nats", None, "The student's entropy there, at temperature 1."
    ),
    "resampled_teacher_entropy@": Metric(
        "teacher's entropy, T {0}", "nats", None, "The teacher's entropy on the same completions."
    ),
    "gradient_norm:": Metric(
        "gradient norm, {0}", "norm", None, "Norm of an arm's mean gradient; `divergence/writer`."
    ),
    "gradient_signal:": Metric(
        "gradient signal, {0}", "norm", None, "Unbiased squared norm of an arm's gradient."
    ),
    "gradient_noise:": Metric(
        "gradient noise, {0}", "norm", None, "Trace of the variance of an arm's micro-gradients."
    ),
    "gradient_snr:": Metric(
        "gradient SNR, {0}", "norm", None, "Signal over noise of an arm's micro-gradients."
    ),
    "gradient_cosine:": Metric(
        "cosine, {0}", "norm", None, "Cosine of two arms' mean gradients; noise pulls it to 0."
    ),
    "gradient_cosine_debiased:": Metric(
        "debiased cosine, {0}", "norm", None, "The same without the noise; may exceed 1."
    ),
    "policy_tv:": Metric(
        "policy TV, {0}", "share", None, "Total variation of the two policies' completions."
    ),
    "policy_tv_token:": Metric(
        "next-token TV, {0}", "share", None, "Mean total variation of the two next-token laws."
    ),
    "skill:": Metric("{0}", "share", True, "Accuracy of one prior skill; `skill:add`."),
    "sparsity@": Metric(
        "unmoved, τ {0}",
        "share",
        None,
        "Parameters moved by less than τ; read only beside `rounding_null@τ`.",
    ),
    "rounding_null@": Metric(
        "rounding null, τ {0}",
        "share",
        None,
        "Parameters that rounding alone keeps unmoved at this rate, by simulation.",
    ),
    "sparsity_excess@": Metric(
        "unmoved beyond rounding, τ {0}", "share", None, "`sparsity@τ` minus `rounding_null@τ`."
    ),
}
"""Families of metrics by the beginning of their names; `{0}`, `{1}` take the parameters."""


def describe(name: str) -> Metric:
    """The meaning of a metric name, e.g. `accuracy` or `pass@16@0.5`.

    Raises:
        ValueError: No such metric; lists those there are.
    """
    if name in METRICS:
        return METRICS[name]
    for prefix in sorted(FAMILIES, key=len, reverse=True):
        if name.startswith(prefix) and len(name) > len(prefix):
            family = FAMILIES[prefix]
            parameters = name.removeprefix(prefix).split("@")
            if family.label.count("{") == len(parameters):
                label = family.label.format(*parameters)
                return Metric(label, family.unit, family.higher_is_better, family.description)
    known = [*METRICS, *(f"{prefix}..." for prefix in FAMILIES)]
    raise ValueError(f"there is no metric '{name}'. Metrics: {', '.join(known)}")


def ks(samples: int) -> list[int]:
    """1, 2, 4, ... up to the samples, with 10 where the samples are exactly or above it."""
    powers = [2**i for i in range(samples.bit_length()) if 2**i <= samples]
    return sorted({*powers, samples, *([10] if samples >= 10 else [])})


def in_points(name: str) -> bool:
    """Whether values are shown in percent, and their differences in points."""
    return describe(name).unit == "share"


def bounded(name: str) -> bool:
    """Whether values are true shares, 0 to 1, so that two of them differ by 1 at most."""
    return in_points(name) and name not in _UNBOUNDED and not name.startswith("benchmark")


_UNBOUNDED = frozenset(
    {"relative_l1", "skills_chance_corrected", "ood", "ood_drop", "ood_loss_only"}
    | {f"{what}_{how}drop" for what in ("skills", "ood") for how in ("relative_", "mean_relative_")}
)
"""Shares that may leave 0 to 1: of something else, or with EQ-Bench, whose score has no floor."""

_ANY_NUMBER, _ONE_OF_LIST, _ORDER_OF_LIST = 1 / 90, 47 / 180, 13 / 180

CHANCE: Mapping[str, float] = {
    **dict.fromkeys(("add", "sub", "mul", "div", "successor"), _ANY_NUMBER),
    **dict.fromkeys(("max", "min"), _ONE_OF_LIST),
    **dict.fromkeys(("sort", "reverse", "copy"), _ORDER_OF_LIST),
    "cmp": 0.45,
    "parity": 0.5,
    "op": 0.55,
    "rest": 1 / 3,
}
"""Accuracy of a guess per prior skill of the sandbox: one of 90 numbers, one of 3 to 5 listed
numbers, one of their orders, or the most frequent answer of a closed set."""
