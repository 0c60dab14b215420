"""The analysis of variance of one outcome as a table."""
# pyright: basic
# pandas ships no type information, so strict checking of this file would check its guesses.

import pandas as pd

from fractionate.analysis.attribution import Attribution

COLUMNS = (
    "term",
    "effect",
    "ss",
    "df",
    "F",
    "p",
    "eta2",
    "partial_eta2",
    "omega2",
    "partial_omega2",
    "omega2_low",
    "omega2_high",
)


def anova_table(attribution: Attribution) -> pd.DataFrame:
    """One row per block and term, then the residual and the total; the sums of squares add up.

    Factors that were not asked for are averaged over first, so a table of fewer factors rests on
    fewer numbers.

    `effect` is second level minus first, for factors of two levels, in units of the outcome;
    `omega2_low` and `omega2_high` are a 95 % bootstrap interval. `attrs["note"]` says what an
    empty cell means.

    Raises:
        ValueError: There is no analysis of variance; gives the reason.
    """
    anova = attribution.anova
    if anova is None:
        raise ValueError(
            f"no analysis of variance of '{attribution.outcome}': {attribution.reason}"
        )
    shares = [*(knob.share for knob in attribution.knobs), *attribution.interactions]
    ends = {frozenset(share.factors): (share.low, share.high) for share in shares}
    rows: list[tuple[object, ...]] = [
        (
            term.name,
            term.effect,
            term.ss,
            term.df,
            term.f,
            term.p,
            term.eta2,
            term.partial_eta2,
            term.omega2,
            term.partial_omega2,
            *ends.get(frozenset(term.factors), (None, None)),
        )
        for term in (*anova.blocks, *anova.terms)
    ]
    empty = (None,) * 8
    rows.append(("residual", None, anova.residual.ss, anova.residual.df, *empty))
    rows.append(("total", None, anova.total.ss, anova.total.df, *empty))
    table = pd.DataFrame(rows, columns=list(COLUMNS)).set_index("term")
    table = table.astype(float)
    table.attrs["note"] = anova.note or attribution.reason
    return table
