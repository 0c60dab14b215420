"""How many runs a claim needs: power, seeds, detectable effects, and the range of pure noise.

Gaps and standard deviations share one unit (points, say). Tests are two-sided.
"""

import numpy as np
from scipy import special

from fractionate.statistics._checks import open_unit, positive
from fractionate.statistics._distributions import noncentral_two_sided_power
from fractionate.statistics.intervals import binomial_se


def run_sd(seed_sd: float, *, rate: float, items: int) -> float:
    """Standard deviation of one run's score: sqrt(seed_sd^2 + a (1 - a) / items), all rates.

    Raises:
        ValueError: a negative `seed_sd`, a rate outside [0, 1] or items < 1.
    """
    if not (np.isfinite(seed_sd) and seed_sd >= 0):
        raise ValueError(f"seed_sd must be a non-negative number, got {seed_sd!r}")
    return float(np.hypot(seed_sd, binomial_se(rate, items)))


def two_cell_power(
    gap: float, *, sd: float, seeds: int, paired: bool = False, alpha: float = 0.05
) -> float:
    """Power of the t test between two cells, by the noncentral t.

    Unpaired: df = 2n - 2, noncentrality gap / (sd sqrt(2/n)). Paired: df = n - 1, noncentrality
    gap / (sd / sqrt(n)), where `sd` is that of the paired differences.

    Args:
        gap: true difference of the two means.
        sd: standard deviation of a run (unpaired) or of a difference (paired).
        seeds: runs per cell, at least 2.
        paired: whether the two cells share their seeds.
        alpha: level of the two-sided test.

    Raises:
        ValueError: seeds < 2, sd <= 0 or alpha outside (0, 1).
    """
    if seeds < 2:
        raise ValueError(f"seeds must be at least 2 per cell, got {seeds!r}")
    positive(sd, "sd")
    open_unit(alpha, "alpha")
    df = seeds - 1 if paired else 2 * seeds - 2
    noncentrality = abs(gap) / sd * np.sqrt(seeds if paired else seeds / 2)
    return noncentral_two_sided_power(float(noncentrality), df, alpha)


def seeds_needed(
    gap: float, *, sd: float, power: float = 0.8, paired: bool = False, alpha: float = 0.05
) -> int:
    """The fewest seeds per cell that reach `power`; arguments as `two_cell_power`.

    Raises:
        ValueError: a gap of 0, which no number of seeds detects, or as `two_cell_power`.
    """
    positive(abs(gap), "gap")
    open_unit(power, "power")

    def enough(seeds: int) -> bool:
        reached = two_cell_power(gap, sd=sd, seeds=seeds, paired=paired, alpha=alpha)
        return reached >= power

    high = 2
    while not enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return max(high, 2)


def _check_factorial(sd: float, runs: int, residual_df: int) -> None:
    positive(sd, "sd")
    if not 1 <= residual_df < runs:
        raise ValueError(
            f"residual_df must lie in [1, runs), got {residual_df!r} of {runs!r} runs; "
            "runs minus cells, less one for each block term"
        )


def factorial_power(
    gap: float, *, sd: float, runs: int, residual_df: int, alpha: float = 0.05
) -> float:
    """Power for an effect (difference of two level means) of a balanced two-level factorial.

    Every run serves every effect: the standard error is 2 sd / sqrt(runs), for main effects and
    interaction contrasts of ±1 codes alike.

    Args:
        gap: true effect.
        sd: standard deviation of a run within its cell.
        runs: all runs of the design.
        residual_df: residual degrees of freedom, runs - cells without blocks.
        alpha: level of the two-sided test.

    Raises:
        ValueError: sd <= 0, or residual_df outside [1, runs).
    """
    _check_factorial(sd, runs, residual_df)
    noncentrality = abs(gap) * np.sqrt(runs) / (2 * sd)
    return noncentral_two_sided_power(float(noncentrality), residual_df, open_unit(alpha, "alpha"))


def factorial_mde(
    *, sd: float, runs: int, residual_df: int, power: float = 0.8, alpha: float = 0.05
) -> float:
    """Minimum detectable effect of a balanced two-level factorial, unit of `sd`.

    (t_{1 - alpha/2} + t_{power}) 2 sd / sqrt(runs) with `residual_df` degrees of freedom.
    Arguments and errors as `factorial_power`.
    """
    _check_factorial(sd, runs, residual_df)
    upper = special.stdtrit(residual_df, 1 - open_unit(alpha, "alpha") / 2)
    reach = special.stdtrit(residual_df, open_unit(power, "power"))
    return float((upper + reach) * 2 * sd / np.sqrt(runs))


def expected_range(k: int) -> float:
    """Expected range of k independent standard normal means, in standard errors.

    The integral of 1 - Phi^k - (1 - Phi)^k: 1.13 for 2, 1.69 for 3, 2.97 for 9. A range of k means
    is evidence only against this.

    Raises:
        ValueError: k < 2.
    """
    if k < 2:
        raise ValueError(f"a range needs at least 2 means, got k = {k!r}")
    step = 1 / 64
    # The integrand is analytic and decays like a Gaussian, so equal steps converge geometrically.
    z = np.arange(-12.0, 12.0 + step, step)
    return float(np.sum(1.0 - special.ndtr(z) ** k - special.ndtr(-z) ** k) * step)
