"""Equivalence: "no effect" shown by two one-sided tests, not inferred from p > .05."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fractionate.statistics._checks import open_unit, positive, rounding_floor, vector
from fractionate.statistics._distributions import t_critical, t_upper


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided t tests (TOST, Schuirmann 1987); values in the unit of the differences."""

    estimate: float
    """The difference tested, mean of the paired differences."""
    se: float
    """Its standard error."""
    df: float
    """Degrees of freedom of t."""
    margin: float
    """Half-width of the band (-margin, margin), chosen before the data were seen."""
    p_lower: float | None
    """p of "difference <= -margin"; None at zero standard error."""
    p_upper: float | None
    """p of "difference >= margin"; None at zero standard error."""
    p: float | None
    """The larger of the two; None at zero standard error."""
    low: float
    """Lower end of the 1 - 2 alpha interval."""
    high: float
    """Upper end of the 1 - 2 alpha interval."""
    alpha: float
    """Level of each one-sided test."""
    equivalent: bool
    """Whether [low, high] lies inside (-margin, margin); the same as p < alpha. Where p is None,
    whether the mean does: no evidence of equivalence."""
    note: str | None
    """Why p is None, or None."""


def equivalence_test(
    estimate: float, *, se: float, df: float, margin: float, alpha: float = 0.05
) -> Equivalence:
    """TOST of any estimate with a t law: a Welch difference, a contrast of cells.

    p = max(P(T_df > (d + M) / se), P(T_df < (d - M) / se)).

    At se = 0 there is no test: `equivalent` then says only where the mean lies, and `note` says so.
    A few equal differences do not show that there is no noise, so a study judges nothing by them.

    Args:
        estimate: the difference d.
        se: its standard error, >= 0.
        df: degrees of freedom, > 0.
        margin: M > 0, same unit.
        alpha: level, below 0.5.

    Raises:
        ValueError: a margin or df that is not positive, a negative or non-finite se, or an alpha
            outside (0, 0.5).
    """
    positive(margin, "margin")
    positive(df, "df")
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha must lie strictly between 0 and 0.5, got {alpha!r}")
    if not (np.isfinite(estimate) and np.isfinite(se) and se >= 0):
        raise ValueError(f"estimate and se >= 0 must be finite, got {estimate!r} and {se!r}")
    half = t_critical(df, open_unit(1 - 2 * alpha, "1 - 2 alpha")) * se
    low, high = estimate - half, estimate + half
    p_lower = p_upper = p = note = None
    if se > 0:
        p_lower = t_upper((estimate + margin) / se, df)
        p_upper = t_upper((margin - estimate) / se, df)
        p = max(p_lower, p_upper)
    else:
        note = "no spread is seen: all differences are equal; no p-value, judged by the mean alone"
    return Equivalence(
        estimate,
        se,
        df,
        margin,
        p_lower,
        p_upper,
        p,
        low,
        high,
        alpha,
        bool(-margin < low and high < margin),
        note,
    )


def tost(differences: ArrayLike, *, margin: float, alpha: float = 0.05) -> Equivalence:
    """TOST of paired differences, with n - 1 degrees of freedom.

    Args:
        differences: [n] one difference per block, n >= 2.
        margin: half-width of the band of equivalence, same unit.
        alpha: level of each one-sided test.

    Raises:
        ValueError: fewer than two differences, NaN, or as `equivalence_test`.
    """
    d = vector(differences, "differences", least=2)
    centred = d - d.mean()
    flat = float(centred @ centred) <= rounding_floor(centred, float(np.abs(d).max()))
    se = 0.0 if flat else float(d.std(ddof=1) / np.sqrt(d.size))
    return equivalence_test(float(d.mean()), se=se, df=d.size - 1, margin=margin, alpha=alpha)
