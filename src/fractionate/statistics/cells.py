"""Contrasts of cells without a pooled variance: simple effects, differences of them, Welch, HC3.

Cells of a collapse-prone arm vary a hundred times more than the others, so a pooled error would
flatter them and punish the rest.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fractionate.statistics._anova_design import build_design
from fractionate.statistics._checks import (
    FloatArray,
    Label,
    open_unit,
    rounding_floor,
    vector,
)
from fractionate.statistics._distributions import t_critical, t_two_sided


@dataclass(frozen=True)
class Cell:
    """The runs of one cell; values in the unit of the outcome."""

    levels: dict[str, Label]
    """Level of each factor."""
    n: int
    """Runs in the cell."""
    mean: float
    """Their mean."""
    sd: float | None
    """Their sample standard deviation; None with one run."""


@dataclass(frozen=True)
class Contrast:
    """A difference with its own standard error and t law, in the unit of the outcome."""

    difference: float
    """The estimate."""
    se: float | None
    """Standard error from the cells involved only; None where a cell has one run."""
    df: float | None
    """Welch-Satterthwaite degrees of freedom; None without variance."""
    t: float | None
    """difference / se."""
    p: float | None
    """Two-sided p-value."""
    low: float | None
    """Lower end of the interval."""
    high: float | None
    """Upper end of the interval."""
    reason: str | None
    """Why values are None, or None."""


@dataclass(frozen=True)
class SimpleEffect:
    """The effect of one factor at fixed levels of the others."""

    at: dict[str, Label]
    """Levels of the other factors."""
    contrast: Contrast
    """First named level minus second."""


@dataclass(frozen=True)
class RobustCoefficient:
    """A regression coefficient with its HC3 standard error, in the unit of outcome over column."""

    name: str
    """Name of the column, or "constant"."""
    estimate: float
    """Least-squares estimate."""
    se: float
    """HC3 standard error."""
    t: float | None
    """estimate / se; None at zero se."""
    p: float | None
    """Two-sided p-value with n - p degrees of freedom; None at zero se."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""


def _cell_rows(
    outcome: ArrayLike, factors: Mapping[str, Iterable[Any]]
) -> tuple[tuple[str, ...], dict[tuple[Label, ...], FloatArray]]:
    """Names of the factors, and the outcomes [runs] of every observed cell."""
    design = build_design(outcome, factors, blocks=None, sum_of_squares=2, levels=None, order=None)
    cells = {cell: design.outcome[rows] for cell, rows in design.cells().items()}
    return tuple(design.factors), cells


def cell_summary(outcome: ArrayLike, factors: Mapping[str, Iterable[Any]]) -> tuple[Cell, ...]:
    """n, mean and standard deviation of every observed cell, in order of first appearance.

    Args:
        outcome: [n] one value per run.
        factors: labels [n] per factor.

    Raises:
        ValueError: NaN, unequal lengths or a single-level factor.
    """
    names, cells = _cell_rows(outcome, factors)
    return tuple(
        Cell(
            levels=dict(zip(names, cell, strict=True)),
            n=values.size,
            mean=float(values.mean()),
            sd=float(values.std(ddof=1)) if values.size > 1 else None,
        )
        for cell, values in cells.items()
    )


def _weighted(samples: list[FloatArray], weights: list[float], confidence: float) -> Contrast:
    """Sum w_i mean_i with se sqrt(sum w_i^2 s_i^2 / n_i) and Satterthwaite's df."""
    open_unit(confidence, "confidence")
    difference = float(sum(w * s.mean() for w, s in zip(weights, samples, strict=True)))
    if any(s.size < 2 for s in samples):
        reason = "a cell has one run: no variance within it"
        return Contrast(difference, None, None, None, None, None, None, reason)
    variances, spread = [], []
    for weight, sample in zip(weights, samples, strict=True):
        centred = sample - sample.mean()
        ss = float(centred @ centred)
        ss = ss if ss > rounding_floor(centred, float(np.abs(sample).max())) else 0.0
        variances.append(weight**2 * ss / (sample.size - 1) / sample.size)
        spread.append(sample.size - 1)
    total = sum(variances)
    if total == 0:
        reason = "zero variance in every cell: no test"
        return Contrast(difference, 0.0, None, None, None, difference, difference, reason)
    df = total**2 / sum(v**2 / d for v, d in zip(variances, spread, strict=True))
    se = float(np.sqrt(total))
    half = t_critical(df, confidence) * se
    t = difference / se
    p = t_two_sided(t, df)
    return Contrast(difference, se, df, t, p, difference - half, difference + half, None)


def welch_test(first: ArrayLike, second: ArrayLike, *, confidence: float = 0.95) -> Contrast:
    """Welch's t test of two independent samples: first mean minus second.

    Args:
        first: [n] runs of one cell.
        second: [m] runs of the other.
        confidence: coverage of the interval.

    Returns:
        The difference; se, t and p are None, with the reason, for a sample of one run or zero
        variance.

    Raises:
        ValueError: an empty sample or NaN.
    """
    return _weighted([vector(first, "first"), vector(second, "second")], [1.0, -1.0], confidence)


def _two_levels(
    factor: str, pair: tuple[Label, Label], names: tuple[str, ...], cells: Iterable[Any]
) -> int:
    """Position of `factor`, whose levels must hold both of `pair`."""
    if factor not in names:
        raise ValueError(f"no factor {factor!r}; factors: {list(names)}")
    position = names.index(factor)
    seen = {cell[position] for cell in cells}
    if pair[0] == pair[1] or not set(pair) <= seen:
        raise ValueError(
            f"contrast {pair!r} needs two different levels of {factor!r}, "
            f"which has {sorted(seen, key=repr)!r}"
        )
    return position


