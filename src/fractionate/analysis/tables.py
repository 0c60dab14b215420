"""The tables of a report as rows of text, ready for a template."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fractionate.analysis.answer import show_difference, show_interval, show_number
from fractionate.analysis.attribution import Attribution
from fractionate.analysis.claims import Claim
from fractionate.analysis.contrasts import PairedEffect, simple_effects
from fractionate.analysis.evidence import Finding
from fractionate.analysis.hypotheses import Tested
from fractionate.analysis.knobs import Share, Swing, knob_name
from fractionate.analysis.measure import Value, evaluation_values
from fractionate.analysis.metrics_table import describe
from fractionate.analysis.runs import ROLLOUT, Run, Runs
from fractionate.records import EvalRecord

ABSENT = "–"
INTERVAL = "95\N{NO-BREAK SPACE}%"


@dataclass(frozen=True)
class Column:
    """A column head.

    Attributes:
        label: Short.
        title: Long form, shown under the pointer.
        number: Whether its cells are numbers, aligned to the right.
    """

    label: str
    title: str = ""
    number: bool = True


@dataclass(frozen=True)
class Row:
    """A row.

    Attributes:
        cells: Text by column.
        mark: A word for styling: "named", "reference", a verdict, or "".
        bar: Length of the bar behind the first number, 0..1; None draws none.
    """

    cells: tuple[str, ...]
    mark: str = ""
    bar: float | None = None


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        columns: Heads.
        rows: Rows.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


def text_column(label: str, title: str = "") -> Column:
    """A column of words."""
    return Column(label, title, number=False)


# ---------------------------------------------------------------- which knob


def attribution_table(found: Mapping[str, Attribution]) -> Table:
    """One row per outcome and knob, then the largest interaction of the outcome."""
    columns = (
        text_column("Outcome"),
        text_column("Knob"),
        Column("ω²", "Share of the variance between runs that the main effect explains"),
        Column(INTERVAL, "Interval over seeds: wild bootstrap of the residuals"),
        Column("ranks first", "Share of bootstrap replicates in which no other knob has more"),
        Column("worst-case swing", "Largest change at fixed settings of the other knobs"),
        Column(INTERVAL, "t interval, corrected for having picked the worst setting"),
        text_column("where", "Better level > worse level, and the settings of the other knobs"),
    )
    rows = [row for outcome, each in found.items() for row in _knob_rows(outcome, each)]
    return Table(columns, tuple(rows))


def _knob_rows(outcome: str, found: Attribution) -> list[Row]:
    label = describe(outcome).label
    if not found.knobs:
        return [Row((label, found.reason, *([ABSENT] * 6)))]
    rows: list[Row] = []
    for i, knob in enumerate(found.knobs):
        swing = knob.swing
        first = ABSENT if knob.first is None else f"{100 * knob.first:.0f} %"
        cells = (
            label if i == 0 else "",
            knob_name(knob.factor),
            *_share(knob.share),
            first,
            show_difference(outcome, swing.value).lstrip("+"),
            show_interval(outcome, swing.low, swing.high).replace("+", ""),
            _where(swing),
        )
        mark = "named" if knob.factor == found.named else ""
        rows.append(Row(cells, mark, _bar(knob.share)))
    for share in found.interactions[:1]:
        names = " × ".join(knob_name(factor) for factor in share.factors)
        mark = "named" if found.joint is not None else "minor"
        cells = ("", f"{names} (interaction)", *_share(share), ABSENT, ABSENT, "", "")
        rows.append(Row(cells, mark, _bar(share)))
    return rows


def _where(swing: Swing) -> str:
    if swing.value == 0:
        return ABSENT
    at = f" at {', '.join(swing.at)}" if swing.at else ""
    return f"{swing.best} > {swing.worst}{at}"


def _share(share: Share) -> tuple[str, str]:
    if share.omega2 is None or share.low is None or share.high is None:
        return ABSENT, ABSENT
    ends = f"[{show_number(share.low)}, {show_number(share.high)}]"
    return show_number(share.omega2), ends


def _bar(share: Share) -> float:
    return min(1.0, max(0.0, share.omega2 or 0.0))


# ---------------------------------------------------------------- contrasts


def _effect_cells(effect: PairedEffect) -> tuple[str, str, str]:
    items = show_interval(effect.outcome, effect.item_low, effect.item_high)
    return (
        show_difference(effect.outcome, effect.difference),
        show_interval(effect.outcome, effect.low, effect.high),
        items if effect.item_low is not None else ABSENT,
    )


def _within(effect: PairedEffect) -> str:
    return ", ".join(f"{knob_name(f)} {label}" for f, label in effect.within.items())


def rollout_table(runs: Runs, outcomes: Sequence[str]) -> Table | None:
    """Student minus teacher rollouts at every setting; None without both policies."""
    if not {"student", "teacher"} <= set(runs.levels.get(ROLLOUT, ())) or not runs.complete.seeds:
        return None
    held = [outcome for outcome in outcomes if runs.measured(outcome)]
    effects = {
        outcome: simple_effects(runs, outcome, ROLLOUT, levels=("student", "teacher"))
        for outcome in held
    }
    columns = [text_column("Setting")]
    for outcome in held:
        label = describe(outcome).label
        columns += [Column(label, f"{label}, student − teacher"), Column(INTERVAL)]
    settings = [effect.within for effect in effects[held[0]]] if held else []
    rows: list[Row] = []
    for i, _ in enumerate(settings):
        cells: list[str] = [_within(effects[held[0]][i]) or "all runs"]
        for outcome in held:
            cells += _effect_cells(effects[outcome][i])[:2]
        rows.append(Row(tuple(cells)))
    return Table(tuple(columns), tuple(rows))


def hypothesis_table(tested: Sequence[Tested]) -> Table:
    """Declared contrasts with intervals, adjusted p and verdict."""
    columns = (
        text_column("Declared contrast"),
        text_column("within"),
        Column("difference"),
        Column(INTERVAL, "t interval over pairs of runs"),
        Column(f"{INTERVAL}, items", "Bootstrap over seeds and items"),
        Column("Holm p", "Adjusted over all declared contrasts"),
        Column("margin", "Two arms closer than this are called equivalent"),
        text_column("verdict"),
    )
    return Table(columns, tuple(_hypothesis_row(item) for item in tested))


def _hypothesis_row(item: Tested) -> Row:
    declared = item.hypothesis
    name = (
        f"{describe(declared.outcome).label}: {knob_name(declared.factor)}, "
        f"{declared.treatment} − {declared.control}"
    )
    margin = declared.equivalence_margin
    shown = ABSENT if margin is None else show_difference(declared.outcome, margin)
    shown = shown.replace("+", "±")
    verdict = item.verdict if item.reason is None else f"{item.verdict}: {item.reason}"
    if item.effect is None:
        return Row((name, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, shown, verdict), item.verdict)
    p = ABSENT if item.holm_p is None else f"{item.holm_p:.3f}"
    within = _within(item.effect) or ABSENT
    return Row((name, within, *_effect_cells(item.effect), p, shown, verdict), item.verdict)


def claims_table(claims: Sequence[Claim]) -> Table:
    """Claims of the paper that these records can test."""
    columns = (
        text_column("#"),
        text_column("The paper says"),
        text_column("its value"),
        text_column("here"),
        text_column("verdict"),
        Column("detectable", "Distance from the threshold that is told with 80 % power"),
        text_column("runs"),
        text_column("its scope"),
    )
    rows = [
        Row(
            (
                claim.key,
                claim.published.statement,
                f"{claim.published.value} ({claim.published.where})",
                claim.finding.text,
                claim.finding.verdict,
                detectable_text(claim.finding),
                claim.source or ABSENT,
                claim.published.scope,
            ),
            claim.finding.verdict,
        )
        for claim in claims
        if claim.finding is not None
    ]
    return Table(columns, tuple(rows))


def detectable_text(finding: Finding) -> str:
    """The smallest detectable distance, with its unit."""
    value = finding.detectable
    return ABSENT if value is None else f"{value:.1f} pp" if finding.unit else f"{value:.2f}"


# ---------------------------------------------------------------- every cell

Cell = Callable[[Mapping[str, Value]], str]


def _metric(name: str) -> Cell:
    def cell(values: Mapping[str, Value]) -> str:
        if name not in values:
            return ABSENT
        value = values[name].value
        share = describe(name).unit == "share"
        return show_number(100 * value, ".1f") if share else show_number(value, ".3g")

    return cell


def _pair(first: str, second: str) -> Cell:
    one, two = _metric(first), _metric(second)
    return lambda values: f"{one(values)} / {two(values)}"


def _skills(values: Mapping[str, Value]) -> str:
    return _pair("skills", "skills_chance_corrected")(values)


def _unmoved(values: Mapping[str, Value]) -> str:
    return _pair("sparsity@1e-06", "rounding_null@1e-06")(values)


def cell_columns(final: Mapping[str, Value]) -> list[tuple[Column, Cell]]:
    """What is always shown together; coverage at every temperature and its largest k."""
    chosen: list[tuple[Column, Cell]] = [(Column("accuracy, %"), _metric("accuracy"))]
    sampled: dict[str, list[int]] = {}
    for name in final:
        if name.startswith("pass@"):
            _, k, temperature = name.split("@")
            sampled.setdefault(temperature, []).append(int(k))
    for temperature, ks in sorted(sampled.items()):
        names = (f"pass@{min(ks)}@{temperature}", f"pass@{max(ks)}@{temperature}")
        label = f"p@{min(ks)} / p@{max(ks)}, T {temperature}"
        chosen.append((Column(label, "pass@k in percent, unbiased"), _pair(*names)))
    chosen += [
        (Column("finished, %", "Completions that ended by themselves"), _metric("completion_rate")),
        (Column("parsed, %", "Completions with a readable answer"), _metric("parse_rate")),
        (Column("length", "Mean completion length in tokens"), _metric("mean_length")),
        (Column("skills / above chance, %", "Prior skills, raw and chance-corrected"), _skills),
        (
            Column("unmoved / rounding null, %", "Weights moved by less than 1e-6, and the share "
                   "that rounding alone keeps unmoved"),
            _unmoved,
        ),
        (Column("harder, %", "Accuracy on the harder task"), _metric("harder")),
        *_more(final),
        (Column("in the teacher's style, %", "Of the answers"), _metric("style_share")),
        (Column("KL to base", "Nats per token"), _metric("kl_to_base")),
        (Column("KL to teacher", "Nats per token"), _metric("kl_to_teacher")),
    ]  # fmt: skip
    return chosen


def _more(final: Mapping[str, Value]) -> Iterator[tuple[Column, Cell]]:
    """Samples of the harder task, and one set of prompts at several temperatures."""
    for name in final:
        kind, _, at = name.partition("@")
        if kind == "harder_pass":
            yield Column(f"harder, p@{at}, %", "pass@k on the harder task"), _metric(name)
        elif kind == "resampled_accuracy":
            yield Column(f"sampled again, T {at}, %", "Accuracy on the same prompts"), _metric(name)


def average(runs: Sequence[Run], step: int | None = None) -> dict[str, Value]:
    """Means over runs of what all of them measured, at the last step or at `step`."""
    held = [run.final if step is None else run.by_step.get(step, {}) for run in runs]
    shared = [name for name in held[0] if all(name in values for values in held)] if held else []
    return {
        name: Value(name, float(np.mean([v[name].value for v in held])), None, None, len(held))
        for name in shared
    }


def cells_table(runs: Runs, teacher: Sequence[EvalRecord], *, single: bool = False) -> Table:
    """Every arm (or, if `single`, every run), after the untrained student and the teacher."""
    chosen = cell_columns(runs.runs[0].final)
    rows: list[Row] = []

    def row(name: str, seeds: str, values: Mapping[str, Value], mark: str = "") -> None:
        rows.append(Row((name, seeds, *(cell(values) for _, cell in chosen)), mark))

    if teacher:
        own = {value.metric: value for value in evaluation_values(teacher, None)}
        row("teacher model", "", own, "reference")
    start = average(runs.of(runs.arms[0]), step=0)
    if start:
        row("untrained student", "", start, "reference")
    for arm in runs.arms:
        if single:
            for run in runs.of(arm):
                row(arm.label, str(run.cell.seed), run.final)
        else:
            row(arm.label, str(len(runs.of(arm))), average(runs.of(arm)))
    head = (text_column("Cell"), Column("seed" if single else "seeds"))
    used = [i for i in range(len(chosen)) if any(_known(r.cells[i + 2]) for r in rows)]
    trimmed = (Row((*r.cells[:2], *(r.cells[i + 2] for i in used)), r.mark) for r in rows)
    return Table((*head, *(chosen[i][0] for i in used)), tuple(trimmed))


def _known(text: str) -> bool:
    return any(character.isdigit() for character in text)


COSTS = (
    ("tokens_generated", "generated", "Tokens decoded for the cell, mean over seeds"),
    ("tokens_scored", "scored", "Tokens scored by the teacher"),
    ("tokens_trained", "trained", "Tokens in the loss"),
    ("flops", "FLOPs", "Floating-point operations of the cell"),
    ("shared_flops", "shared FLOPs", "The cell's share of stages that several cells use"),
    ("seconds", "seconds", "Wall time of training"),
)


def cost_table(runs: Runs) -> Table:
    """What each arm cost, mean over seeds."""
    held = [cost for cost in COSTS if any(cost[0] in run.final for run in runs.runs)]
    columns = (text_column("Cell"), *(Column(label, title) for _, label, title in held))
    rows: list[Row] = []
    for arm in runs.arms:
        values = average(runs.of(arm))
        cells = [_count(values[name].value) if name in values else ABSENT for name, _, _ in held]
        rows.append(Row((arm.label, *cells)))
    return Table(columns, tuple(rows))


def _count(value: float) -> str:
    """A large number with a unit prefix: `38.4 k`, `1.9 T`."""
    for limit, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {prefix}"
    return f"{value:.3g}"


def glossary(runs: Runs) -> Table:
    """What every measured metric means."""
    names = dict.fromkeys(name for run in runs.runs for name in run.final)
    families: dict[str, tuple[str, ...]] = {}
    for name in names:
        found = describe(name)
        stem = name.split("@")[0].split(":")[0]
        families.setdefault(stem, (stem, found.unit, found.description))
    rows = tuple(Row(cells) for cells in families.values())
    columns = (text_column("metric"), text_column("unit"), text_column("meaning"))
    return Table(columns, rows)
