"""From the records of one cell at one step to its metrics, each with interval and n."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fractionate.analysis.metrics_table import CHANCE, ks
from fractionate.records import CellResult, EvalRecord, StepRecord, WeightRecord
from fractionate.rng import stream
from fractionate.statistics import forgetting, pass_at_k, wilson_interval

Floats = NDArray[np.float64]

DRAWS = 1_000
"""Bootstrap resamples of items behind the interval of a mean."""

EARLY_STEPS = 10


@dataclass(frozen=True)
class Value:
    """One measurement.

    Attributes:
        metric: Name, as in `metrics_table`.
        value: In the unit of the metric.
        low: Lower end of the 95 % interval over items; None where items are not the sample.
        high: Upper end.
        n: Items, parameters or steps behind the value.
    """

    metric: str
    value: float
    low: float | None
    high: float | None
    n: int


@functools.lru_cache(maxsize=8)
def _item_weights(n: int) -> Floats:
    """Resamples of n items as weights [draws, n]: every arm and metric shares them."""
    return stream(0, "items", n).multinomial(n, np.full(n, 1 / n), size=DRAWS) / n


def _item_interval(values: Floats) -> tuple[float, float]:
    """Percentile bootstrap over items [n] of a mean."""
    means = np.sort(_item_weights(values.size) @ values)
    return float(means[DRAWS // 40]), float(means[-DRAWS // 40 - 1])


def _mean(metric: str, values: Sequence[float] | Floats) -> Value:
    array = np.asarray(values, dtype=np.float64)
    return Value(metric, float(array.mean()), *_item_interval(array), array.size)


def _share(metric: str, successes: int, n: int) -> Value:
    low, high = wilson_interval(successes, n)
    return Value(metric, successes / n, low, high, n)


def _rate(metric: str, records: Sequence[EvalRecord]) -> Value:
    """Right answers: Wilson with one sample per item, else the bootstrap over items."""
    if all(record.samples == 1 for record in records):
        return _share(metric, sum(record.correct for record in records), len(records))
    return _mean(metric, [record.correct / record.samples for record in records])


def _generation(records: Sequence[EvalRecord], name: Callable[[str], str]) -> Iterator[Value]:
    """How completions look: finished, parsed, length, entropy."""
    one = all(record.samples == 1 for record in records)
    for metric, lost in (("completion_rate", "truncated"), ("parse_rate", "unanswered")):
        kept = [record.samples - int(getattr(record, lost)) for record in records]
        if one:
            yield _share(name(metric), sum(kept), len(records))
        else:
            shares = [k / record.samples for k, record in zip(kept, records, strict=True)]
            yield _mean(name(metric), shares)
    yield _mean(name("mean_length"), [record.tokens / record.samples for record in records])
    entropies = [record.entropy for record in records if record.entropy is not None]
    if entropies:
        yield _mean(name("entropy"), entropies)


def pass_values(records: Sequence[EvalRecord], k: int) -> Floats:
    """Unbiased pass@k per item [items]."""
    n = np.array([record.samples for record in records])
    c = np.array([record.correct for record in records])
    return np.asarray(pass_at_k(n, c, np.full(n.size, k)), dtype=np.float64)


def _coverage(records: Sequence[EvalRecord], temperature: float) -> Iterator[Value]:
    at = f"{temperature:g}"
    for k in ks(min(record.samples for record in records)):
        yield _mean(f"pass@{k}@{at}", pass_values(records, k))
    yield _mean(f"distinct@{at}", [record.distinct for record in records])
    yield from _generation(records, lambda metric: f"{metric}@{at}")


def _harder(records: Sequence[EvalRecord]) -> Iterator[Value]:
    yield _rate("harder", records)
    for k in ks(min(record.samples for record in records))[1:]:
        yield _mean(f"harder_pass@{k}", pass_values(records, k))
    for value in _generation(records, lambda metric: f"harder_{metric}"):
        if value.metric in ("harder_completion_rate", "harder_parse_rate"):
            yield value


def by_suite(records: Sequence[EvalRecord]) -> dict[str, dict[float, list[EvalRecord]]]:
    """Records by suite and temperature, in their order."""
    groups: dict[str, dict[float, list[EvalRecord]]] = {}
    for record in records:
        groups.setdefault(record.suite, {}).setdefault(record.temperature, []).append(record)
    return groups


def skill_scores(records: Sequence[EvalRecord]) -> dict[str, Floats]:
    """Share of right answers per item, by prior skill."""
    scores: dict[str, list[float]] = {}
    for record in records:
        if record.suite.startswith("skill:"):
            name = record.suite.removeprefix("skill:")
            scores.setdefault(name, []).append(record.correct / record.samples)
    return {name: np.array(values) for name, values in scores.items()}


def _stratified(metric: str, strata: Sequence[Floats]) -> Value:
    """Mean of stratum means, items resampled within their stratum."""
    means = np.array([values.mean() for values in strata])
    variance = sum(float(values.var(ddof=1)) / values.size for values in strata if values.size > 1)
    half = 1.959963984540054 * float(np.sqrt(variance)) / len(strata)
    value, n = float(means.mean()), sum(values.size for values in strata)
    return Value(metric, value, value - half, value + half, n)


def _skills(scores: Mapping[str, Floats], base: Mapping[str, Floats] | None) -> Iterator[Value]:
    for name, values in scores.items():
        yield _mean(f"skill:{name}", values)
    yield _stratified("skills", list(scores.values()))
    if set(scores) <= set(CHANCE):
        corrected = [
            (float(values.mean()) - CHANCE[name]) / (1 - CHANCE[name])
            for name, values in scores.items()
        ]
        n = sum(values.size for values in scores.values())
        yield Value("skills_chance_corrected", float(np.mean(corrected)), None, None, n)
    if base is not None and set(base) == set(scores):
        drops = [
            base[name] - values
            if base[name].size == values.size
            else np.array([base[name].mean() - values.mean()])
            for name, values in scores.items()
        ]
        yield _stratified("skills_drop", drops)
        yield from _definitions("skills", _means(base), _means(scores))


def _means(scores: Mapping[str, Floats]) -> dict[str, float]:
    """Score in points by skill or benchmark."""
    return {name: 100 * float(values.mean()) for name, values in scores.items()}


def _definitions(
    what: str, base: Mapping[str, float], final: Mapping[str, float]
) -> Iterator[Value]:
    """The other definitions of forgetting, from scores in points; those that are undefined lack."""
    found = forgetting(base, final)
    numbers = {
        "relative_drop": found.relative_drop_of_mean,
        "mean_relative_drop": found.mean_relative_drop,
        "loss_only": found.mean_loss_only / 100,
    }
    for name, number in numbers.items():
        if number is not None:
            yield Value(f"{what}_{name}", number, None, None, len(found.tasks))


def _benchmarks(
    records: Sequence[EvalRecord], base: Sequence[EvalRecord] | None
) -> Iterator[Value]:
    """Scores of lm-evaluation-harness, their mean, and every definition of forgetting."""
    scores, before = _benchmark_items(records), _benchmark_items(base or ())
    if not scores:
        return
    strata = {name: np.array(list(items.values())) for name, items in scores.items()}
    for name, values in strata.items():
        yield _mean(f"benchmark:{name}", values)
    yield _stratified("ood", list(strata.values()))
    own = [record for record in records if record.suite.startswith(_BENCHMARK)]
    yield _share("ood_parse_rate", sum(not record.unanswered for record in own), len(own))
    for name, value, n in _balanced(own):
        yield Value(f"benchmark_balanced:{name}", value, None, None, n)
    if set(before) != set(scores) or any(set(before[n]) != set(scores[n]) for n in scores):
        return
    drops = [
        np.array([before[name][item] - value for item, value in items.items()])
        for name, items in scores.items()
    ]
    yield _stratified("ood_drop", drops)
    start = {name: np.array(list(items.values())) for name, items in before.items()}
    yield from _definitions("ood", _means(start), _means(strata))


_BENCHMARK, _GOLD = "benchmark:", "gold "


def _benchmark_items(records: Sequence[EvalRecord]) -> dict[str, dict[str, float]]:
    """Score, a share of 1, by benchmark and item."""
    found: dict[str, dict[str, float]] = {}
    for record in records:
        if record.suite.startswith(_BENCHMARK) and record.value is not None:
            name = record.suite.removeprefix(_BENCHMARK)
            found.setdefault(name, {})[record.item] = record.value
    return found


def _balanced(records: Sequence[EvalRecord]) -> Iterator[tuple[str, float, int]]:
    """Mean over gold labels of the score, where items of a benchmark have labels."""
    groups: dict[str, dict[str, list[float]]] = {}
    for record in records:
        for reason in record.reasons:
            if reason.startswith(_GOLD) and record.value is not None:
                by_label = groups.setdefault(record.suite.removeprefix(_BENCHMARK), {})
                by_label.setdefault(reason, []).append(record.value)
    for name, by_label in groups.items():
        means = [float(np.mean(values)) for values in by_label.values()]
        yield name, float(np.mean(means)), sum(map(len, by_label.values()))


def _resampled(groups: Mapping[float, Sequence[EvalRecord]]) -> Iterator[Value]:
    """The same prompts at several temperatures: accuracy and both entropies."""
    for temperature, items in groups.items():
        at = f"{temperature:g}"
        yield _rate(f"resampled_accuracy@{at}", items)
        entropies = {
            "entropy": [record.entropy for record in items if record.entropy is not None],
            "teacher_entropy": [record.value for record in items if record.value is not None],
        }
        for name, values in entropies.items():
            if values:
                yield _mean(f"resampled_{name}@{at}", values)


def _gradients(
    groups: Mapping[str, Mapping[float, Sequence[EvalRecord]]],
) -> Iterator[Value]:
    """Numbers of the basic arms at one checkpoint; means over prompts of the policies' distance."""
    for suite, by_temperature in groups.items():
        records = [r for items in by_temperature.values() for r in items if r.value is not None]
        if suite.startswith("policy_tv") and records:
            yield _mean(suite, [record.value for record in records if record.value is not None])
        elif suite.startswith("gradient_"):
            for record in records:
                if record.value is not None:
                    name = f"{suite}:{record.item}"
                    yield Value(name, record.value, None, None, record.samples)


