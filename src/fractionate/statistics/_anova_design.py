"""Coding of crossed factors and the sums of squares of nested least-squares models."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from fractionate.statistics._checks import (
    FloatArray,
    IntArray,
    Label,
    factor_columns,
    level_order,
    rounding_floor,
    vector,
)

SumOfSquaresType = Literal[1, 2, 3]


@dataclass(frozen=True)
class AnovaDesign:
    """The data and the model of an analysis of variance."""

    outcome: FloatArray
    """[n] one value per run."""
    factors: dict[str, tuple[Label, ...]]
    """[n] labels per crossed factor."""
    blocks: dict[str, tuple[Label, ...]]
    """[n] labels per additive block term."""
    levels: dict[str, tuple[Label, ...]]
    """Levels per factor, in the order of their codes."""
    sum_of_squares: SumOfSquaresType
    """Type of the sums of squares."""
    order: int
    """Highest order of interaction in the model."""

    def terms(self) -> tuple[tuple[str, ...], ...]:
        """Main effects, then interactions by rising order, as tuples of factor names."""
        names = tuple(self.factors)
        sizes = range(1, self.order + 1)
        return tuple(term for size in sizes for term in itertools.combinations(names, size))

    def cells(self) -> dict[tuple[Label, ...], IntArray]:
        """Indices [m] of the runs in every observed cell, by level of each factor."""
        return group_rows(tuple(self.factors.values()))


@dataclass(frozen=True)
class Decomposition:
    """Sums of squares and degrees of freedom of every term; squared unit of the outcome."""

    block_ss: FloatArray
    """[blocks], sequential."""
    block_df: tuple[int, ...]
    """[blocks]."""
    term_ss: FloatArray
    """[terms]."""
    term_df: tuple[int, ...]
    """[terms]."""
    residual_ss: float
    """Residual of the full model, 0 where only rounding is left."""
    residual_df: int
    """n minus the rank of the full model."""
    total_ss: float
    """About the mean."""


def group_rows(columns: Sequence[Sequence[Label]]) -> dict[tuple[Label, ...], IntArray]:
    """Row indices by the tuple of labels of several columns, in order of first appearance."""
    groups: dict[tuple[Label, ...], list[int]] = {}
    for row, key in enumerate(zip(*columns, strict=True)):
        groups.setdefault(key, []).append(row)
    return {key: np.array(rows) for key, rows in groups.items()}


def build_design(
    outcome: ArrayLike,
    factors: Mapping[str, Iterable[Any]],
    *,
    blocks: Mapping[str, Iterable[Any]] | None,
    sum_of_squares: SumOfSquaresType,
    levels: Mapping[str, Sequence[Label]] | None,
    order: int | None,
) -> AnovaDesign:
    """Check the data of an analysis of variance; arguments as `anova.factorial_anova`.

    Raises:
        ValueError: as `anova.factorial_anova`, but for terms that cannot be estimated.
    """
    y = vector(outcome, "outcome", least=2)
    columns = factor_columns(factors, y.size)
    block_columns = factor_columns(blocks, y.size, "blocks") if blocks else {}
    if shared := set(columns) & set(block_columns):
        raise ValueError(f"{sorted(shared)} are named as factors and as blocks; choose one")
    if unknown := set(levels or {}) - set(columns):
        raise ValueError(f"levels name {sorted(unknown)}, which are not factors")
    if sum_of_squares not in (1, 2, 3):
        raise ValueError(f"sum_of_squares must be 1, 2 or 3, got {sum_of_squares!r}")
    highest = len(columns) if order is None else order
    if not 1 <= highest <= len(columns):
        raise ValueError(f"order must lie in [1, {len(columns)}], got {order!r}")
    for name, column in block_columns.items():
        level_order(column, name, {name: tuple(dict.fromkeys(column))})
    ordered = {name: level_order(column, name, levels) for name, column in columns.items()}
    return AnovaDesign(y, columns, block_columns, ordered, sum_of_squares, highest)


def _codes(column: Sequence[Label], levels: Sequence[Label]) -> FloatArray:
    """Sum-to-zero codes [n, levels - 1]: the first level is -1 throughout, so two give ±1."""
    table = np.vstack([-np.ones(len(levels) - 1), np.eye(len(levels) - 1)])
    index = {level: i for i, level in enumerate(levels)}
    return table[[index[label] for label in column]]


def term_columns(design: AnovaDesign) -> dict[tuple[str, ...], FloatArray]:
    """Columns [n, df] of every term: products of the codes of its factors."""
    n = design.outcome.size
    mains = {name: _codes(col, design.levels[name]) for name, col in design.factors.items()}
    columns = {}
    for term in design.terms():
        product = np.ones((n, 1))
        for name in term:
            product = (product[:, :, None] * mains[name][:, None, :]).reshape(n, -1)
        columns[term] = product
    return columns


def block_columns(design: AnovaDesign) -> dict[tuple[str, ...], FloatArray]:
    """Columns [n, labels - 1] of every block, under a key that no term of factors has."""
    return {
        ("block:", name): _codes(column, tuple(dict.fromkeys(column)))
        for name, column in design.blocks.items()
    }


class _Models:
    """Explained sums of squares of models over one design, each computed once."""

    def __init__(self, design: AnovaDesign) -> None:
        self.y = design.outcome - design.outcome.mean()
        self.columns: dict[tuple[str, ...], FloatArray] = dict(term_columns(design))
        self.columns.update(block_columns(design))
        self._known: dict[frozenset[tuple[str, ...]], tuple[float, int]] = {}

    def explained(self, keys: Iterable[tuple[str, ...]]) -> tuple[float, int]:
        """Sum of squares about the mean and rank of the model with a constant and `keys`."""
        chosen = frozenset(keys)
        if chosen not in self._known:
            parts = [self.columns[key] for key in self.columns if key in chosen]
            matrix = np.hstack([np.ones((self.y.size, 1)), *parts])
            left, singular, _ = np.linalg.svd(matrix, full_matrices=False)
            rank = int(np.sum(singular > singular[0] * 1e-10))
            projected = left[:, :rank].T @ self.y
            self._known[chosen] = float(projected @ projected), rank
        return self._known[chosen]


def _smaller_model(
    design: AnovaDesign, term: tuple[str, ...], blocks: list[tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """The model that `term` is added to, by the type of the sums of squares."""
    terms = design.terms()
    if design.sum_of_squares == 1:
        return [*blocks, *terms[: terms.index(term)]]
    if design.sum_of_squares == 2:
        return [*blocks, *(other for other in terms if not set(term) <= set(other))]
    return [*blocks, *(other for other in terms if other != term)]


def decompose(design: AnovaDesign) -> Decomposition:
    """Sums of squares of every term by comparing nested models; degrees of freedom are ranks.

    Blocks come first and one after the other, whatever the type: a base that hosts several seeds
    stays a term beside them.
    """
    models = _Models(design)
    blocks: list[tuple[str, ...]] = [("block:", name) for name in design.blocks]
    floor = rounding_floor(models.y, float(np.abs(design.outcome).max()))

    def step(small: list[tuple[str, ...]], key: tuple[str, ...]) -> tuple[float, int]:
        without, with_key = models.explained(small), models.explained([*small, key])
        gained = with_key[0] - without[0]
        return (gained if gained > floor else 0.0), with_key[1] - without[1]

    block_steps = [step(blocks[:i], key) for i, key in enumerate(blocks)]
    term_steps = [step(_smaller_model(design, term, blocks), term) for term in design.terms()]
    explained, rank = models.explained([*blocks, *design.terms()])
    total = float(models.y @ models.y)
    residual = total - explained
    df = design.outcome.size - rank
    return Decomposition(
        block_ss=np.array([ss for ss, _ in block_steps]),
        block_df=tuple(df for _, df in block_steps),
        term_ss=np.array([ss for ss, _ in term_steps]),
        term_df=tuple(df for _, df in term_steps),
        residual_ss=residual if residual > floor and df > 0 else 0.0,
        residual_df=df,
        total_ss=total if total > floor else 0.0,
    )


def omega_squared(d: Decomposition) -> FloatArray:
    """[terms] (SS - df MSE) / (SST + MSE), negative where the term explains less than noise would.

    Call with residual_df > 0 and total_ss > 0.
    """
    mse = d.residual_ss / d.residual_df
    return (d.term_ss - np.array(d.term_df) * mse) / (d.total_ss + mse)
