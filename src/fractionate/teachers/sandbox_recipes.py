"""How the teacher and the students of the sandbox are pre-trained: the recipes, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fractionate.models.sandbox import (
    QWEN_STUDENT,
    QWEN_TEACHER,
    STUDENT,
    TEACHER,
    Architecture,
)
from fractionate.tasks.sandbox.traces import Order


@dataclass(frozen=True)
class Mix:
    """Shares of the examples (not tokens) of a phase; they sum to 1.

    Attributes:
        skills: Thirteen prior skills, alike.
        op: The skill `op`.
        three: Countdown with three numbers, teacher-grade traces.
        four: The same with four numbers.
        weak: Countdown with three numbers, weak traces.
        whole: Teacher-grade traces under the tag `trace`.
        parts: Components of Countdown under tags of their own.
        dialect: Countdown with three numbers and the instruction to write in the second dialect.
    """

    skills: float = 0.0
    op: float = 0.0
    three: float = 0.0
    four: float = 0.0
    weak: float = 0.0
    whole: float = 0.0
    parts: float = 0.0
    dialect: float = 0.0


@dataclass(frozen=True)
class Phase:
    """A mix, the order of tries in its traces, and the share of the stage at which it begins."""

    begins: float
    mix: Mix
    order: Order = "cyc"


@dataclass(frozen=True)
class Stage:
    """A run of the optimiser, begun afresh.

    Attributes:
        name: Names the stage's random stream: equal stages of one seed see equal data.
        steps: Optimiser steps.
        rate: Peak learning rate: linear warm-up, constant, then linear to `last` x `rate`.
        constant: Share of the steps at which the decay begins.
        last: Learning rate at the end as a share of the peak.
        phases: What is learnt, in order.
        warm_up: Steps of the warm-up.
    """

    name: str
    steps: int
    rate: float
    constant: float
    last: float
    phases: tuple[Phase, ...]
    warm_up: int = 100


@dataclass(frozen=True)
class Recipe:
    """A model's pre-training: architecture, batch shape, AdamW and the stages.

    Attributes:
        architecture: Sizes of the model.
        rows: Rows of a batch.
        row_length: Tokens of a row; an example is never split over rows.
        betas: AdamW's.
        stages: In order.
        weight_decay: AdamW's, on every parameter.
        clip: Largest gradient norm.
        start: The recipe whose shipped model of the same seed is trained further; none starts anew.
    """

    architecture: Architecture
    rows: int
    row_length: int
    betas: tuple[float, float]
    stages: tuple[Stage, ...]
    weight_decay: float = 0.01
    clip: float = 1.0
    start: str | None = None


_TEACHER = Recipe(
    TEACHER,
    rows=8,
    row_length=256,
    betas=(0.9, 0.95),
    stages=(
        Stage(
            "teacher",
            steps=5_800,
            rate=2.5e-3,
            constant=0.30,
            last=0.0,
            phases=(
                Phase(0.00, Mix(skills=0.45, op=0.15, three=0.20, four=0.20), "rand"),
                Phase(0.28, Mix(skills=0.32, op=0.10, three=0.27, four=0.31), "rand"),
                Phase(0.55, Mix(skills=0.25, op=0.10, three=0.30, four=0.35), "cyc"),
                Phase(0.70, Mix(skills=0.45, op=0.08, three=0.20, four=0.27), "cyc"),
            ),
        ),
    ),
)

_COMMON = (
    Stage("skills", 2_211, 3e-3, 0.6, 0.1, (Phase(0.0, Mix(skills=0.80, op=0.12, weak=0.08)),)),
    Stage("format", 1_612, 2e-3, 0.6, 0.1, (Phase(0.0, Mix(skills=0.63, op=0.12, weak=0.25)),)),
)


def _student(*stages: Stage) -> Recipe:
    return Recipe(STUDENT, rows=12, row_length=128, betas=(0.9, 0.98), stages=(*_COMMON, *stages))


_LAST = Mix(skills=0.52, op=0.08, weak=0.15, parts=0.25)

_BILINGUAL = replace(
    _TEACHER,
    start="teacher",
    stages=(
        Stage(
            "bilingual",
            steps=1_500,
            rate=1e-3,
            constant=0.30,
            last=0.0,
            phases=(
                Phase(0.00, Mix(skills=0.27, op=0.08, three=0.20, four=0.20, dialect=0.25), "cyc"),
            ),
        ),
    ),
)

_COMPONENTS = _student(
    Stage("components", 2_519, 2.5e-3, 0.6, 0.2, (Phase(0.0, _LAST),)),
    Stage(
        "more components",
        1_900,
        2e-3,
        0.3,
        0.0,
        (Phase(0.0, Mix(skills=0.41, op=0.07, weak=0.12, parts=0.40)),),
    ),
)


def _second_family(recipe: Recipe, architecture: Architecture) -> Recipe:
    """The same lessons with other sizes, and other data: the stages' names open the streams."""
    stages = tuple(replace(stage, name=f"qwen {stage.name}") for stage in recipe.stages)
    return replace(recipe, architecture=architecture, stages=stages)


RECIPES: Mapping[str, Recipe] = {
    "teacher": _TEACHER,
    "components": _COMPONENTS,
    "latent": _student(
        Stage(
            "latent",
            2_519,
            2.5e-3,
            0.4,
            0.0,
            (Phase(0.0, Mix(skills=0.52, op=0.08, weak=0.15, whole=0.25)),),
        ),
    ),
    "naive": _student(
        Stage(
            "naive",
            2_519,
            2.5e-3,
            0.4,
            0.0,
            (Phase(0.0, Mix(skills=0.68, op=0.12, weak=0.20)),),
        ),
    ),
    "bilingual": _BILINGUAL,
    "qwen-teacher": _second_family(_TEACHER, QWEN_TEACHER),
    "qwen-components": _second_family(_COMPONENTS, QWEN_STUDENT),
}
"""`teacher`, and the three kinds of student; the students of one seed share their first stages.

`bilingual` is the teacher with a second dialect that it writes when asked to. The `qwen-` models
are the second family: other architecture, sizes and vocabulary, the same lessons.
"""