def evaluation_values(
    records: Sequence[EvalRecord], base: Sequence[EvalRecord] | None
) -> Iterator[Value]:
    """Everything that the item records of one evaluation say.

    Args:
        records: Of one cell at one step.
        base: Of the same student before training; None where it was not evaluated.
    """
    groups = by_suite(records)
    for temperature, items in groups.get("coverage", {}).items():
        yield from _coverage(items, temperature)
    accuracy = groups.get("accuracy", {})
    for items in list(accuracy.values())[:1]:
        yield _rate("accuracy", items)
        yield from _generation(items, lambda metric: metric)
    if not accuracy and "coverage" in groups:
        yield from _accuracy_of_coverage(groups["coverage"])
    for items in list(groups.get("harder", {}).values())[:1]:
        yield from _harder(items)
    for suite in ("kl_to_base", "kl_to_teacher"):
        for items in list(groups.get(suite, {}).values())[:1]:
            values = [record.value for record in items if record.value is not None]
            if values:
                yield _mean(suite, values)
    scores = skill_scores(records)
    if scores:
        yield from _skills(scores, None if base is None else skill_scores(base))
    yield from _benchmarks(records, base)
    for items in list(groups.get("style", {}).values())[:1]:
        yield _share("style_share", sum(record.correct for record in items), len(items))
        yield _share("style_undetermined", sum(r.unanswered for r in items), len(items))
    yield from _resampled(groups.get("resampled", {}))
    yield from _gradients(groups)


