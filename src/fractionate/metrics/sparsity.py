"""Update sparsity: which share of the parameters training left where they were."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from fractionate.metrics.parameters import Tied, Weights, counted_names, layer_of, matrix_of
from fractionate.metrics.rounding import NullRun, largest_movable, simulated_unmoved
from fractionate.records import WeightRecord

PAPER_THRESHOLD = 1e-6
"""The threshold of arXiv 2609.35259, strict; by_layer and by_matrix use it."""

RELATIVE_THRESHOLD = 1e-3
"""Of the precision-aware variant |delta| <= 1e-3 max(|w|, |w'|)."""

_CHUNK = 1 << 18  # elements compared at a time: 2 MiB in float64 per operand stay in the cache


@dataclass(frozen=True)
class MaskOverlap:
    """How far two update masks agree.

    Attributes:
        overlap: |A and B| / |A|.
        chance: |B| / P, the overlap to expect of unrelated masks.
        jaccard: |A and B| / |A or B|.
        chance_jaccard: The same of unrelated masks: a b / (a + b - a b), a and b their shares.
    """

    overlap: float
    chance: float
    jaccard: float
    chance_jaccard: float


@dataclass(frozen=True)
class Census:
    """Counts and sums over some parameters; adds up over tensors."""

    parameters: int
    strict: Tensor  # [thresholds], |delta| < threshold, or == 0 at threshold 0
    inclusive: Tensor  # [thresholds], |delta| <= threshold
    relative: int
    square: float
    absolute: float
    absolute_before: float

    def __add__(self, other: "Census") -> "Census":
        return Census(
            self.parameters + other.parameters,
            self.strict + other.strict,
            self.inclusive + other.inclusive,
            self.relative + other.relative,
            self.square + other.square,
            self.absolute + other.absolute,
            self.absolute_before + other.absolute_before,
        )


def update_sparsity(
    before: Weights,
    after: Weights,
    *,
    threshold: float = PAPER_THRESHOLD,
    strict: bool = True,
    tied: Tied = (),
) -> float:
    """Share of parameters with |delta| below a threshold.

    S = (1/P) sum_i [|after_i - before_i| < threshold], the difference taken in float64 from the
    dtypes as stored (arXiv 2609.35259: 1e-6, strict; arXiv 2505.11711: 1e-5, not strict).

    Args:
        before: Name to tensor.
        after: Name to tensor, the same names and shapes.
        threshold: 0 means exactly equal, strict or not.
        strict: `<` or `<=`.
        tied: Tensors that are one and the same parameter and count once: groups of names, or
            single names of tensors that repeat another one. Tensors that share storage are found
            without being named.

    Returns:
        A share in [0, 1].

    Raises:
        ValueError: Other names or shapes, tied tensors that differ, no parameter, a number that is
            not finite, or a negative threshold; names the tensor.
    """
    census = _total(_censuses(before, after, [threshold], tied).values())
    counts = census.strict if strict else census.inclusive
    return int(counts[0]) / census.parameters


def weight_record(  # noqa: PLR0913 - the optimizer's own numbers, spelled as they are everywhere
    before: Weights,
    after: Weights,
    *,
    lr: float,
    steps: int,
    warmup: int,
    param_dtype: str,
    thresholds: Sequence[float],
    seed: int,
    tied: Tied = (),
) -> WeightRecord:
    """Everything that a study records of an update, with the rounding null beside it.

    Args:
        before: The base's weights as stored.
        after: The trained weights as stored.
        lr: Rate after warm-up.
        steps: Optimizer steps that were made.
        warmup: Steps of linear warm-up.
        param_dtype: In which the update happens: "float32" with master weights. Where the weights
            are stored in bfloat16 all the same, the null is rounded to bfloat16 at the end.
        thresholds: At which shares are reported.
        seed: Of the null's simulation.
        tied: As in `update_sparsity`.

    Raises:
        ValueError: As `update_sparsity` and `rounding_null`.
    """
    censuses = _censuses(before, after, [*thresholds, PAPER_THRESHOLD], tied)
    total = _total(censuses.values())
    counted = {name: before[name] for name in censuses}
    stored = _stored_dtype(after)
    run = NullRun(lr, steps, warmup, param_dtype, seed=seed)
    null = simulated_unmoved(counted, run, thresholds=thresholds, stored_dtype=stored)
    edge = largest_movable(lr, param_dtype=param_dtype) if steps > 0 else 0.0
    fixed = sum(int((value.detach().abs() >= edge).sum()) for value in counted.values())
    labels = [f"{threshold:g}" for threshold in thresholds]
    return WeightRecord(
        parameters=total.parameters,
        unmoved=_shares(labels, total.strict, total.parameters),
        unmoved_inclusive=_shares(labels, total.inclusive, total.parameters),
        unmoved_relative=total.relative / total.parameters,
        by_layer=_grouped(censuses, layer_of),
        by_matrix=_grouped(censuses, matrix_of),
        rounding_null=dict(zip(labels, null, strict=True)),
        rounding_bound=fixed / total.parameters,
        delta_l2=total.square**0.5,
        relative_l1=total.absolute / total.absolute_before if total.absolute_before else 0.0,
    )


def moved_mask(
    before: Weights, after: Weights, *, threshold: float = PAPER_THRESHOLD
) -> Bool[Tensor, " parameters"]:
    """True on the parameters with |delta| >= threshold (!= 0 at threshold 0), in name order.

    Raises:
        ValueError: As `update_sparsity`.
    """
    kept = counted_names(before, after, ())
    deltas = [(after[n].double() - before[n].double()).abs().flatten() for n in sorted(kept)]
    delta = torch.cat(deltas)
    return delta >= threshold if threshold > 0 else delta > 0


def mask_overlap(
    first: Bool[Tensor, " parameters"], second: Bool[Tensor, " parameters"]
) -> MaskOverlap:
    """Share of the first mask that the second one covers, with the level of chance.

    Raises:
        ValueError: Masks of other lengths, or a first mask without a single parameter.
    """
    if first.shape != second.shape:
        raise ValueError(f"masks of {first.numel()} and {second.numel()} parameters do not compare")
    both = int((first & second).sum())
    return overlap_of_counts(both, int(first.sum()), int(second.sum()), first.numel())


def overlap_of_counts(both: int, first: int, second: int, parameters: int) -> MaskOverlap:
    """The overlap of two masks from their counts.

    Args:
        both: Parameters in both masks.
        first: Parameters in the first.
        second: Parameters in the second.
        parameters: All parameters.

    Raises:
        ValueError: A first mask without a single parameter.
    """
    if first == 0:
        raise ValueError("the first mask is empty: no parameter moved, so no overlap is defined")
    a, b = first / parameters, second / parameters
    return MaskOverlap(both / first, b, both / (first + second - both), a * b / (a + b - a * b))


def _censuses(
    before: Weights, after: Weights, thresholds: Sequence[float], tied: Tied
) -> dict[str, Census]:
    for threshold in thresholds:
        if not threshold >= 0:
            raise ValueError(f"threshold must be >= 0, got {threshold!r}")
    names = counted_names(before, after, tied)
    taus = torch.tensor(list(thresholds), dtype=torch.float64)
    return {name: census_of(name, before[name], after[name], taus) for name in names}


def census_of(name: str, before: Tensor, after: Tensor, taus: Tensor) -> Census:
    """Count one tensor's update, chunk by chunk.

    Raises:
        ValueError: The weights hold NaN or an infinity; names the tensor.
    """
    zero = torch.zeros(len(taus), dtype=torch.int64)
    census = Census(0, zero, zero, 0, 0.0, 0.0, 0.0)
    chunks = zip(
        before.detach().flatten().split(_CHUNK), after.detach().flatten().split(_CHUNK), strict=True
    )
    for old_chunk, new_chunk in chunks:
        old, new = old_chunk.cpu().double(), new_chunk.cpu().double()
        delta = (new - old).abs()
        if not bool(torch.isfinite(delta).all()):
            raise ValueError(f"'{name}' holds NaN or infinite weights: the update has no size")
        scale = torch.maximum(old.abs(), new.abs())
        inclusive = torch.stack([(delta <= tau).sum() for tau in taus])
        below = torch.stack([(delta < tau).sum() for tau in taus])
        census += Census(
            old.numel(),
            torch.where(taus > 0, below, inclusive),
            inclusive,
            int((delta <= RELATIVE_THRESHOLD * scale).sum()),
            float(delta.square().sum()),
            float(delta.sum()),
            float(old.abs().sum()),
        )
    return census


def _total(censuses: Iterable[Census]) -> Census:
    first, *rest = censuses
    for census in rest:
        first += census
    return first


def _shares(labels: Sequence[str], counts: Tensor, parameters: int) -> dict[str, float]:
    return {label: int(count) / parameters for label, count in zip(labels, counts, strict=False)}


def _grouped(censuses: Mapping[str, Census], group_of: Callable[[str], str]) -> dict[str, float]:
    """Share unmoved at the paper's threshold (the last one) by group."""
    groups: dict[str, Census] = {}
    for name, census in censuses.items():
        group = group_of(name)
        groups[group] = groups[group] + census if group in groups else census
    return {group: int(found.strict[-1]) / found.parameters for group, found in groups.items()}


def _stored_dtype(weights: Weights) -> str | None:
    """The name bfloat16 if most parameters are stored so, else None: the dtype of the update."""
    total = sum(value.numel() for value in weights.values())
    half = sum(value.numel() for value in weights.values() if value.dtype == torch.bfloat16)
    return "bfloat16" if 2 * half > total else None
