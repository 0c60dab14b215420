"""Update sparsity of checkpoints on disk, read block by block in bounded memory."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fractionate.metrics.parameters import layer_of, matrix_of
from fractionate.metrics.sparsity import Census, census_of

BLOCK = 1 << 22
"""Elements of each checkpoint held at a time: 16 MiB in float32."""

_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"


class CheckpointError(ValueError):
    """A checkpoint that cannot be compared; the message names the file and the mend."""


@dataclass(frozen=True)
class Shares:
    """How much of a group of parameters an update left where it was.

    Attributes:
        parameters: Parameters of the group.
        strict: Share with |delta| < threshold, by threshold (written with `%g`; "0": equal).
        inclusive: Share with |delta| <= threshold.
        relative: Share with |delta| <= 1e-3 max(|before|, |after|).
    """

    parameters: int
    strict: Mapping[str, float]
    inclusive: Mapping[str, float]
    relative: float


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
    """

    total: Shares
    by_layer: Mapping[str, Shares]
    by_matrix: Mapping[str, Shares]
    delta_l2: float
    relative_l1: float
    dtypes: tuple[str, str]
    left_out: tuple[str, ...]


@final
class Checkpoint:
    """The tensors of a safetensors file, or of a model folder with one or several of them.

    Raises:
        CheckpointError: There is none, or a file is unreadable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stack = contextlib.ExitStack()
        self._files: dict[str, Any] = {}
        for file in _files_of(path):
            try:
                handle = self._stack.enter_context(safe_open(file, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise CheckpointError(
                    f"{file} cannot be read ({error}). Fetch or save the checkpoint again"
                ) from None
            self._files |= dict.fromkeys(handle.keys(), handle)
        self.ties_head = _ties_head(path)

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors, in order."""
        return tuple(sorted(self._files))

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return tuple(self._files[name].get_slice(name).get_shape())

    def blocks(self, name: str) -> Iterator[Tensor]:
        """A tensor in blocks of rows, at most `BLOCK` elements or one row each."""
        shape = self.shape(name)
        if len(shape) == 0:
            yield self._files[name].get_tensor(name).reshape(1)
            return
        row = max(1, torch.Size(shape[1:]).numel())
        step = max(1, BLOCK // row)
        part = self._files[name].get_slice(name)
        for start in range(0, shape[0], step):
            yield part[start : start + step]


def checkpoint_sparsity(
    before: Path, after: Path, *, thresholds: Sequence[float], round_before: bool = False
) -> CheckpointSparsity:
    """Compare two checkpoints of one architecture; definitions as in `update_sparsity`.

    A head that its config ties to the embedding counts once, whether it was saved or not.

    Args:
        before: Model folder or safetensors file.
        after: The same architecture, trained.
        thresholds: At which shares are taken; 0 means exactly equal.
        round_before: Round `before` to the dtype of `after` first: a run in that precision starts
            from there, and otherwise the rounding itself would count as movement.

    Raises:
        CheckpointError: A checkpoint is missing or unreadable, or the names or shapes of the
            tensors differ; names the tensor.
        ValueError: A negative threshold, or weights that are not finite.
    """
    if not thresholds or min(thresholds) < 0:
        raise ValueError("thresholds must be >= 0, and there must be at least one")
    with Checkpoint(before) as old, Checkpoint(after) as new:
        left_out = _tied(old, new)
        names = _common_names(old, new, left_out)
        dtypes = (_Votes(), _Votes())
        taus = torch.tensor(list(thresholds), dtype=torch.float64)
        censuses: dict[str, Census] = {}
        for name in names:
            pairs = zip(old.blocks(name), new.blocks(name), strict=True)
            censuses[name] = _of_pairs(name, pairs, taus, dtypes, round_before=round_before)
    labels = [f"{threshold:g}" for threshold in thresholds]
    total = _sum(list(censuses.values()))
    return CheckpointSparsity(
        total=_shares(total, labels),
        by_layer=_grouped(censuses, layer_of, labels),
        by_matrix=_grouped(censuses, matrix_of, labels),
        delta_l2=total.square**0.5,
        relative_l1=total.absolute / total.absolute_before if total.absolute_before else 0.0,
        dtypes=(dtypes[0].winner, dtypes[1].winner),
        left_out=left_out,
    )


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
) -> Census:
    parts: list[Census] = []
    for before, after in pairs:
        dtypes[0].add(before)
        dtypes[1].add(after)
        start = before.to(after.dtype) if round_before else before
        parts.append(census_of(name, start, after, taus))
    return _sum(parts)


def _sum(parts: Sequence[Census]) -> Census:
    first, *rest = parts
    for part in rest:
        first += part
    return first


def _shares(census: Census, labels: Sequence[str]) -> Shares:
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
    )


def _grouped(
    censuses: Mapping[str, Census], group_of: Callable[[str], str], labels: Sequence[str]
) -> dict[str, Shares]:
    groups: dict[str, list[Census]] = {}
    for name, census in censuses.items():
        groups.setdefault(group_of(name), []).append(census)
    return {group: _shares(_sum(parts), labels) for group, parts in sorted(groups.items(), key=_by)}


def _by(item: tuple[str, object]) -> tuple[int, str]:
    """Layers in the order of their numbers, then the named groups."""
    name = item[0]
    return (int(name), "") if name.isdigit() else (1 << 30, name)


def _tied(old: Checkpoint, new: Checkpoint) -> tuple[str, ...]:
    """The head, where both models tie it to the embedding."""
    if not (old.ties_head and new.ties_head):
        return ()
    there = {name for side in (old, new) for name in side.names}
    embedded = any(name.endswith(_EMBEDDING) for name in there)
    return (_HEAD,) if embedded and _HEAD in there else ()


def _common_names(old: Checkpoint, new: Checkpoint, left_out: Sequence[str]) -> list[str]:
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


def _files_of(path: Path) -> list[Path]:
    if path.is_file() and path.suffix == ".safetensors":
        return [path]
    if not path.is_dir():
        raise CheckpointError(
            f"{path} is no checkpoint. Name a model folder with safetensors files, or such a file"
        )
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise CheckpointError(
                f"{path} holds no safetensors file. Save the model with save_pretrained"
            )
        return files
    names = set(_json(index).get("weight_map", {}).values())
    missing = sorted(name for name in names if not (path / name).is_file())
    if missing or not names:
        raise CheckpointError(
            f"{index} names {', '.join(missing) or 'no file'}, which is not there. Fetch the "
            "checkpoint again"
        )
    return sorted(path / name for name in names)


def _ties_head(path: Path) -> bool:
    config = (path if path.is_dir() else path.parent) / "config.json"
    return config.is_file() and bool(_json(config).get("tie_word_embeddings", False))


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}). Fetch it again") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is no JSON object. Fetch it again")
    return found