def simple_effects(
    outcome: ArrayLike,
    factors: Mapping[str, Iterable[Any]],
    *,
    factor: str,
    contrast: tuple[Label, Label],
    confidence: float = 0.95,
) -> tuple[SimpleEffect, ...]:
    """Effect of one factor at every combination of the others, each with its own variance.

    Args:
        outcome: [n] one value per run.
        factors: labels [n] per factor.
        factor: the factor whose effect is wanted.
        contrast: (first, second) levels; the effect is mean(first) - mean(second).
        confidence: coverage of the Welch intervals.

    Raises:
        ValueError: an unknown factor or level, or a combination that lacks one of the two cells.
    """
    names, cells = _cell_rows(outcome, factors)
    position = _two_levels(factor, contrast, names, cells)
    others = dict.fromkeys(cell[:position] + cell[position + 1 :] for cell in cells)
    effects = []
    for other in others:
        pair = [(*other[:position], level, *other[position:]) for level in contrast]
        samples = _samples(cells, pair)
        at = dict(zip([n for n in names if n != factor], other, strict=True))
        effects.append(SimpleEffect(at, _weighted(samples, [1.0, -1.0], confidence)))
    return tuple(effects)


def _samples(
    cells: Mapping[tuple[Label, ...], FloatArray], wanted: list[tuple[Label, ...]]
) -> list[FloatArray]:
    """The outcomes of the wanted cells, all of which must exist."""
    if missing := [cell for cell in wanted if cell not in cells]:
        raise ValueError(f"the contrast needs cells that have no run: {missing!r}")
    return [cells[cell] for cell in wanted]


def difference_of_differences(
    outcome: ArrayLike,
    factors: Mapping[str, Iterable[Any]],
    *,
    first: tuple[str, tuple[Label, Label]],
    second: tuple[str, tuple[Label, Label]],
    confidence: float = 0.95,
) -> Contrast:
    """Interaction of two factors as a difference of simple effects, mean over the other factors.

    With first = (f, (a1, a2)) and second = (g, (b1, b2)):
    [mean(a1, b1) - mean(a2, b1)] - [mean(a1, b2) - mean(a2, b2)], cells weighing alike.

    Args:
        outcome: [n] one value per run.
        factors: labels [n] per factor.
        first: a factor and its two levels.
        second: another factor and its two levels.
        confidence: coverage of the Satterthwaite interval.

    Raises:
        ValueError: an unknown factor or level, the same factor twice, or a missing cell.
    """
    if first[0] == second[0]:
        raise ValueError(f"first and second both name {first[0]!r}; name two factors")
    names, cells = _cell_rows(outcome, factors)
    i = _two_levels(*first, names, cells)
    j = _two_levels(*second, names, cells)
    signs = {
        (a, b): sa * sb
        for a, sa in zip(first[1], (1.0, -1.0), strict=True)
        for b, sb in zip(second[1], (1.0, -1.0), strict=True)
    }
    rest = dict.fromkeys(tuple(v for k, v in enumerate(c) if k not in (i, j)) for c in cells)
    wanted, weights = [], []
    for other in rest:
        for (a, b), sign in signs.items():
            cell = dict(zip([k for k in range(len(names)) if k not in (i, j)], other, strict=True))
            cell.update({i: a, j: b})
            wanted.append(tuple(cell[k] for k in range(len(names))))
            weights.append(sign / len(rest))
    return _weighted(_samples(cells, wanted), weights, confidence)


def hc3_regression(
    outcome: ArrayLike, columns: Mapping[str, ArrayLike], *, confidence: float = 0.95
) -> tuple[RobustCoefficient, ...]:
    """Least squares with HC3 standard errors, for variances that differ between cells.

    Covariance (X'X)^-1 X' diag(e_i^2 / (1 - h_i)^2) X (X'X)^-1 (MacKinnon and White 1985).

    Args:
        outcome: [n].
        columns: numeric columns [n] by name (±1 codes and their products); a constant is added.
        confidence: coverage of the intervals.

    Returns:
        The constant, then one coefficient per column.

    Raises:
        ValueError: lengths that differ, collinear columns, no residual degrees of freedom, or a run
            alone in its cell (leverage 1).
    """
    y = vector(outcome, "outcome", least=2)
    open_unit(confidence, "confidence")
    parts = [np.ones(y.size), *(vector(column, name) for name, column in columns.items())]
    if any(part.size != y.size for part in parts):
        raise ValueError(f"every column needs {y.size} values, one per outcome")
    matrix = np.column_stack(parts)
    n, p = matrix.shape
    if n <= p or np.linalg.matrix_rank(matrix) < p:
        raise ValueError(f"{n} runs and {p} columns ({list(columns)}): too few runs or collinear")
    inverse = np.linalg.pinv(matrix)
    leverage = np.sum(matrix * inverse.T, axis=1)
    if leverage.max() > 1 - 1e-10:
        raise ValueError(f"run {int(leverage.argmax())} is alone in its cell: HC3 is undefined")
    coefficients = inverse @ y
    scaled = (y - matrix @ coefficients) / (1 - leverage)
    covariance = (inverse * scaled**2) @ inverse.T
    flat = float(scaled @ scaled) <= rounding_floor(y, float(np.abs(y).max()))
    critical = t_critical(n - p, confidence)
    result = []
    for i, name in enumerate(["constant", *columns]):
        estimate = float(coefficients[i])
        se = 0.0 if flat else float(np.sqrt(covariance[i, i]))
        t = estimate / se if se > 0 else None
        p_value = None if t is None else t_two_sided(t, n - p)
        half = critical * se
        result.append(
            RobustCoefficient(name, estimate, se, t, p_value, estimate - half, estimate + half)
        )
    return tuple(result)
