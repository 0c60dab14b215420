"""Studies taken apart into designs: parts in which only rollout, KL and rate vary.

What an experiment is follows from what a design holds and varies, never from the name of its study:
a study that also varies clipping is two designs, and two studies that differ in clipping alone are
the same two.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fractionate.analysis.runs import (
    KL,
    RATE,
    ROLLOUT,
    Arm,
    Runs,
    arm_key,
    completeness,
    level_order,
)
from fractionate.config import Config, Part, Study, format_value

KNOBS = (ROLLOUT, KL, RATE)
TEMPERATURE = "method.temperature"
GENERATION = {
    "student": f"{TEMPERATURE}.student_rollout",
    "teacher": f"{TEMPERATURE}.teacher_rollout",
}
"""Where the sampling temperature of a rollout policy is set."""
CLIP, SUPPORT, MASTER = "optimizer.clip", "method.support", "optimizer.master_weights"

BASE_DESIGN: Mapping[str, str] = {
    CLIP: "1",
    SUPPORT: "full",
    MASTER: "none",
    "optimizer.param_dtype": "bfloat16",
    "method.weighting": "uniform",
    "method.reduction": "sequence_mean",
    GENERATION["student"]: "1",
    GENERATION["teacher"]: "0.5",
    f"{TEMPERATURE}.student_loss": "1",
    f"{TEMPERATURE}.teacher_loss": "0.5",
}
"""What the paper's main experiment holds, as labels by dotted path."""

_SHARED = ("world", "models", "task", "method", "optimizer", "budget", "lengths")
"""Parts of a study that decide what its runs are; the others decide what is measured of them."""


@dataclass(frozen=True)
class Design:
    """Runs that differ in rollout, KL, rate and seed only.

    Attributes:
        study: Name of the study.
        held: Levels of the other factors of that study, by dotted path; empty where it has none.
        runs: The runs, without those factors.
        facts: Everything that is held, as labels by dotted path.
        place: Order in which the studies were given.
    """

    study: str
    held: Mapping[str, str]
    runs: Runs
    facts: Mapping[str, str]
    place: int = 0

    @property
    def name(self) -> str:
        """The study, and what it holds of its further factors."""
        held = ", ".join(f"{path.split('.')[-1]} {label}" for path, label in self.held.items())
        return f"{self.study} ({held})" if held else self.study

    def fact(self, path: str) -> str:
        """The label at a path; the paper's where the study does not say."""
        return self.facts.get(path, BASE_DESIGN.get(path, "none"))

    @property
    def deviations(self) -> tuple[str, ...]:
        """How the design departs from the paper's main experiment."""
        return tuple(
            f"{path.split('.')[-1].replace('_', ' ')} {self.fact(path)}"
            for path, label in BASE_DESIGN.items()
            if self.fact(path) != label
        )

    @property
    def family(self) -> tuple[str, ...]:
        """Which models they are, whatever they know already."""
        own = ("world.students", "world.bases")
        return tuple(
            f"{path}={label}"
            for path, label in sorted(self.facts.items())
            if path.split(".")[0] in ("world", "models") and path not in own
        )

    @property
    def rates(self) -> tuple[float, ...]:
        """Learning rates, rising."""
        return tuple(sorted({arm.rate for arm in self.runs.arms if arm.rate is not None}))

    @property
    def lams(self) -> tuple[float, ...]:
        """Points of the rollout spectrum, rising."""
        return tuple(sorted({arm.lam for arm in self.runs.arms if arm.lam is not None}))

    @property
    def policies(self) -> frozenset[str]:
        """Kinds of rollouts."""
        return frozenset(arm.rollout.split("(")[0] for arm in self.runs.arms if arm.rollout)

    @property
    def kls(self) -> frozenset[str]:
        """Divergences."""
        return frozenset(arm.kl for arm in self.runs.arms if arm.kl)

    @property
    def is_grid(self) -> bool:
        """Whether it compares student with teacher rollouts."""
        return {"student", "teacher"} <= self.policies

    @property
    def is_spectrum(self) -> bool:
        """Whether it has at least three points of the rollout spectrum."""
        return len(self.lams) >= 3

    def differs(self, other: "Design", *but: str) -> list[str]:
        """Paths at which two designs differ, apart from those that begin with one of `but`."""
        paths = {*self.facts, *other.facts}
        return sorted(
            path
            for path in paths
            if self.fact(path) != other.fact(path) and not path.startswith(tuple(but) or ("\0",))
        )


