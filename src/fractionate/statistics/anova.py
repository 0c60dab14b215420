"""Factorial analysis of variance with shares of variance, balanced or not.

The unit is one training run. Sums of squares come from least squares on sum-to-zero codes; the
formulas are those of methods for the 2^3 design and hold for any number of factors and levels.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fractionate.statistics._anova_design import (
    AnovaDesign,
    Decomposition,
    SumOfSquaresType,
    block_columns,
    build_design,
    decompose,
    term_columns,
)
from fractionate.statistics._checks import Label
from fractionate.statistics._distributions import f_upper


@dataclass(frozen=True)
class AnovaTerm:
    """One main effect, interaction or block. Shares are of variance and have no unit."""

    name: str
    """Factor names joined by ":", e.g. "rollout:kl"."""
    factors: tuple[str, ...]
    """Names of the factors."""
    effect: float | None
    """Only for terms of two-level factors: 2 mean(code Y) with code -1 at the first level and +1
    at the second (products for interactions), unit of the outcome. Unbalanced: twice the
    sum-to-zero coefficient of the full model. None for other terms and blocks."""
    ss: float
    """Sum of squares, squared unit of the outcome."""
    df: int
    """Degrees of freedom."""
    f: float | None
    """F ratio to the residual mean square."""
    p: float | None
    """Upper tail of F."""
    eta2: float | None
    """SS / SST; biased upwards."""
    partial_eta2: float | None
    """SS / (SS + SSE)."""
    omega2: float | None
    """(SS - df MSE) / (SST + MSE); negative values are kept."""
    partial_omega2: float | None
    """(SS - df MSE) / (SS + (N - df) MSE)."""
    reason: str | None
    """Why some of the values are None, or None."""


@dataclass(frozen=True)
class SumOfSquares:
    """A line of the table that is no term: residual or total."""

    ss: float
    """Sum of squares, squared unit of the outcome."""
    df: int
    """Degrees of freedom."""
    ms: float | None
    """ss / df; None at df = 0."""


@dataclass(frozen=True)
class Anova:
    """An analysis of variance. In balanced designs types I, II and III coincide."""

    terms: tuple[AnovaTerm, ...]
    """Main effects, then interactions by rising order."""
    blocks: tuple[AnovaTerm, ...]
    """Block terms, sequential, in the order given and before the factors."""
    residual: SumOfSquares
    """Residual of the full model; `ms` is the MSE."""
    total: SumOfSquares
    """About the mean."""
    mean: float
    """Grand mean of the runs, unit of the outcome."""
    n: int
    """Number of runs."""
    balanced: bool
    """Whether every cell of the crossed factors holds the same number of runs."""
    levels: dict[str, tuple[Label, ...]]
    """Levels per factor in the order of their codes: effects are second minus first."""
    sum_of_squares: SumOfSquaresType
    """Type of the sums of squares."""
    note: str | None
    """What could not be tested and why, or None."""
    design: AnovaDesign = field(repr=False, compare=False)
    """The data, for `anova_intervals` and `worst_case_swing`."""

    def term(self, name: str) -> AnovaTerm:
        """The term of that name; the order of the factors does not matter.

        Raises:
            ValueError: no such term, with the names there are.
        """
        wanted = frozenset(name.split(":"))
        for term in self.terms:
            if frozenset(term.factors) == wanted:
                return term
        raise ValueError(f"no term {name!r}; terms: {[term.name for term in self.terms]}")


def factorial_anova(
    outcome: ArrayLike,
    factors: Mapping[str, Iterable[Any]],
    *,
    blocks: Mapping[str, Iterable[Any]] | None = None,
    sum_of_squares: SumOfSquaresType = 2,
    levels: Mapping[str, Sequence[Label]] | None = None,
    order: int | None = None,
) -> Anova:
    """Analysis of variance of crossed categorical factors.

    Type I adds each term to those before it; type II to all terms that do not contain it; type III
    to all others, with sum-to-zero codes. A large interaction makes the main effects under it
    averages that no cell shows: read `simple_effects` then.

    Args:
        outcome: [n] one value per run. A collapsed run keeps its value.
        factors: labels [n] per factor; the order of the names orders the terms.
        blocks: labels [n] per block (seed, base), additive terms that enter first.
        sum_of_squares: 1, 2 or 3.
        levels: order of the levels of a factor; without it they are sorted. The first is coded -1.
        order: highest order of interaction; None = all.

    Returns:
        The table. Without residual degrees of freedom (one run per cell), with zero residual
        variance or a constant outcome the values that are then undefined are None with a reason.

    Raises:
        ValueError: columns of unequal length, NaN, a factor or block with a single level (named),
            or a term that empty cells or blocks leave without its degrees of freedom (named).
    """
    design = build_design(
        outcome,
        factors,
        blocks=blocks,
        sum_of_squares=sum_of_squares,
        levels=levels,
        order=order,
    )
    parts = decompose(design)
    _check_estimable(design, parts)
    reason = _reason(parts)
    n, y = design.outcome.size, design.outcome
    sizes = {rows.size for rows in design.cells().values()}
    return Anova(
        terms=_terms(design, parts, reason),
        blocks=_block_terms(design, parts, reason),
        residual=_line(parts.residual_ss, parts.residual_df),
        total=_line(parts.total_ss, n - 1),
        mean=float(y.mean()),
        n=n,
        balanced=len(sizes) == 1 and len(design.cells()) == _grid_size(design),
        levels=design.levels,
        sum_of_squares=sum_of_squares,
        note=reason,
        design=design,
    )


def _grid_size(design: AnovaDesign) -> int:
    """Number of cells of the full crossing."""
    return int(np.prod([len(levels) for levels in design.levels.values()]))


def _line(ss: float, df: int) -> SumOfSquares:
    return SumOfSquares(ss, df, ss / df if df > 0 else None)


def _check_estimable(design: AnovaDesign, parts: Decomposition) -> None:
    """Refuse a term that the other terms or empty cells rob of degrees of freedom."""
    for term, df in zip(design.terms(), parts.term_df, strict=True):
        wanted = int(np.prod([len(design.levels[name]) - 1 for name in term]))
        if df < wanted:
            empty = _grid_size(design) - len(design.cells())
            raise ValueError(
                f"term {':'.join(term)!r} has {df} of its {wanted} degrees of freedom: "
                f"{empty} cells are empty, or it is confounded with other terms or blocks; "
                "run the missing cells, lower `order` or drop a block"
            )
    for name, df in zip(design.blocks, parts.block_df, strict=True):
        if df < 1:
            raise ValueError(f"block {name!r} adds nothing to the blocks before it; drop one")


def _reason(parts: Decomposition) -> str | None:
    """Why some values of the table are None."""
    if parts.total_ss == 0:
        return "the outcome is constant: there is no variance to share"
    if parts.residual_df == 0:
        return "no residual degrees of freedom (one run per cell): no error to test against"
    if parts.residual_ss == 0:
        return "zero residual variance (replicates are equal): F is unbounded"
    return None


def _statistics(ss: float, df: int, parts: Decomposition, n: int) -> dict[str, float | None]:
    """F, p and the four shares of one term, None where undefined."""
    sse, df_residual, sst = parts.residual_ss, parts.residual_df, parts.total_ss
    if sst == 0:
        return dict.fromkeys(("f", "p", "eta2", "partial_eta2", "omega2", "partial_omega2"))
    if df_residual == 0:
        undefined = dict.fromkeys(("f", "p", "partial_eta2", "omega2", "partial_omega2"))
        return {**undefined, "eta2": ss / sst}
    mse = sse / df_residual
    f = ss / df / mse if mse > 0 else None
    explained = ss - df * mse
    partial = ss + (n - df) * mse
    return {
        "f": f,
        "p": None if f is None else f_upper(f, df, df_residual),
        "eta2": ss / sst,
        "partial_eta2": ss / (ss + sse) if ss + sse > 0 else None,
        "omega2": explained / (sst + mse),
        "partial_omega2": explained / partial if partial > 0 else None,
    }


def _effects(design: AnovaDesign) -> dict[tuple[str, ...], float]:
    """Twice the coefficient, in the full model, of every term of two-level factors."""
    columns, blocks = term_columns(design), block_columns(design)
    constant = np.ones((design.outcome.size, 1))
    matrix = np.hstack([constant, *columns.values(), *blocks.values()])
    centre = design.outcome.mean()
    coefficients = np.linalg.lstsq(matrix, design.outcome - centre, rcond=None)[0]
    starts = 1 + np.cumsum([0, *(column.shape[1] for column in columns.values())])
    two_level = {name for name, levels in design.levels.items() if len(levels) == 2}
    return {
        term: float(2 * coefficients[start])
        for term, start in zip(columns, starts[:-1], strict=True)
        if set(term) <= two_level
    }


def _terms(design: AnovaDesign, parts: Decomposition, reason: str | None) -> tuple[AnovaTerm, ...]:
    effects = _effects(design)
    rows = zip(design.terms(), parts.term_ss, parts.term_df, strict=True)
    return tuple(
        AnovaTerm(
            name=":".join(term),
            factors=term,
            effect=effects.get(term),
            ss=float(ss),
            df=df,
            reason=reason,
            **_statistics(float(ss), df, parts, design.outcome.size),
        )
        for term, ss, df in rows
    )


def _block_terms(
    design: AnovaDesign, parts: Decomposition, reason: str | None
) -> tuple[AnovaTerm, ...]:
    rows = zip(design.blocks, parts.block_ss, parts.block_df, strict=True)
    return tuple(
        AnovaTerm(
            name=name,
            factors=(name,),
            effect=None,
            ss=float(ss),
            df=df,
            reason=reason,
            **_statistics(float(ss), df, parts, design.outcome.size),
        )
        for name, ss, df in rows
    )
