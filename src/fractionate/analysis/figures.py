"""The figures of a report, as Plotly specifications.

A specification is a plain dict that `plotly.graph_objects.Figure` takes as it is.
"""

from collections.abc import Callable, Mapping

from fractionate.analysis.figures_final import main_figure, rate_figure, spectrum_figure
from fractionate.analysis.figures_training import (
    coverage_figure,
    gradient_figure,
    learning_figure,
)
from fractionate.analysis.plots import Figure
from fractionate.analysis.runs import Runs

FIGURES: Mapping[str, Callable[[Runs], Figure]] = {
    "fig1": main_figure,
    "fig2": rate_figure,
    "fig3": spectrum_figure,
    "coverage": coverage_figure,
    "learning": learning_figure,
    "gradients": gradient_figure,
}
"""Figures by name, in the order of the report."""


def figures(runs: Runs) -> tuple[Figure, ...]:
    """Every figure; those that the records do not allow say why."""
    return tuple(make(runs) for make in FIGURES.values())
