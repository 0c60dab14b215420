"""Cells: the full product of the levels of every factor, once per seed, and the proof of control.

A level is the whole value at its factor's path where that value has a `kind`; a mapping without a
`kind` (`optimizer: [{}, {master_weights: float32, state_dtype: float32}]`) changes the named
fields only. Every cell is validated as a study of its own.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from fractionate.config import (
    ALIASES,
    Config,
    Level,
    Part,
    Study,
    StudyFileError,
    dotted_get,
    dotted_set,
    format_value,
    resolve,
)
from fractionate.config.files import parse_study
from fractionate.config.vary import Plain

SHORT_NAMES: Mapping[str, str] = {path: alias for alias, path in ALIASES.items()}
_FAULTS_SHOWN = 10


@dataclass(frozen=True)
class Cell:
    """One arm under one seed.

    Attributes:
        name: Unique in the study, e.g. `rollout=teacher kl=forward lr=0.0005 seed=42`.
        study: The study as this cell sees it: levels applied, nothing varied, one seed.
        factors: Level label of every varied factor, by dotted path.
        seed: Replicate; cells of one seed share prompts, base and random streams.
        base: Which student base the cell starts from: the seed modulo the number of bases.
    """

    name: str
    study: Study
    factors: Mapping[str, str]
    seed: int
    base: int


@dataclass(frozen=True)
class Factor:
    """A varied field.

    Attributes:
        path: Dotted path.
        written: The name under which the study file gives it (a path or an alias).
        levels: Its levels as given.
    """

    path: str
    written: str
    levels: tuple[Level, ...]

    def where(self, index: int) -> str:
        """The place of a level in the study file: `vary.method.rollout[1]`."""
        return f"vary.{self.written}[{index}]"


def factors_of(study: Study) -> tuple[Factor, ...]:
    """The factors in the order of the file."""
    return tuple(Factor(resolve(name), name, levels) for name, levels in study.vary.items())


def expand(study: Study) -> tuple[Cell, ...]:
    """All cells: the product of all levels within each seed, in the order of the file.

    Raises:
        StudyFileError: A level or a combination of levels is invalid, or two levels of a factor
            are the same; names the factor and the levels.
        RuntimeError: Two cells of one contrast differ in more than the factor contrasted.
    """
    factors = factors_of(study)
    _refuse_overlap(study, factors)
    choices = list(itertools.product(*(range(len(factor.levels)) for factor in factors)))
    arms = _arms(study, factors, choices)
    labels = _labels(factors, choices, arms)
    bases = study.world.bases if study.world is not None else 1
    cells = tuple(
        _cell(arm, {f.path: labels[f.path][i] for f, i in zip(factors, choice, strict=True)}, seed)
        for seed in study.seeds
        for choice, arm in zip(choices, arms, strict=True)
    )
    prove_control(cells)
    return tuple(
        Cell(cell.name, cell.study, cell.factors, cell.seed, cell.seed % bases) for cell in cells
    )


def _cell(arm: Study, labels: Mapping[str, str], seed: int) -> Cell:
    short = [f"{SHORT_NAMES.get(path, _last(path))}={label}" for path, label in labels.items()]
    name = " ".join([*short, f"seed={seed}"])
    return Cell(name, arm.model_copy(update={"seeds": (seed,)}), labels, seed, base=0)


def _last(path: str) -> str:
    return path.rpartition(".")[2]


# ---------------------------------------------------------------- levels into studies


def _arms(
    study: Study, factors: Sequence[Factor], choices: Sequence[tuple[int, ...]]
) -> list[Study]:
    base = study.model_dump(exclude={"vary", "hypotheses"})
    base["seeds"] = study.seeds[:1]
    arms: list[Study] = []
    faults: dict[str, None] = {}
    for choice in choices:
        chosen = list(zip(factors, choice, strict=True))
        tree = base
        for factor, index in sorted(chosen, key=lambda item: item[0].path.count(".")):
            tree = _apply(tree, factor.path, factor.levels[index])
        try:
            arms.append(parse_study(tree, source="cell"))
        except StudyFileError as error:
            faults |= dict.fromkeys(_blame(line, chosen) for line in str(error).splitlines())
    if faults:
        shown = list(faults)[:_FAULTS_SHOWN]
        more = len(faults) - len(shown)
        raise StudyFileError("\n".join([*shown, *([f"and {more} more"] if more else [])]))
    return arms


def _apply(tree: Mapping[str, Any], path: str, level: Level) -> dict[str, Any]:
    return dotted_set(tree, path, _merged(dotted_get(tree, path, where=path), level))


def _merged(current: Plain, level: Plain) -> Plain:
    """A mapping without a kind changes fields; everything else replaces the value."""
    if not (_is_open(current) and _is_open(level)):
        return level
    return {**current, **{name: _merged(current.get(name), level[name]) for name in level}}


def _is_open(value: Plain) -> bool:
    return isinstance(value, Mapping) and "kind" not in value


def _blame(line: str, chosen: Sequence[tuple[Factor, int]]) -> str:
    """A fault of a cell, said of the levels that caused it."""
    field, _, message = line.removeprefix("cell: ").partition(": ")
    involved = [(f, i) for f, i in chosen if _related(field, f.path)] or list(chosen)
    named = [(f, i) for f, i in involved if f.path in field or _last(f.path) in message]
    where = " with ".join(factor.where(index) for factor, index in named or involved)
    return f"{where or 'study'}: {field}: {message}"


def _related(field: str, path: str) -> bool:
    return field == "study" or _within(field, path) or _within(path, field)


def _within(path: str, ancestor: str) -> bool:
    return path == ancestor or path.startswith(f"{ancestor}.")


def _refuse_overlap(study: Study, factors: Sequence[Factor]) -> None:
    base = study.model_dump()
    for outer, inner in itertools.permutations(factors, 2):
        if outer.path == inner.path or not _within(inner.path, outer.path):
            continue
        rest = inner.path.removeprefix(f"{outer.path}.")
        kinds = [dotted_get(base, outer.path, where=outer.path), *outer.levels]
        if not all(_is_open(value) for value in kinds):
            raise StudyFileError(
                f"vary.{inner.written} lies inside vary.{outer.written}, whose levels are whole "
                f"values with a kind. Give {rest} inside the levels of {outer.written} instead"
            )
        for index, level in enumerate(outer.levels):
            if _sets(level, rest):
                raise StudyFileError(
                    f"{outer.where(index)} sets {rest}, and so does vary.{inner.written}. "
                    "Remove one of them"
                )


def _sets(level: Plain, path: str) -> bool:
    head, _, rest = path.partition(".")
    if not isinstance(level, Mapping) or head not in level:
        return False
    return not rest or _sets(level[head], rest) or not isinstance(level[head], Mapping)


# ---------------------------------------------------------------- labels


def _labels(
    factors: Sequence[Factor], choices: Sequence[tuple[int, ...]], arms: Sequence[Study]
) -> dict[str, tuple[str, ...]]:
    """Level labels by factor path, from the validated configurations.

    Raises:
        StudyFileError: Two levels of a factor have one label or one configuration.
    """
    labels: dict[str, tuple[str, ...]] = {}
    for position, factor in enumerate(factors):
        arm_of = dict(zip(choices[::-1], arms[::-1], strict=True))
        first = {choice[position]: arm for choice, arm in arm_of.items()}
        values = [value_at(first[index], factor.path) for index in range(len(factor.levels))]
        labels[factor.path] = tuple(
            level_label(value, level) for value, level in zip(values, factor.levels, strict=True)
        )
        for a, b in itertools.combinations(range(len(values)), 2):
            same_label = labels[factor.path][a] == labels[factor.path][b]
            if same_label or _same(first[a], first[b], factor, factors):
                raise StudyFileError(
                    f"{factor.where(a)} and {factor.where(b)} are the same level "
                    f"'{labels[factor.path][b]}'. Remove one"
                )
    return labels


def _same(a: Study, b: Study, factor: Factor, factors: Sequence[Factor]) -> bool:
    paths = [other.path for other in factors]
    return _owned(a, paths)[factor.path] == _owned(b, paths)[factor.path]


def value_at(study: Study, path: str) -> Plain:
    """The validated value at a dotted path."""
    value: Plain = study
    for name in path.split("."):
        value = dict(value)[name]
    return value


def level_label(value: Plain, level: Level) -> str:
    """How tables name a level.

    Args:
        value: The validated value.
        level: The level as the study file gives it.

    Returns:
        `spectrum(lam=0.5)` for a part, `0.0005` for a scalar; for a group of fields those that the
        level sets, `student_rollout=0.5,teacher_rollout=0.5`, or `base` if it sets none.
    """
    if isinstance(value, Config) and not isinstance(value, Part) and isinstance(level, Mapping):
        fields = dict(value)
        return ",".join(f"{name}={_shown(fields[name], level[name])}" for name in level) or "base"
    return format_value(value)


def _shown(value: Plain, level: Level) -> str:
    text = level_label(value, level)
    nested = isinstance(value, Config) and not isinstance(value, Part)
    return f"{{{text}}}" if nested else text


# ---------------------------------------------------------------- control and confounds


def leaves(tree: Mapping[str, Plain], prefix: str = "") -> Iterator[tuple[str, Plain]]:
    """Dotted path and value of every field of a dumped configuration."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(cast("Mapping[str, Plain]", value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def differences(a: Study, b: Study) -> tuple[str, ...]:
    """Dotted paths of all fields in which two configurations differ."""
    left, right = dict(leaves(a.model_dump())), dict(leaves(b.model_dump()))
    missing = object()
    return tuple(
        sorted(
            path
            for path in left.keys() | right.keys()
            if left.get(path, missing) != right.get(path, missing)
        )
    )


