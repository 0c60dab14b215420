"""The verb that compares checkpoints: what an update left where it was."""

import dataclasses
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fractionate.cli.errors import BadInputError, from_the_user
from fractionate.cli.options import AsJson
from fractionate.cli.printing import emit_json, note, say, table
from fractionate.cli.sources import located

if TYPE_CHECKING:
    from fractionate.metrics.checkpoints import CheckpointSparsity, Shares
    from fractionate.metrics.pairs import Pair
    from fractionate.metrics.sparsity import MaskOverlap

THRESHOLDS = (0.0, 1e-8, 1e-6, 1e-5)
MASK_THRESHOLD = 1e-6

Ranks = Annotated[bool, typer.Option("--ranks", help="Also the ranks of the update's matrices.")]
Merge = Annotated[
    str | None,
    typer.Option("--merge-dtype", help="In which LoRA adapters are merged; default: BASE's."),
]


@dataclasses.dataclass(frozen=True)
class _Request:
    """How checkpoints are compared."""

    thresholds: tuple[float, ...]
    rounded: bool
    ranks: bool
    merge: str | None

    def compare(self, base: str, tuned: str) -> "CheckpointSparsity":
        from fractionate.metrics.checkpoints import checkpoint_sparsity

        with from_the_user():
            return checkpoint_sparsity(
                Path(located(base)),
                Path(located(tuned)),
                thresholds=self.thresholds,
                round_before=self.rounded,
                ranks=self.ranks,
                merge_dtype=_dtype(self.merge),
            )

    def overlap(self, base: str, first: str, second: str) -> "MaskOverlap":
        from fractionate.metrics.checkpoints import checkpoint_overlap

        with from_the_user():
            return checkpoint_overlap(
                *(Path(located(name)) for name in (base, first, second)),
                threshold=MASK_THRESHOLD,
                merge_dtype=_dtype(self.merge),
            )


def sparsity(  # noqa: PLR0913 - one argument per option
    base: Annotated[
        str | None, typer.Argument(help="Model folder or .safetensors file, untrained.")
    ] = None,
    tuned: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TUNED]...", help="The same, trained; or LoRA adapters on it."),
    ] = None,
    *,
    pairs: Annotated[
        Path | None,
        typer.Option("--table", help="A CSV or YAML table of pairs: stage, base, tuned, lr, note."),
    ] = None,
    thresholds: Annotated[
        list[float] | None,
        typer.Option("--threshold", help="Repeatable; default 0 1e-8 1e-6 1e-5."),
    ] = None,
    rounded: Annotated[
        bool, typer.Option("--round", help="Round BASE to the dtype of TUNED first.")
    ] = False,
    ranks: Ranks = False,
    merge_dtype: Merge = None,
    as_json: AsJson = False,
) -> None:
    """Which share of the weights training left where they were, by layer and matrix type."""
    request = _Request(tuple(thresholds or THRESHOLDS), rounded, ranks, merge_dtype)
    if pairs is not None:
        if base is not None:
            raise BadInputError("name checkpoints, or a --table of pairs, not both")
        _compare_table(request, pairs, as_json=as_json)
    elif base is None or not tuned:
        raise BadInputError("name a BASE and at least one TUNED checkpoint, or a --table of pairs")
    else:
        _compare(request, base, tuned, as_json=as_json)


def _dtype(name: str | None) -> Any:
    from fractionate.models.load import DTYPES

    if name is not None and name not in DTYPES:
        raise BadInputError(f"--merge-dtype '{name}' is none of {', '.join(DTYPES)}")
    return None if name is None else DTYPES[name]


def _compare(request: _Request, base: str, tuned: list[str], *, as_json: bool) -> None:
    found = {model: request.compare(base, model) for model in tuned}
    overlaps = {
        (one, other): request.overlap(base, one, other)
        for one, other in itertools.combinations(found, 2)
        if all(found[side].delta_l2 > 0 for side in (one, other))
    }
    if as_json:
        emit_json(
            {
                "base": base,
                "base_rounded": request.rounded,
                "tuned": {model: dataclasses.asdict(record) for model, record in found.items()},
                "overlaps": [
                    {"first": one, "second": other, **dataclasses.asdict(overlap)}
                    for (one, other), overlap in overlaps.items()
                ],
            }
        )
        return
    for model, record in found.items():
        say(_text(base, model, record))
        if record.dtypes[0] != record.dtypes[1] and not request.rounded:
            note(
                f"note: {base} is stored as {record.dtypes[0]}, {model} as {record.dtypes[1]}: the "
                "rounding between them counts as movement. --round leaves it out"
            )
    for (one, other), overlap in overlaps.items():
        say(
            f"{one} and {other} moved (|delta| >= {MASK_THRESHOLD:g}) the same parameters:\n"
            f"of the first's, {_percent(overlap.overlap)} also in the second "
            f"({_percent(overlap.chance)} by chance); Jaccard {overlap.jaccard:.4f} "
            f"({overlap.chance_jaccard:.4f} by chance)\n"
        )


