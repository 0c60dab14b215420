"""Statistics of a controlled study, free of torch: numpy and scipy only.

Everything random takes a numpy Generator. Results are frozen dataclasses whose fields say their
unit; what is undefined is None with a reason, never NaN.
"""

from fractionate.statistics._distributions import t_critical
from fractionate.statistics.anova import Anova, AnovaTerm, SumOfSquares, factorial_anova
from fractionate.statistics.anova_bootstrap import (
    AnovaIntervals,
    KnobImportance,
    TermInterval,
    anova_intervals,
    knob_importance,
    worst_case_swing,
)
from fractionate.statistics.bootstrap import (
    BootstrapInterval,
    bootstrap_interval,
    distinct_resamples,
    hierarchical_bootstrap,
    interval_from_replicates,
)
from fractionate.statistics.cells import (
    Cell,
    Contrast,
    RobustCoefficient,
    SimpleEffect,
    cell_summary,
    difference_of_differences,
    hc3_regression,
    simple_effects,
    welch_test,
)
from fractionate.statistics.contrasts import (
    PairedContrast,
    PermutationTest,
    contrast_of_differences,
    paired_contrast,
    paired_differences,
    range_permutation_test,
    sign_flip_test,
    smallest_sign_flip_p,
)
from fractionate.statistics.equivalence import Equivalence, equivalence_test, tost
from fractionate.statistics.fits import (
    AddedExplanation,
    Coefficient,
    PolynomialFit,
    Trend,
    added_explanation,
    polynomial_fit,
    quadratic_fit,
    slope_and_curvature,
)
from fractionate.statistics.forgetting import (
    Forgetting,
    GainAndDrop,
    chance_corrected,
    forgetting,
    gain_and_drop,
    pareto_front,
)
from fractionate.statistics.intervals import (
    MeanInterval,
    binomial_se,
    clopper_pearson_interval,
    mcnemar_exact,
    paired_difference_se,
    t_interval,
    unpaired_difference_se,
    wilson_interval,
)
from fractionate.statistics.multiplicity import benjamini_hochberg, holm
from fractionate.statistics.pass_at_k import pass_at_k
from fractionate.statistics.power import (
    expected_range,
    factorial_mde,
    factorial_power,
    run_sd,
    seeds_needed,
    two_cell_power,
)

__all__ = [
    "AddedExplanation",
    "Anova",
    "AnovaIntervals",
    "AnovaTerm",
    "BootstrapInterval",
    "Cell",
    "Coefficient",
    "Contrast",
    "Equivalence",
    "Forgetting",
    "GainAndDrop",
    "KnobImportance",
    "MeanInterval",
    "PairedContrast",
    "PermutationTest",
    "PolynomialFit",
    "RobustCoefficient",
    "SimpleEffect",
    "SumOfSquares",
    "TermInterval",
    "Trend",
    "added_explanation",
    "anova_intervals",
    "benjamini_hochberg",
    "binomial_se",
    "bootstrap_interval",
    "cell_summary",
    "chance_corrected",
    "clopper_pearson_interval",
    "contrast_of_differences",
    "difference_of_differences",
    "distinct_resamples",
    "equivalence_test",
    "expected_range",
    "factorial_anova",
    "factorial_mde",
    "factorial_power",
    "forgetting",
    "gain_and_drop",
    "hc3_regression",
    "hierarchical_bootstrap",
    "holm",
    "interval_from_replicates",
    "knob_importance",
    "mcnemar_exact",
    "paired_contrast",
    "paired_difference_se",
    "paired_differences",
    "pareto_front",
    "pass_at_k",
    "polynomial_fit",
    "quadratic_fit",
    "range_permutation_test",
    "run_sd",
    "seeds_needed",
    "sign_flip_test",
    "simple_effects",
    "slope_and_curvature",
    "smallest_sign_flip_p",
    "t_critical",
    "t_interval",
    "tost",
    "two_cell_power",
    "unpaired_difference_se",
    "welch_test",
    "wilson_interval",
    "worst_case_swing",
]