def _owned(study: Study, paths: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Fields by the factor they belong to ("" for none): the innermost that contains them."""
    owned: dict[str, dict[str, Any]] = {path: {} for path in ["", *paths]}
    for leaf, value in leaves(study.model_dump(exclude={"seeds"})):
        owner = max((path for path in paths if _within(leaf, path)), key=len, default="")
        owned[owner][leaf] = value
    return owned


def prove_control(cells: Sequence[Cell]) -> None:
    """Show from the configurations that a contrast changes its factor and nothing else.

    Outside the factors all cells are equal; inside a factor two cells are equal exactly if they
    have the same level. Hence two cells whose labels differ in one factor differ there only.

    Raises:
        RuntimeError: The proof fails; names the fields.
    """
    seen: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for cell in cells:
        paths = list(cell.factors)
        for owner, fields in _owned(cell.study, paths).items():
            known = seen[owner]
            label = cell.factors.get(owner, "")
            if known.setdefault(label, fields) != fields:
                differ = [name for name in fields if known[label].get(name) != fields[name]]
                raise RuntimeError(f"cell '{cell.name}' also differs in {', '.join(differ)}")
    for owner, known in seen.items():
        for (a, left), (b, right) in itertools.combinations(known.items(), 2):
            if left == right:
                raise RuntimeError(f"levels '{a}' and '{b}' of {owner} are one configuration")


@dataclass(frozen=True)
class Confound:
    """A contrast that changes a second thing with its factor.

    Attributes:
        factor: Dotted path of the factor contrasted.
        levels: The two level labels.
        also: What else changes, in words.
        offer: What to add to the study for matched cells.
    """

    factor: str
    levels: tuple[str, str]
    also: str
    offer: str


def confounds(cells: Sequence[Cell]) -> tuple[Confound, ...]:
    """Contrasts of rollouts that also change the sampling temperature."""
    found: dict[Confound, None] = {}
    blocks: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        rest = tuple(v for path, v in cell.factors.items() if path != "method.rollout")
        blocks[cell.seed, rest].append(cell)
    for block in blocks.values():
        for a, b in itertools.combinations(block, 2):
            if _sampled_at(a) != _sampled_at(b) and _sampled_at(a) and _sampled_at(b):
                found[_confound(a, b)] = None
    return tuple(found)


def _sampled_at(cell: Cell) -> frozenset[float]:
    """The temperatures at which a cell's completions are sampled."""
    temperature, kind = cell.study.method.temperature, cell.study.method.rollout.kind
    if kind == "dataset":
        return frozenset()
    if kind == "student":
        return frozenset({temperature.student_rollout})
    if kind == "teacher":
        return frozenset({temperature.teacher_rollout})
    return frozenset({temperature.student_rollout, temperature.teacher_rollout})


def _confound(a: Cell, b: Cell) -> Confound:
    temperature = a.study.method.temperature
    student, teacher = temperature.student_rollout, temperature.teacher_rollout
    matched = ", ".join(
        f"{{student_rollout: {value:g}, teacher_rollout: {value:g}}}"
        for value in (student, teacher)
    )
    path = "method.rollout"
    return Confound(
        factor=path,
        levels=(a.factors[path], b.factors[path]),
        also=(
            f"the sampling temperature (temperature.student_rollout {student:g}, "
            f"temperature.teacher_rollout {teacher:g})"
        ),
        offer=f"vary method.temperature: [{matched}]",
    )
