"""Evaluation of one model: tasks, forgetting, drift, gradients; one record per item."""

from fractionate.evaluate.evaluation import evaluate
from fractionate.evaluate.session import Reference, Suite

__all__ = ["Reference", "Suite", "evaluate"]