def designs(studies: Sequence[Runs]) -> tuple[Design, ...]:
    """All designs of the studies, those closest to the paper's main experiment first.

    Among equals come the family of most designs, more seeds, more runs, more measurements, and the
    order given.
    """
    found = [d for place, runs in enumerate(studies) for d in _designs(runs, place)]
    families = [design.family for design in found]
    first = max(set(families), key=lambda f: (families.count(f), -families.index(f)), default=())

    def rank(design: Design) -> tuple[float, ...]:
        runs = design.runs
        return (
            len(design.deviations),
            design.family != first,
            -len(runs.complete.seeds),
            -len(runs.runs),
            -len(runs.runs[0].final),
            design.place,
        )

    return tuple(sorted(found, key=rank))


def _designs(runs: Runs, place: int) -> Iterator[Design]:
    name = runs.study.name if runs.study else f"study {place + 1}"
    general = dict(facts(runs.study)) if runs.study else {}
    others = [factor for factor in runs.levels if factor not in KNOBS]
    settings = dict.fromkeys(tuple(arm.levels[factor] for factor in others) for arm in runs.arms)
    for setting in settings:
        held = dict(zip(others, setting, strict=True))
        kept = part(runs, lambda arm, held=held: held.items() <= arm.levels.items())
        known = {
            **general,
            **{k: v for path, label in held.items() for k, v in _fields(path, label)},
        }
        shown = held if len(settings) > 1 else {}
        yield Design(name, shown, kept, known, place)


def part(runs: Runs, keep: Callable[[Arm], bool]) -> Runs:
    """The runs of some arms, their factors reduced to rollout, KL and rate.

    Variants of a rollout policy (`student(lag=4)`) count as the policy where it has no plain form.
    """
    wanted = [arm for arm in runs.arms if keep(arm)]
    names = _plain_rollouts([arm.rollout for arm in wanted if arm.rollout])
    arms: dict[tuple[str, ...], Arm] = {}
    kept: set[tuple[str, ...]] = set()
    for arm in wanted:
        if arm.rollout is None or arm.rollout in names:
            rollout = names.get(arm.rollout or "", arm.rollout)
            new = replace(arm, levels=_reduced(arm.levels, names), rollout=rollout)
            arms.setdefault(new.key, new)
            kept.add(arm.key)
    own = tuple(
        replace(run, cell=replace(run.cell, factors=_reduced(run.cell.factors, names)))
        for run in runs.runs
        if arm_key(run.cell) in kept
    )
    cells = [run.cell for run in own]
    return Runs(own, level_order(cells), tuple(arms.values()), completeness(cells), runs.study)


def _reduced(levels: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Levels at rollout, KL and rate, rollouts called by their policy."""
    return {
        path: names.get(label, label) if path == ROLLOUT else label
        for path, label in levels.items()
        if path in KNOBS
    }


def _plain_rollouts(labels: Sequence[str]) -> dict[str, str]:
    """Labels that stay, and what each is called: one variant per policy, all of other kinds."""
    names: dict[str, str] = {}
    for label in dict.fromkeys(labels):
        kind = label.split("(")[0]
        if kind not in ("student", "teacher"):
            names[label] = label
        elif kind in labels:
            if label == kind:
                names[label] = label
        elif kind not in names.values():
            names[label] = kind
    return names


def facts(study: Study) -> Iterator[tuple[str, str]]:
    """What a study holds, as labels by dotted path; rollout, KL and rate are left out."""
    for name in _SHARED:
        value = getattr(study, name)
        if value is not None:
            yield from _flat(name, value)


def _flat(path: str, value: object) -> Iterator[tuple[str, str]]:
    if path in KNOBS:
        return
    if isinstance(value, Config) and (not isinstance(value, Part) or path == "task"):
        for name, inner in value:
            yield from _flat(f"{path}.{name}", inner)
    else:
        yield path, format_value(value)


def _fields(path: str, label: str) -> Iterator[tuple[str, str]]:
    """What a level sets: itself, or the fields of a group (`student_rollout=0.5,top_p=1`).

    A group of which a level changes nothing is called `base`.
    """
    if label == "base":
        return
    if "(" in label or "=" not in label:
        yield path, label
        return
    for field in label.split(","):
        name, _, value = field.partition("=")
        yield f"{path}.{name.strip('{} ')}", value.strip("{} ")


def low_and_high(runs: Runs) -> Runs:
    """The runs at the two rates that the claims mean; all of them where there are fewer."""
    held = sorted({arm.rate for arm in runs.arms if arm.rate is not None})
    if len(held) <= 2:
        return runs
    declared = runs.study.rates if runs.study else None
    two = (held[0], held[-1])
    if declared and {declared.low, declared.high} <= set(held):
        two = (declared.low, declared.high)
    return part(runs, lambda arm: arm.rate in two)


def peak_step(values: Mapping[int, float]) -> int:
    """The step with the highest value, the earliest of equals."""
    steps = sorted(values)
    return steps[int(np.argmax([values[step] for step in steps]))]
