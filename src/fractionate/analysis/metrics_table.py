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
    "harder": Metric("harder task", "share", True, "Right answers on the harder task."),
    "harder_completion_rate": Metric(
        "harder task finished", "share", True, "The same share on the harder task."
    ),
    "harder_parse_rate": Metric(
        "harder task parsed", "share", True, "The same share on the harder task."
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
    return in_points(name) and name not in ("relative_l1", "skills_chance_corrected")


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
