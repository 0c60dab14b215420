"""Fits of an outcome on a continuous predictor: forgetting on KL to base, accuracy on log2 rate."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fractionate.statistics._checks import FloatArray, open_unit, rounding_floor, vector
from fractionate.statistics._distributions import f_upper, t_critical, t_two_sided


@dataclass(frozen=True)
class PolynomialFit:
    """Least-squares polynomial y = c0 + c1 x + c2 x^2 + ..."""

    coefficients: tuple[float, ...]
    """Constant first; coefficient i has the unit of y over that of x to the power i."""
    r2: float | None
    """1 - SSE / SST, a share; None where y is constant."""
    loo_r2: float | None
    """1 - PRESS / SST with every point predicted from the others, a share that may be negative;
    None where a point determines a coefficient alone, or y is constant."""
    n: int
    """Number of points."""
    df: int
    """Residual degrees of freedom, n minus the coefficients."""
    note: str | None
    """Why a share is None or weak, or None."""


@dataclass(frozen=True)
class Coefficient:
    """One term of a fit with its t test, in the unit of the term."""

    estimate: float
    """Least-squares estimate."""
    se: float
    """Standard error."""
    t: float | None
    """estimate / se; None at zero residual variance."""
    p: float | None
    """Two-sided p-value; None at zero residual variance."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""


@dataclass(frozen=True)
class Trend:
    """Slope and curvature of y in x, both at the mean of x."""

    slope: Coefficient
    """dy/dx at the mean of x, from the quadratic fit."""
    curvature: Coefficient
    """Coefficient of (x - mean)^2, half of the second derivative."""
    linear_slope: Coefficient
    """dy/dx of the straight line."""
    centre: float
    """Mean of x."""
    df: int
    """Residual degrees of freedom of the quadratic fit."""
    confidence: float
    """Coverage of the intervals."""


@dataclass(frozen=True)
class AddedExplanation:
    """Whether further predictors explain anything beyond the first ones (nested F test)."""

    base_r2: float | None
    """R^2 of the base predictors; None where the outcome is constant."""
    full_r2: float | None
    """R^2 of base and extra predictors."""
    base_loo_r2: float | None
    """Leave-one-out R^2 of the base predictors."""
    full_loo_r2: float | None
    """Leave-one-out R^2 of both: below `base_loo_r2` if the extra ones only fit noise."""
    df_extra: int
    """Columns added."""
    df_residual: int
    """Residual degrees of freedom of the full fit."""
    f: float | None
    """F of the increment; None at zero residual variance."""
    p: float | None
    """Its p-value; None at zero residual variance."""
    note: str | None
    """Why a value is None, or None."""


@dataclass(frozen=True)
class _Fit:
    """Least squares with the pieces that tests and leave-one-out need."""

    coefficients: FloatArray
    covariance: FloatArray
    sse: float
    sst: float
    press: float | None
    df: int

    def r2(self) -> float | None:
        return 1 - self.sse / self.sst if self.sst > 0 else None

    def loo_r2(self) -> float | None:
        return 1 - self.press / self.sst if self.sst > 0 and self.press is not None else None


def _fit(columns: FloatArray, y: FloatArray, names: str) -> _Fit:
    """Least squares of y [n] on columns [n, p], which must be independent, p < n."""
    n, p = columns.shape
    if n <= p:
        raise ValueError(f"{n} points cannot test {p} coefficients ({names}); add points")
    # Unit-length columns, so that the rank does not depend on the unit of a predictor.
    scale = np.linalg.norm(columns, axis=0)
    basis, triangle = np.linalg.qr(columns / np.where(scale > 0, scale, 1.0))
    if np.abs(np.diag(triangle)).min() < 1e-10:
        raise ValueError(f"the predictors ({names}) are collinear or take too few distinct values")
    inverse = np.linalg.inv(triangle) / scale[:, None]
    coefficients = inverse @ (basis.T @ y)
    residual = y - basis @ (basis.T @ y)
    floor = rounding_floor(y, float(np.abs(y).max()))
    sse, sst = float(residual @ residual), float(np.sum((y - y.mean()) ** 2))
    sse, sst = (0.0 if sse <= floor else sse), (0.0 if sst <= floor else sst)
    free = 1 - np.sum(basis**2, axis=1)
    press = float(np.sum((residual / free) ** 2)) if free.min() > 1e-10 else None
    return _Fit(coefficients, inverse @ inverse.T * (sse / (n - p)), sse, sst, press, n - p)


def _note(fit: _Fit) -> str | None:
    """What is undefined in a fit."""
    if fit.sst == 0:
        return "the outcome is constant: no share of its variance is defined"
    if fit.press is None:
        return "a point determines a coefficient alone: leave-one-out is undefined"
    if fit.sse == 0:
        return "zero residual variance: no test"
    return None