def _accuracy_of_coverage(coverage: Mapping[float, Sequence[EvalRecord]]) -> Iterator[Value]:
    """Without a suite of its own, accuracy is pass@1 at the lowest temperature sampled."""
    items = coverage[min(coverage)]
    yield _rate("accuracy", items)
    yield from _generation(items, lambda metric: metric)


def weight_values(record: WeightRecord) -> Iterator[Value]:
    """How far the weights moved; sparsity never without its rounding null."""

    def value(metric: str, number: float) -> Value:
        return Value(metric, number, None, None, record.parameters)

    for tau, share in record.unmoved.items():
        yield value(f"sparsity@{tau}", share)
        if tau in record.rounding_null:
            null = record.rounding_null[tau]
            yield value(f"rounding_null@{tau}", null)
            yield value(f"sparsity_excess@{tau}", share - null)
    yield value("sparsity_relative", record.unmoved_relative)
    yield value("rounding_bound", record.rounding_bound)
    yield value("delta_l2", record.delta_l2)
    yield value("relative_l1", record.relative_l1)


def training_values(steps: Sequence[StepRecord]) -> Iterator[Value]:
    """What the steps up to one evaluation did and cost."""
    norms = np.array([step.grad_norm for step in steps])
    completions = sum(step.completions for step in steps)
    lengths = sum(step.mean_length * step.completions for step in steps)
    clipped = sum(step.clip_coefficient < 1.0 for step in steps)
    numbers: dict[str, float] = {
        "grad_norm_first10": float(norms[:EARLY_STEPS].mean()),
        "grad_norm_median": float(np.median(norms)),
        "grad_norm_p99": float(np.quantile(norms, 0.99)),
        "share_clipped": clipped / len(steps),
        "bound_violations": sum(step.bound_violations or 0 for step in steps),
        "empty_completions": sum(step.empty_completions for step in steps),
        "tokens_generated": sum(step.tokens_generated for step in steps),
        "tokens_scored": sum(step.tokens_scored for step in steps),
        "tokens_trained": sum(step.tokens_trained for step in steps),
    }
    if completions:
        numbers["train_completion_rate"] = sum(step.finished for step in steps) / completions
        numbers["train_mean_length"] = lengths / completions
    for metric, number in numbers.items():
        yield Value(metric, float(number), None, None, len(steps))


def cost_values(cell: CellResult) -> Iterator[Value]:
    """What a whole cell cost; absent where it was not recorded."""
    for metric in ("seconds", "flops", "shared_flops"):
        number = cast("float | None", getattr(cell, metric))
        if number is not None:
            yield Value(metric, float(number), None, None, 1)