def _compare_table(request: _Request, path: Path, *, as_json: bool) -> None:
    """Every pair whose weights are on this machine; the others are listed as missing."""
    from fractionate.metrics.pairs import locate, read_pairs

    found: list[tuple[Pair, CheckpointSparsity | None, tuple[str, ...]]] = []
    for pair in read_pairs(path):
        places = {name: locate(name) for name in (pair.base, pair.tuned)}
        missing = tuple(name for name, place in places.items() if place is None)
        record = None
        if not missing:
            record = request.compare(str(places[pair.base]), str(places[pair.tuned]))
        found.append((pair, record, missing))
    if as_json:
        emit_json(
            [
                {
                    **dataclasses.asdict(pair),
                    "largest_movable": pair.largest_movable,
                    "missing": list(missing),
                    "sparsity": None if record is None else dataclasses.asdict(record),
                }
                for pair, record, missing in found
            ]
        )
        return
    labels = [f"{threshold:g}" for threshold in request.thresholds]
    heads = ("pair", "stage", "rate", "w_max", *(_head(label) for label in labels), "bf16 1e-05")
    rows = [_row(pair, record, labels) for pair, record, _ in found]
    say(table(heads, rows))
    absent = sorted({name for _, _, missing in found for name in missing})
    if absent:
        say(f"\nnot on this machine, hence not compared: {', '.join(absent)}")
    for pair, _, _ in found:
        if pair.note:
            say(f"{pair.tuned}: {pair.note}")


def _row(pair: "Pair", record: "CheckpointSparsity | None", labels: list[str]) -> tuple[str, ...]:
    rate = "undisclosed" if pair.lr is None else f"{pair.lr:g}"
    largest = "" if pair.largest_movable is None else f"{pair.largest_movable:g}"
    shares = ["missing", *[""] * len(labels)]
    if record is not None:
        in_bfloat16 = record.total.bfloat16.get("1e-05")
        shares = [_percent(record.total.strict[label]) for label in labels]
        shares.append("" if in_bfloat16 is None else _percent(in_bfloat16))
    return (f"{pair.base} -> {pair.tuned}", pair.stage, rate, largest, *shares)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _head(label: str) -> str:
    return "equal" if label == "0" else f"< {label}"


def _text(base: str, model: str, record: "CheckpointSparsity") -> str:
    labels = list(record.total.strict)
    inclusive = [label for label in labels if label != "0"]  # at 0 both mean exactly equal
    heads = (
        "",
        "parameters",
        *(_head(label) for label in labels),
        *(f"<= {label}" for label in inclusive),
    )
    groups: dict[str, Shares] = {"all": record.total}
    groups |= {f"layer {name}": shares for name, shares in record.by_layer.items()}
    groups |= {f"matrix {name}": shares for name, shares in record.by_matrix.items()}
    rows = [
        (
            name,
            str(shares.parameters),
            *(_percent(share) for share in shares.strict.values()),
            *(_percent(shares.inclusive[label]) for label in inclusive),
        )
        for name, shares in groups.items()
    ]
    rounded = ", ".join(
        f"{'=' if label == '0' else '<='} {label} {_percent(share)}"
        for label, share in record.total.bfloat16.items()
    )
    left_out = f"not counted, tied: {', '.join(record.left_out)}\n" if record.left_out else ""
    return (
        f"{base} -> {model}: unmoved share of the weights, by |delta|\n"
        f"{table(heads, rows)}\n"
        f"both rounded to bfloat16 and subtracted there: {rounded}\n"
        f"moved at most 1e-3 of its size: {_percent(record.total.relative)}; "
        f"||delta|| {record.delta_l2:.6g}; sum |delta| / sum |w| {record.relative_l1:.6g}; "
        f"stored as {record.dtypes[0]} and {record.dtypes[1]}\n"
        f"{_ranks(record)}{left_out}"
        "Low precision alone keeps weights unmoved: compare runs of one learning rate and dtype.\n"
    )


def _ranks(record: "CheckpointSparsity") -> str:
    if record.ranks is None:
        return ""
    rows = [
        (
            name,
            str(ranks.matrices),
            f"{ranks.share:.4f}",
            f"{ranks.stable:.2f}",
            f"{ranks.entropy:.2f}",
        )
        for name, ranks in record.ranks.items()
    ]
    heads = ("ranks of the update", "matrices", "rank / side", "stable", "entropy")
    return table(heads, rows) + "\n"
