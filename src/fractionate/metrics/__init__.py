"""Measurements of models, updates and gradients.

What needs a language model to run is in `metrics.drift` and `metrics.verdicts`; importing this
package does not load transformers.
"""

from fractionate.metrics.accuracy import UNSCORED, Accuracy, accuracy
from fractionate.metrics.coverage import (
    SolutionRecall,
    mean_distinct,
    mean_pass_at_k,
    solution_recall,
)
from fractionate.metrics.forgetting import (
    balanced_score,
    benchmark_forgetting,
    benchmark_scores,
    benchmark_table,
    corrected_scores,
    skill_forgetting,
    skill_scores,
)
from fractionate.metrics.gradients import (
    GradientCosines,
    GradientNoise,
    adam_updates,
    clip_coefficient,
    gradient_cosines,
    gradient_noise,
    project,
    sequence_tv,
)
from fractionate.metrics.parameters import layer_of, matrix_of
from fractionate.metrics.profiles import position_profile
from fractionate.metrics.rank import RankMeasures, rank_measures
from fractionate.metrics.rounding import (
    NullRun,
    largest_movable,
    rounding_null,
    simulated_unmoved,
    smallest_moving_update,
)
from fractionate.metrics.sparsity import (
    MaskOverlap,
    mask_overlap,
    moved_mask,
    update_sparsity,
    weight_record,
)
from fractionate.statistics import pass_at_k, wilson_interval

__all__ = [
    "UNSCORED",
    "Accuracy",
    "GradientCosines",
    "GradientNoise",
    "MaskOverlap",
    "NullRun",
    "RankMeasures",
    "SolutionRecall",
    "accuracy",
    "adam_updates",
    "balanced_score",
    "benchmark_forgetting",
    "benchmark_scores",
    "benchmark_table",
    "clip_coefficient",
    "corrected_scores",
    "gradient_cosines",
    "gradient_noise",
    "largest_movable",
    "layer_of",
    "mask_overlap",
    "matrix_of",
    "mean_distinct",
    "mean_pass_at_k",
    "moved_mask",
    "pass_at_k",
    "position_profile",
    "project",
    "rank_measures",
    "rounding_null",
    "sequence_tv",
    "simulated_unmoved",
    "skill_forgetting",
    "skill_scores",
    "smallest_moving_update",
    "solution_recall",
    "update_sparsity",
    "weight_record",
    "wilson_interval",
]