def _xy(x: ArrayLike, y: ArrayLike) -> tuple[FloatArray, FloatArray]:
    first, second = vector(x, "x"), vector(y, "y")
    if first.size != second.size:
        raise ValueError(f"x has {first.size} points, y has {second.size}")
    return first, second


def polynomial_fit(x: ArrayLike, y: ArrayLike, *, degree: int) -> PolynomialFit:
    """Least-squares polynomial with R^2 and leave-one-out R^2.

    Args:
        x: [n] predictor.
        y: [n] outcome.
        degree: 1 for a line, 2 for a parabola.

    Raises:
        ValueError: degree < 1, n <= degree + 1, or too few distinct x.
    """
    if degree < 1:
        raise ValueError(f"degree must be at least 1, got {degree!r}")
    first, second = _xy(x, y)
    fit = _fit(np.vander(first, degree + 1, increasing=True), second, "powers of x")
    weak = fit.df < 3 * (degree + 1)
    few = f"{first.size} points for {degree + 1} coefficients prove little" if weak else None
    return PolynomialFit(
        coefficients=tuple(float(c) for c in fit.coefficients),
        r2=fit.r2(),
        loo_r2=fit.loo_r2(),
        n=first.size,
        df=fit.df,
        note="; ".join(part for part in (_note(fit), few) if part) or None,
    )


def quadratic_fit(kl: ArrayLike, forgetting: ArrayLike) -> PolynomialFit:
    """Forgetting = a + b K + c K^2, the law of RL's Razor (arXiv 2509.04259).

    Args:
        kl: [n] KL to the base model on new-task prompts, nats per token.
        forgetting: [n] base minus final, points.

    Raises:
        ValueError: as `polynomial_fit`; four points are the fewest.
    """
    return polynomial_fit(kl, forgetting, degree=2)


def _coefficient(fit: _Fit, index: int, confidence: float) -> Coefficient:
    """Coefficient `index` of a fit with its t test."""
    estimate = float(fit.coefficients[index])
    se = float(np.sqrt(fit.covariance[index, index]))
    half = t_critical(fit.df, confidence) * se
    t = estimate / se if se > 0 else None
    p = None if t is None else t_two_sided(t, fit.df)
    return Coefficient(estimate, se, t, p, estimate - half, estimate + half)


def slope_and_curvature(x: ArrayLike, y: ArrayLike, *, confidence: float = 0.95) -> Trend:
    """Slope and curvature of a continuous factor (a rate as log2, lambda) with t tests.

    Fits y on (x - mean) and (x - mean)^2, so that the slope is that at the mean of x.

    Args:
        x: [n] level of the factor, three or more distinct values.
        y: [n] outcome.
        confidence: coverage of the intervals.

    Raises:
        ValueError: fewer than four points or three distinct x.
    """
    first, second = _xy(x, y)
    open_unit(confidence, "confidence")
    centre = float(first.mean())
    powers = np.vander(first - centre, 3, increasing=True)
    curved = _fit(powers, second, "x and its square")
    line = _fit(powers[:, :2], second, "x")
    return Trend(
        slope=_coefficient(curved, 1, confidence),
        curvature=_coefficient(curved, 2, confidence),
        linear_slope=_coefficient(line, 1, confidence),
        centre=centre,
        df=curved.df,
        confidence=confidence,
    )


def added_explanation(
    outcome: ArrayLike, base: Mapping[str, ArrayLike], extra: Mapping[str, ArrayLike]
) -> AddedExplanation:
    """Whether `extra` predictors (rollout, rate) add anything once `base` (KL, its square) is in.

    Args:
        outcome: [n].
        base: numeric columns [n] by name; a constant is added.
        extra: further numeric columns [n], factors as ±1 codes.

    Raises:
        ValueError: no extra column, a name in both, a length that differs, collinear columns or
            n <= the number of coefficients.
    """
    y = vector(outcome, "outcome")
    if not extra or set(base) & set(extra):
        raise ValueError(f"extra must name new columns, got {list(extra)} beside {list(base)}")
    columns = [np.ones(y.size)]
    for name, column in {**base, **extra}.items():
        columns.append(vector(column, name))
        if columns[-1].size != y.size:
            raise ValueError(f"column {name!r} has {columns[-1].size} values for {y.size} outcomes")
    matrix = np.column_stack(columns)
    small = _fit(matrix[:, : 1 + len(base)], y, ", ".join(base) or "a constant")
    full = _fit(matrix, y, ", ".join([*base, *extra]))
    f = (small.sse - full.sse) / len(extra) / (full.sse / full.df) if full.sse > 0 else None
    return AddedExplanation(
        base_r2=small.r2(),
        full_r2=full.r2(),
        base_loo_r2=small.loo_r2(),
        full_loo_r2=full.loo_r2(),
        df_extra=len(extra),
        df_residual=full.df,
        f=f,
        p=None if f is None else f_upper(f, len(extra), full.df),
        note=_note(full),
    )
