"""Update sparsity of checkpoints on disk, read block by block in bounded memory."""

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fractionate.metrics.checkpoint_files import (
    Checkpoint,
    CheckpointError,
    Tensors,
    open_checkpoint,
)
from fractionate.metrics.parameters import layer_of, matrix_of
from fractionate.metrics.rank import rank_measures
from fractionate.metrics.sparsity import Census, MaskOverlap, census_of, overlap_of_counts

_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"


_CHUNK = 1 << 18  # elements that are rounded at a time


@dataclass(frozen=True)
class Shares:
    """How much of a group of parameters an update left where it was.

    Attributes:
        parameters: Parameters of the group.
        strict: Share with |delta| < threshold, by threshold (written with `%g`; "0": equal).
        inclusive: Share with |delta| <= threshold.
        relative: Share with |delta| <= 1e-3 max(|before|, |after|).
        bfloat16: Share with |delta| <= threshold where both are rounded to bfloat16 first and
            subtracted there: the script of arXiv 2505.11711, whose threshold is 1e-5.
    """

    parameters: int
    strict: Mapping[str, float]
    inclusive: Mapping[str, float]
    relative: float
    bfloat16: Mapping[str, float]


@dataclass(frozen=True)
class MeanRanks:
    """Rank measures of the update, unweighted means over matrices (embedding and head left out).

    Noise-like updates have nearly full numerical rank, so it hardly tells runs apart.

    Attributes:
        matrices: Matrices that moved.
        share: Numerical rank over the smaller side.
        stable: Frobenius norm squared over largest singular value squared.
        entropy: exp of the entropy of the singular values' shares.
    """

    matrices: int
    share: float
    stable: float
    entropy: float


@dataclass(frozen=True)
class _Counts:
    """The census of some parameters, with the counts of the bfloat16 convention."""

    census: Census
    rounded: Tensor

    def __add__(self, other: "_Counts") -> "_Counts":
        return _Counts(self.census + other.census, self.rounded + other.rounded)


@dataclass(frozen=True)
class CheckpointSparsity:
    """An update, from two checkpoints.

    Attributes:
        total: All parameters, tied ones once.
        by_layer: By layer: "0", "1", ..., "embedding", "norm", "head".
        by_matrix: By matrix type: "q", "k", ..., "embedding".
        delta_l2: Norm of the update.
        relative_l1: Sum |delta| / sum |before|.
        dtypes: Dtype of most parameters, before and after.
        left_out: Tensors that repeat another one and were not counted.
        ranks: Rank measures by matrix type, if asked for; "all" are all types.
    """

    total: Shares
    by_layer: Mapping[str, Shares]
    by_matrix: Mapping[str, Shares]
    delta_l2: float
    relative_l1: float
    dtypes: tuple[str, str]
    left_out: tuple[str, ...]
    ranks: Mapping[str, MeanRanks] | None = None


def checkpoint_sparsity(
    before: Path,
    after: Path,
    *,
    thresholds: Sequence[float],
    round_before: bool = False,
    ranks: bool = False,
    merge_dtype: torch.dtype | None = None,
) -> CheckpointSparsity:
    """Compare two checkpoints of one architecture; definitions as in `update_sparsity`.

    A head that its config ties to the embedding counts once, whether it was saved or not.

    Args:
        before: Model folder or safetensors file.
        after: The same architecture, trained; or a LoRA adapter of PEFT on `before`.
        thresholds: At which shares are taken; 0 means exactly equal.
        round_before: Round `before` to the dtype of `after` first: a run in that precision starts
            from there, and otherwise the rounding itself would count as movement.
        ranks: Also decompose the update of every matrix, each held in memory as a whole.
        merge_dtype: In which an adapter is merged; none takes the dtype of `before`.

    Raises:
        CheckpointError: A checkpoint is missing or unreadable, or the names or shapes of the
            tensors differ; names the tensor.
        ValueError: A negative threshold, or weights that are not finite.
    """
    if not thresholds or min(thresholds) < 0:
        raise ValueError("thresholds must be >= 0, and there must be at least one")
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(contextlib.closing(Checkpoint(before)))
        new = stack.enter_context(open_checkpoint(after, base=old, merge_dtype=merge_dtype))
        left_out = _tied(old, new)
        names = _common_names(old, new, left_out)
        dtypes = (_Votes(), _Votes())
        taus = torch.tensor(list(thresholds), dtype=torch.float64)
        counts: dict[str, _Counts] = {}
        for name in names:
            pairs = zip(old.blocks(name), new.blocks(name), strict=True)
            counts[name] = _of_pairs(name, pairs, taus, dtypes, round_before=round_before)
        found = _ranks(old, new, names) if ranks else None
    labels = [f"{threshold:g}" for threshold in thresholds]
    total = _sum(list(counts.values()))
    census = total.census
    return CheckpointSparsity(
        total=_shares(total, labels),
        by_layer=_grouped(counts, layer_of, labels),
        by_matrix=_grouped(counts, matrix_of, labels),
        delta_l2=census.square**0.5,
        relative_l1=census.absolute / census.absolute_before if census.absolute_before else 0.0,
        dtypes=(dtypes[0].winner, dtypes[1].winner),
        left_out=left_out,
        ranks=found,
    )


