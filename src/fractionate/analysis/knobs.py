"""How much one knob matters for one outcome, and the rule that names the one that matters most."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fractionate.analysis.runs import KL, RATE, ROLLOUT

FIRST = 0.95
"""Share of bootstrap replicates in which a knob must rank first to be named."""

NAMES: Mapping[str, str] = {
    ROLLOUT: "rollout policy",
    KL: "KL direction",
    RATE: "learning rate",
    "world.students": "kind of student",
}


def knob_name(factor: str) -> str:
    """A factor in words: "learning rate", or the last part of its path."""
    return NAMES[factor] if factor in NAMES else factor.split(".")[-1].replace("_", " ")


@dataclass(frozen=True)
class Share:
    """omega^2 of a main effect or an interaction, the share of the variance it explains.

    Attributes:
        factors: Dotted paths; one for a main effect.
        omega2: Estimate, negative where the term explains less than noise would.
        low: Lower end of the 95 % interval; None without replicates.
        high: Upper end.
    """

    factors: tuple[str, ...]
    omega2: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Swing:
    """Largest change of the cell mean that one knob makes at fixed settings of the others.

    Attributes:
        value: Highest minus lowest level mean at the worst setting, unit of the outcome.
        low: Lower end of its 95 % interval, corrected for having picked the worst setting; None
            without replicates. Negative: the swing is not told from noise.
        high: Upper end.
        best: Level with the highest mean there.
        worst: Level with the lowest.
        at: Levels of the other factors.
    """

    value: float
    low: float | None
    high: float | None
    best: str
    worst: str
    at: tuple[str, ...]


@dataclass(frozen=True)
class Knob:
    """How much one factor matters for one outcome.

    Attributes:
        factor: Dotted path.
        share: omega^2 of its main effect.
        first: Share of bootstrap replicates in which no other main effect has a larger omega^2.
        swing: Worst-case swing.
        effect: Second level minus first, mean over the other factors; None unless it has two.
        half_width: Of the effect's 95 % t interval.
    """

    factor: str
    share: Share
    first: float | None
    swing: Swing
    effect: float | None
    half_width: float | None

    @property
    def told(self) -> bool:
        """Whether the knob moves the outcome at all: both intervals exclude 0."""
        low, swing = self.share.low, self.swing.low
        return low is not None and swing is not None and low > 0 and swing > 0


def decide(knobs: Sequence[Knob]) -> tuple[str | None, str]:
    """The knob that explains most, and why; None and why none does.

    Args:
        knobs: By falling omega^2, at least one, with replicates.
    """
    top = knobs[0]
    if top.told and top.first is not None and top.first >= FIRST:
        return top.factor, f"ω² and swing exclude 0, first in {top.first:.1%} of replicates"
    matter = [knob for knob in knobs if knob.share.low is not None and knob.share.low > 0]
    if not matter:
        return None, "no knob's share of the variance (ω²) is told from noise"
    unsettled: list[str] = []
    if top.first is not None and top.first < FIRST:
        whose = "their order" if len(matter) > 1 else "its rank"
        share = f"the {knob_name(top.factor)} is first in {top.first:.0%} of replicates"
        unsettled.append(f"{whose} is not settled ({share})")
    if top not in matter:
        unsettled.append(f"the {knob_name(top.factor)}, whose ω² is larger, is not told from noise")
    elif not top.told:
        unsettled.append(
            f"the worst-case swing of the {knob_name(top.factor)} is not told from noise"
        )
    names = [f"the {knob_name(knob.factor)}" for knob in matter]
    if len(names) == 1:
        by_share = f"by ω² only {names[0]} matters"
    else:
        both = " both" if len(names) == 2 else ""
        by_share = f"by ω² {', '.join(names[:-1])} and {names[-1]}{both} matter"
    return None, f"{by_share}, but {' and '.join(unsettled)}"
