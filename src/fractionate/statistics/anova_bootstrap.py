"""Which knob matters: shares of variance with intervals, first ranks and worst-case swings."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fractionate.statistics._anova_design import (
    AnovaDesign,
    decompose,
    group_rows,
    omega_squared,
)
from fractionate.statistics._checks import FloatArray, IntArray, Label, labels, open_unit
from fractionate.statistics.anova import Anova
from fractionate.statistics.bootstrap import few_blocks_note


@dataclass(frozen=True)
class TermInterval:
    """Percentile intervals of a term's shares of variance (no unit)."""

    name: str
    """Name of the term, as in `AnovaTerm`."""
    omega2: float
    """omega^2 of the data."""
    omega2_low: float
    """Lower end for omega^2; may be negative."""
    omega2_high: float
    """Upper end for omega^2."""
    eta2: float
    """eta^2 of the data."""
    eta2_low: float
    """Lower end for eta^2."""
    eta2_high: float
    """Upper end for eta^2."""
    rank_first: float | None
    """Share of replicates in which this main effect has the largest omega^2 of all main effects
    (ties shared out); None for interactions."""


@dataclass(frozen=True)
class AnovaIntervals:
    """Bootstrap intervals of an analysis of variance."""

    terms: tuple[TermInterval, ...]
    """One per term, in the order of the table."""
    draws: int
    """Resamples drawn."""
    undefined_draws: int
    """Resamples left out because they had no variance or lost a term."""
    units: int
    """Blocks resampled."""
    confidence: float
    """Nominal coverage."""
    note: str | None
    """What weakens the intervals (few blocks, undefined draws), or None."""

    def term(self, name: str) -> TermInterval:
        """The interval of the term of that name.

        Raises:
            ValueError: no such term.
        """
        for term in self.terms:
            if frozenset(term.name.split(":")) == frozenset(name.split(":")):
                return term
        raise ValueError(f"no term {name!r}; terms: {[term.name for term in self.terms]}")


@dataclass(frozen=True)
class KnobImportance:
    """The triple that says how much a knob matters for one outcome."""

    factor: str
    """Name of the knob."""
    omega2: float
    """Share of variance, no unit."""
    omega2_low: float
    """Lower end of its interval."""
    omega2_high: float
    """Upper end of its interval."""
    swing: float
    """Worst-case swing, unit of the outcome."""
    rank_first: float
    """Share of bootstrap replicates in which the knob ranks first."""


def anova_intervals(
    anova: Anova,
    unit: Iterable[Any] | None = None,
    *,
    rng: np.random.Generator,
    draws: int = 2_000,
    confidence: float = 0.95,
) -> AnovaIntervals:
    """Percentile intervals of eta^2 and omega^2 by resampling whole blocks.

    A block (a seed, or a task and seed) is drawn with all its arms, so contrasts stay paired. Where
    a factor is constant inside the blocks (task, say), blocks are drawn within its levels and the
    design stays complete. A block drawn twice counts as two blocks in block terms. Few blocks
    understate the noise inside cells; the result carries a note.

    Args:
        anova: the analysis, from `factorial_anova`.
        unit: [n] label of the block of each run; None = the joint labels of the analysis's blocks.
        rng: source of the resamples.
        draws: resamples.
        confidence: coverage.

    Raises:
        ValueError: no blocks to resample, a stratum with a single one, shares that are undefined
            for the data themselves, or no resample that defines them.
    """
    open_unit(confidence, "confidence")
    if draws < 100:
        raise ValueError(f"draws must be at least 100 for an interval, got {draws!r}")
    if anova.note is not None and any(term.omega2 is None for term in anova.terms):
        raise ValueError(f"omega^2 has no interval: {anova.note}")
    units = _unit_labels(anova.design, unit)
    omega, eta = _replicates(anova.design, units, rng, draws)
    kept = ~np.any(np.isnan(omega), axis=1)
    undefined = int(draws - kept.sum())
    if undefined == draws:
        raise ValueError("no resample defines the shares; the blocks do not hold complete designs")
    omega, eta = omega[kept], eta[kept]
    tails = ((1 - confidence) / 2, (1 + confidence) / 2)
    omega_ends, eta_ends = np.quantile(omega, tails, axis=0), np.quantile(eta, tails, axis=0)
    first = _rank_first(omega[:, : len(anova.design.factors)])
    strata = _strata(anova.design, units)
    notes = [few_blocks_note(min(len(names) for names in strata))]
    notes.append(f"{undefined} of {draws} resamples left out as undefined" if undefined else None)
    return AnovaIntervals(
        terms=tuple(
            TermInterval(
                name=term.name,
                omega2=float(term.omega2 or 0.0),
                omega2_low=float(omega_ends[0, i]),
                omega2_high=float(omega_ends[1, i]),
                eta2=float(term.eta2 or 0.0),
                eta2_low=float(eta_ends[0, i]),
                eta2_high=float(eta_ends[1, i]),
                rank_first=float(first[i]) if i < first.size else None,
            )
            for i, term in enumerate(anova.terms)
        ),
        draws=draws,
        undefined_draws=undefined,
        units=sum(len(names) for names in strata),
        confidence=confidence,
        note="; ".join(note for note in notes if note) or None,
    )


def _unit_labels(design: AnovaDesign, unit: Iterable[Any] | None) -> tuple[Label, ...]:
    """[n] label of the block that each run is resampled with."""
    if unit is not None:
        return labels(unit, "unit", design.outcome.size)
    if not design.blocks:
        raise ValueError("unit is missing: name the block (seed) of each run to resample")
    return tuple(zip(*design.blocks.values(), strict=True))


