"""Example O of the methods: the 2^3 design with three runs per cell, in points."""

from collections.abc import Sequence
from typing import Any

import numpy as np

CELLS: dict[tuple[str, str, str], tuple[float, float, float]] = {
    ("student", "forward", "low"): (72, 73, 71),
    ("student", "forward", "high"): (71, 72, 72),
    ("student", "reverse", "low"): (72, 70, 71),
    ("student", "reverse", "high"): (60, 52, 57),
    ("teacher", "forward", "low"): (73, 72, 74),
    ("teacher", "forward", "high"): (71, 73, 72),
    ("teacher", "reverse", "low"): (45, 35, 52),
    ("teacher", "reverse", "high"): (50, 58, 41),
}
OUTCOME = np.array([run for runs in CELLS.values() for run in runs], dtype=np.float64)
FACTORS: dict[str, list[str]] = {
    name: [cell[i] for cell in CELLS for _ in range(3)] for i, name in enumerate("RKL")
}
SEEDS = [seed for _ in CELLS for seed in range(3)]
LEVELS = {"L": ("low", "high")}
"""Alphabetical order would put "high" first."""

LOST_RUNS = (0, 13)
"""Rows (from 0) that the unbalanced example drops: the runs 1 and 14."""


def without(rows: Sequence[int]) -> tuple[np.ndarray, dict[str, list[Any]], list[int]]:
    """Outcome, factors and seeds of the design without some rows."""
    keep = [i for i in range(OUTCOME.size) if i not in rows]
    factors = {name: [column[i] for i in keep] for name, column in FACTORS.items()}
    return OUTCOME[keep], factors, [SEEDS[i] for i in keep]
