"""The report of a study: one self-contained HTML file, readable without a network."""

import json
from collections.abc import Mapping, Sequence
from typing import cast

import jinja2
import plotly.offline  # pyright: ignore[reportMissingTypeStubs] - plotly ships none

from fractionate.analysis.answer import OUTCOMES, Answer, answer
from fractionate.analysis.attribution import attribute
from fractionate.analysis.background import Background
from fractionate.analysis.claims import Claim, decided, judge_claims
from fractionate.analysis.course import course_table, rlvr_table
from fractionate.analysis.figures import figures
from fractionate.analysis.hypotheses import judge_hypotheses
from fractionate.analysis.knobs import knob_name
from fractionate.analysis.notes import floor_notes, item_note
from fractionate.analysis.paper import PAPER
from fractionate.analysis.rounding import rounding
from fractionate.analysis.runs import ROLLOUT, Runs
from fractionate.analysis.tables import (
    Table,
    attribution_table,
    cells_table,
    claims_table,
    cost_table,
    glossary,
    hypothesis_table,
    rollout_table,
)
from fractionate.analysis.teacher_table import teacher_table
from fractionate.analysis.tradeoff import drift_fit, tradeoff

MORE_OUTCOMES = ("pass@16@1", "harder", "sparsity_excess@1e-06")
"""Outcomes of the attribution table beside those of the answer."""

SANDBOX_SCOPE = (
    "This is a model organism: tiny models on a made-up task. What is found here holds for this "
    "sandbox, never for large language models."
)
MODELS_SCOPE = (
    "What is found here holds for these models, this task and this budget; nothing is claimed "
    "beyond them."
)


def render_report(
    runs: Runs, background: Background | None = None, claims: Sequence[Claim] | None = None
) -> str:
    """The report as HTML with everything inside: styles, figures and the drawing library.

    Args:
        runs: The study, from `gather`.
        background: What is known beside the records.
        claims: The paper's claims as judged on several studies; none judges them on this one.

    Returns:
        One HTML document. Model output, names and labels are escaped.
    """
    background = background or Background()
    found = answer(runs)
    study = runs.study
    claims = judge_claims(runs) if claims is None else claims
    return _template().render(
        title=study.name if study else "Study",
        question=(study.question if study else None) or _question(runs),
        scope=SANDBOX_SCOPE if study is None or study.world is not None else MODELS_SCOPE,
        answer=found,
        design=_design(runs),
        incomplete=runs.complete.note,
        floors=floor_notes(runs, background.teacher),
        items=item_note(runs),
        attribution=_attribution(runs, found),
        figures=figures(runs),
        rollout=rollout_table(runs, OUTCOMES),
        hypotheses=_hypotheses(runs),
        claims=claims_table(claims),
        untestable=[claim for claim in claims if claim.finding is None],
        paper=PAPER,
        decided=decided(claims),
        cells=cells_table(runs, background.teacher),
        single=cells_table(runs, background.teacher, single=True),
        confounds=background.confounds or _own_confounds(runs),
        course=course_table(runs),
        followed=rlvr_table(runs),
        costs=cost_table(runs),
        rounding=rounding(runs),
        tradeoff=tradeoff(runs),
        drift=drift_fit(runs),
        teachers=teacher_table({study.name if study else "teacher": background.teacher}),
        glossary=glossary(runs),
        background=background,
        provenance=_flat(background.provenance),
        script_json=script_json,
        plotly=plotly.offline.get_plotlyjs(),
    )


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fractionate.analysis"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")


def script_json(value: object) -> str:
    """JSON for inside a script element: no character that could end it or start markup."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _question(runs: Runs) -> str:
    names = [knob_name(factor) for factor in runs.varied()]
    if not names:
        return "What did this run do?"
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"What did {listed} each do?"


def _design(runs: Runs) -> str:
    factors = " × ".join(
        f"{len(labels)} {knob_name(factor)}" for factor, labels in runs.levels.items()
    )
    seeds = runs.seeds()
    listed = ", ".join(str(seed) for seed in seeds)
    counted = [
        f"{number} {what}{'s' if number != 1 else ''}"
        for number, what in ((len(runs.runs), "run"), (len(seeds), "seed"))
    ]
    return f"{counted[0]}: {factors or 'one arm'} × {counted[1]} ({listed})"


def _attribution(runs: Runs, found: Answer) -> Table:
    held = dict(found.attributions)
    for outcome in MORE_OUTCOMES:
        if runs.measured(outcome) and runs.complete.seeds:
            held[outcome] = attribute(runs, outcome)
    return attribution_table(held)


def _hypotheses(runs: Runs) -> Table | None:
    declared = runs.study.hypotheses if runs.study else ()
    if not declared or not runs.complete.seeds:
        return None
    return hypothesis_table(judge_hypotheses(runs, declared))


def _own_confounds(runs: Runs) -> tuple[str, ...]:
    """The one confound of the usual design: who samples also decides at which temperature."""
    if runs.study is None or not {"student", "teacher"} <= set(runs.levels.get(ROLLOUT, ())):
        return ()
    temperature = runs.study.method.temperature
    if temperature.student_rollout == temperature.teacher_rollout:
        return ()
    sentence = (
        f"Student rollouts are sampled at temperature {temperature.student_rollout:g}, teacher "
        f"rollouts at {temperature.teacher_rollout:g}: a contrast of the two policies also changes "
        "the sampling temperature. Only cells with matched temperatures separate them."
    )
    return (sentence,)


def _flat(value: object, name: str = "") -> list[tuple[str, str]]:
    """Nested plain values as (dotted name, text) pairs."""
    pairs: list[tuple[str, object]]
    if isinstance(value, Mapping):
        mapping = cast("Mapping[object, object]", value)
        pairs = [(str(key), inner) for key, inner in mapping.items()]
    elif isinstance(value, list | tuple):
        sequence = cast("Sequence[object]", value)
        pairs = [(str(i + 1), inner) for i, inner in enumerate(sequence)]
    else:
        return [(name, str(value))]
    return [line for key, inner in pairs for line in _flat(inner, f"{name}.{key}" if name else key)]
