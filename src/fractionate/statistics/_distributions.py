"""t and F tails from `scipy.special`: `scipy.stats` would double the time of the import."""

import numpy as np
from scipy import special


def t_critical(df: float, confidence: float = 0.95) -> float:
    """Two-sided critical value of Student's t: P(|T_df| < t) = `confidence`.

    `t_critical(2)` is 4.303, the factor that three seeds pay.
    """
    return float(special.stdtrit(df, 0.5 + confidence / 2))


def z_critical(confidence: float = 0.95) -> float:
    """Two-sided critical value of the normal: P(|Z| < z) = `confidence`."""
    return float(special.ndtri(0.5 + confidence / 2))


def t_two_sided(t: float, df: float) -> float:
    """P(|T_df| >= |t|)."""
    return float(2 * special.stdtr(df, -abs(t)))


def t_upper(t: float, df: float) -> float:
    """P(T_df > t)."""
    return float(special.stdtr(df, -t))


def f_upper(f: float, df: int, df_residual: int) -> float:
    """P(F_{df, df_residual} > f)."""
    return float(special.fdtrc(df, df_residual, f))


def noncentral_two_sided_power(noncentrality: float, df: float, alpha: float) -> float:
    """P(|T'| > t_{1 - alpha/2, df}) for T' noncentral t with `df` degrees of freedom."""
    critical = t_critical(df, 1 - alpha)
    upper = 1.0 - special.nctdtr(df, noncentrality, critical)
    return float(np.clip(upper + special.nctdtr(df, noncentrality, -critical), 0.0, 1.0))
