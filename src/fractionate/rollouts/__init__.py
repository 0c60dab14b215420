"""Rollouts: who writes the completions that a student trains on, and under which law."""

from fractionate.rollouts.completions import Completions
from fractionate.rollouts.decode import Speaker
from fractionate.rollouts.draw import draw, from_dataset, sample
from fractionate.rollouts.laws import spectrum_log_probs
from fractionate.rollouts.tape import Sampled

__all__ = [
    "Completions",
    "Sampled",
    "Speaker",
    "draw",
    "from_dataset",
    "sample",
    "spectrum_log_probs",
]