def _strata(design: AnovaDesign, units: tuple[Label, ...]) -> list[list[Label]]:
    """Blocks grouped by the levels of the factors that are constant inside every block."""
    rows = {key[0]: index for key, index in group_rows((units,)).items()}
    between = [
        column
        for column in design.factors.values()
        if all(len({column[i] for i in index}) == 1 for index in rows.values())
    ]
    strata: dict[tuple[Label, ...], list[Label]] = {}
    for name, index in rows.items():
        strata.setdefault(tuple(column[index[0]] for column in between), []).append(name)
    for key, names in strata.items():
        if len(names) < 2:
            where = f" at {key!r}" if key else ""
            raise ValueError(f"one block only{where} ({names[0]!r}): nothing to resample")
    return list(strata.values())


def _replicates(
    design: AnovaDesign, units: tuple[Label, ...], rng: np.random.Generator, draws: int
) -> tuple[FloatArray, FloatArray]:
    """omega^2 and eta^2 [draws, terms] of resampled blocks; NaN rows where undefined."""
    rows = {key[0]: index for key, index in group_rows((units,)).items()}
    strata = _strata(design, units)
    inside = _blocks_inside(design, rows)
    # Order does not matter, so the few multisets of a few seeds are each analysed once.
    known: dict[tuple[int, ...], tuple[FloatArray, FloatArray]] = {}
    omega, eta = [], []
    for _ in range(draws):
        picks = [np.sort(rng.integers(0, len(names), len(names))) for names in strata]
        key = tuple(int(i) for i in np.concatenate(picks))
        if key not in known:
            drawn = [n[i] for n, pick in zip(strata, picks, strict=True) for i in pick]
            resampled = _resampled(design, [rows[name] for name in drawn], inside)
            known[key] = _shares(resampled, len(design.terms()))
        omega.append(known[key][0])
        eta.append(known[key][1])
    return np.array(omega), np.array(eta)


def _blocks_inside(design: AnovaDesign, rows: dict[Label, IntArray]) -> frozenset[str]:
    """Block terms whose labels each lie inside one resampled unit."""
    owner = np.empty(design.outcome.size, dtype=np.int64)
    for i, index in enumerate(rows.values()):
        owner[index] = i
    inside = set()
    for name, column in design.blocks.items():
        groups = group_rows((column,)).values()
        if all(np.all(owner[index] == owner[index[0]]) for index in groups):
            inside.add(name)
    return frozenset(inside)


def _resampled(
    design: AnovaDesign, drawn: list[IntArray], inside: frozenset[str]
) -> AnovaDesign | None:
    """The design of the drawn blocks, or None where a factor lost a level."""
    index = np.concatenate(drawn)
    copies = np.repeat(np.arange(len(drawn)), [rows.size for rows in drawn])
    factors = {name: tuple(col[i] for i in index) for name, col in design.factors.items()}
    if any(len(set(column)) < len(design.levels[name]) for name, column in factors.items()):
        return None
    blocks: dict[str, tuple[Label, ...]] = {}
    for name, column in design.blocks.items():
        relabelled = tuple(
            (column[i], int(copy)) if name in inside else column[i]
            for i, copy in zip(index, copies, strict=True)
        )
        if len(set(relabelled)) > 1:
            blocks[name] = relabelled
    return replace(design, outcome=design.outcome[index], factors=factors, blocks=blocks)


def _shares(design: AnovaDesign | None, terms: int) -> tuple[FloatArray, FloatArray]:
    """omega^2 and eta^2 [terms] of one resample; NaN where undefined."""
    if design is not None:
        parts = decompose(design)
        if parts.total_ss > 0 and parts.residual_df > 0 and min(parts.term_df) > 0:
            return omega_squared(parts), parts.term_ss / parts.total_ss
    return np.full(terms, np.nan), np.full(terms, np.nan)


def _rank_first(omega: FloatArray) -> FloatArray:
    """[mains] share of the rows [draws, mains] that each main effect leads; ties shared out."""
    leads = omega == omega.max(axis=1, keepdims=True)
    return (leads / leads.sum(axis=1, keepdims=True)).mean(axis=0)


def worst_case_swing(anova: Anova, factor: str) -> float:
    """Largest range of cell means over the levels of a factor at fixed levels of the others.

    Unit of the outcome. It answers "how much can this knob alone cost", which an average hides
    where the knob matters in one corner only.

    Raises:
        ValueError: no such factor.
    """
    design = anova.design
    if factor not in design.factors:
        raise ValueError(f"no factor {factor!r}; factors: {list(design.factors)}")
    position = list(design.factors).index(factor)
    means: dict[tuple[Label, ...], list[float]] = {}
    for cell, rows in design.cells().items():
        others = cell[:position] + cell[position + 1 :]
        means.setdefault(others, []).append(float(design.outcome[rows].mean()))
    return max(max(values) - min(values) for values in means.values())


def knob_importance(anova: Anova, intervals: AnovaIntervals) -> tuple[KnobImportance, ...]:
    """The triple of every knob: omega^2 with interval, worst-case swing, share of first ranks.

    Args:
        anova: the analysis.
        intervals: its `anova_intervals`.

    Returns:
        One per factor, by falling omega^2.

    Raises:
        ValueError: intervals of another analysis.
    """
    knobs = []
    for factor in anova.design.factors:
        term = intervals.term(factor)
        knobs.append(
            KnobImportance(
                factor=factor,
                omega2=term.omega2,
                omega2_low=term.omega2_low,
                omega2_high=term.omega2_high,
                swing=worst_case_swing(anova, factor),
                rank_first=float(term.rank_first or 0.0),
            )
        )
    return tuple(sorted(knobs, key=lambda knob: -knob.omega2))