def checkpoint_overlap(
    before: Path,
    first: Path,
    second: Path,
    *,
    threshold: float,
    merge_dtype: torch.dtype | None = None,
) -> MaskOverlap:
    """How far two trainings of one base moved the same parameters, read block by block.

    Args:
        before: The base.
        first: Trained from it.
        second: Also trained from it.
        threshold: A parameter moved if |delta| >= threshold (!= 0 at threshold 0).
        merge_dtype: In which adapters are merged.

    Raises:
        CheckpointError: As `checkpoint_sparsity`.
        ValueError: The first did not move a parameter.
    """
    both = one = other = parameters = 0
    with contextlib.ExitStack() as stack:
        base = stack.enter_context(contextlib.closing(Checkpoint(before)))
        sides = [
            stack.enter_context(open_checkpoint(path, base=base, merge_dtype=merge_dtype))
            for path in (first, second)
        ]
        left_out = tuple({name for side in sides for name in _tied(base, side)})
        names, _ = [_common_names(base, side, left_out) for side in sides]
        for name in names:
            for old, *trained in zip(
                base.blocks(name), *(s.blocks(name) for s in sides), strict=True
            ):
                masks = [_moved(old, new, threshold) for new in trained]
                both += int((masks[0] & masks[1]).sum())
                one, other = one + int(masks[0].sum()), other + int(masks[1].sum())
                parameters += old.numel()
    return overlap_of_counts(both, one, other, parameters)


def _moved(old: Tensor, new: Tensor, threshold: float) -> Tensor:
    delta = (new.double() - old.double()).abs()
    return delta >= threshold if threshold > 0 else delta > 0


def _ranks(old: Tensors, new: Tensors, names: Sequence[str]) -> dict[str, MeanRanks]:
    """Rank measures by matrix type; matrices that did not move have no rank."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for name in names:
        kind = matrix_of(name)
        if len(old.shape(name)) != 2 or kind in ("embedding", "head", "norm"):
            continue
        pairs = zip(old.blocks(name), new.blocks(name), strict=True)
        delta = torch.cat([b.float() - a.float() for a, b in pairs])
        if bool(delta.any()):
            ranks = rank_measures(delta)
            for group in ("all", kind):
                found.setdefault(group, []).append((ranks.share, ranks.stable, ranks.entropy))
    return {
        group: MeanRanks(
            len(rows), *(math.fsum(column) / len(rows) for column in zip(*rows, strict=True))
        )
        for group, rows in found.items()
    }


class _Votes(dict[str, int]):
    """Parameters by dtype."""

    def add(self, block: Tensor) -> None:
        name = str(block.dtype).removeprefix("torch.")
        self[name] = self.get(name, 0) + block.numel()

    @property
    def winner(self) -> str:
        return max(self, key=lambda name: self[name])


def _of_pairs(
    name: str,
    pairs: Iterable[tuple[Tensor, Tensor]],
    taus: Tensor,
    dtypes: tuple[_Votes, _Votes],
    *,
    round_before: bool,
) -> _Counts:
    parts: list[_Counts] = []
    for before, after in pairs:
        dtypes[0].add(before)
        dtypes[1].add(after)
        start = before.to(after.dtype) if round_before else before
        parts.append(_Counts(census_of(name, start, after, taus), _rounded(before, after, taus)))
    return _sum(parts)


def _rounded(before: Tensor, after: Tensor, taus: Tensor) -> Tensor:
    """Counts of |delta| <= tau in bfloat16, by threshold."""
    counts = torch.zeros(len(taus), dtype=torch.int64)
    chunks = zip(before.flatten().split(_CHUNK), after.flatten().split(_CHUNK), strict=True)
    for old, new in chunks:
        delta = (new.bfloat16() - old.bfloat16()).abs().double()
        counts += torch.stack([(delta <= tau).sum() for tau in taus])
    return counts


def _sum(parts: Sequence[_Counts]) -> _Counts:
    first, *rest = parts
    for part in rest:
        first += part
    return first


def _shares(counted: _Counts, labels: Sequence[str]) -> Shares:
    census = counted.census

    def share(counts: Tensor) -> dict[str, float]:
        return {
            label: int(count) / census.parameters
            for label, count in zip(labels, counts, strict=True)
        }

    return Shares(
        parameters=census.parameters,
        strict=share(census.strict),
        inclusive=share(census.inclusive),
        relative=census.relative / census.parameters,
        bfloat16=share(counted.rounded),
    )


def _grouped(
    counts: Mapping[str, _Counts], group_of: Callable[[str], str], labels: Sequence[str]
) -> dict[str, Shares]:
    groups: dict[str, list[_Counts]] = {}
    for name, counted in counts.items():
        groups.setdefault(group_of(name), []).append(counted)
    return {group: _shares(_sum(parts), labels) for group, parts in sorted(groups.items(), key=_by)}


def _by(item: tuple[str, object]) -> tuple[int, str]:
    """Layers in the order of their numbers, then the named groups."""
    name = item[0]
    return (int(name), "") if name.isdigit() else (1 << 30, name)


def _tied(old: Tensors, new: Tensors) -> tuple[str, ...]:
    """The head, where both models tie it to the embedding."""
    if not (old.ties_head and new.ties_head):
        return ()
    there = {name for side in (old, new) for name in side.names}
    embedded = any(name.endswith(_EMBEDDING) for name in there)
    return (_HEAD,) if embedded and _HEAD in there else ()


def _common_names(old: Tensors, new: Tensors, left_out: Sequence[str]) -> list[str]:
    for one, other in ((old, new), (new, old)):
        for name in one.names:
            if name not in left_out and name not in other.names:
                raise CheckpointError(
                    f"'{name}' is in {one.path} but not in {other.path}: compare checkpoints of "
                    "one architecture"
                )
    names = [name for name in old.names if name not in left_out]
    for name in names:
        if old.shape(name) != new.shape(name):
            raise CheckpointError(
                f"'{name}' has shape {old.shape(name)} in {old.path} and {new.shape(name)} in "
                f"{new.path}: compare checkpoints of one architecture"
            )
    filled = [name for name in names if 0 not in old.shape(name)]
    if not filled:
        raise CheckpointError(f"{old.path} holds no parameter")
    return filled
