"""The results of several studies as one Markdown page: what was run, and what came of it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from fractionate.analysis.answer import answer
from fractionate.analysis.archive import Archive
from fractionate.analysis.claims import Claim, decided, judge_claims
from fractionate.analysis.course import course_table, rlvr_table
from fractionate.analysis.designs import designs
from fractionate.analysis.hypotheses import judge_hypotheses
from fractionate.analysis.knobs import knob_name
from fractionate.analysis.notes import floor_notes
from fractionate.analysis.paper import PAPER
from fractionate.analysis.rounding import rounding
from fractionate.analysis.runs import Runs
from fractionate.analysis.tables import (
    ABSENT,
    Table,
    attribution_table,
    cells_table,
    claims_table,
    hypothesis_table,
)
from fractionate.analysis.teacher_table import teacher_table
from fractionate.analysis.tradeoff import drift_fit, tradeoff

PACKAGES = ("fractionate", "torch", "transformers", "trl", "numpy")
"""Packages whose versions a section names."""


PREAMBLE = (
    "Written by `fractionate report … --markdown` from the records of the studies below; do not "
    "edit. All of it comes from tiny models on made-up tasks unless a section says otherwise, and "
    "speaks of them only."
)


def results_page(studies: Sequence[Archive], *, allow_missing: bool = False) -> str:
    """A section on the paper's claims, judged on all studies together, then one per study.

    Args:
        studies: The studies, in the order of the page.
        allow_missing: Take what is finished of a study.

    Returns:
        Markdown, the same for the same records.

    Raises:
        IncompleteStudyError: Cells of a study are missing and `allow_missing` is False.
    """
    gathered = [study.runs(allow_missing=allow_missing) for study in studies]
    parts = [
        "# Results",
        PREAMBLE,
        *_claims(judge_claims(gathered)),
        *_teachers(studies),
    ]
    for archive, runs in zip(studies, gathered, strict=True):
        parts += _section(archive, runs)
    return "\n\n".join(parts) + "\n"


def markdown_table(table: Table) -> str:
    """A table in Markdown; bars and hidden titles are left out."""
    head = [_cell(column.label) for column in table.columns]
    rule = ["---:" if column.number else "---" for column in table.columns]
    rows = [[_cell(text) for text in row.cells] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# ---------------------------------------------------------------- the claims


def _claims(claims: Sequence[Claim]) -> Iterator[str]:
    counts = {
        verdict: sum(claim.verdict == verdict for claim in claims)
        for verdict in ("holds", "does not hold", "cannot be told", "no verdict")
    }
    yield f"## The paper's claims, on all studies together ({PAPER})"
    yield (
        f"{decided(claims)} of {len(claims)} claims are decided: {counts['holds']} hold, "
        f"{counts['does not hold']} do not, {counts['cannot be told']} cannot be told at this "
        f"number of seeds and items, {counts['no verdict']} could not be tested. The rules were "
        "frozen in code before any run; they are listed below. “Detectable” is the distance from "
        "the threshold that studies of this size tell in four of five cases."
    )
    yield markdown_table(claims_table(claims))
    lost = [claim for claim in claims if claim.finding is None]
    if lost:
        yield "Not tested:"
        yield "\n".join(
            f"- {claim.key}: {claim.published.statement} {_sentence(claim.untestable or '')} "
            f"({claim.experiment} of the paper has it.)"
            for claim in lost
        )
    yield "The rules:"
    yield "\n".join(f"- {claim.key}: {claim.rule}" for claim in claims)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _teachers(studies: Sequence[Archive]) -> Iterator[str]:
    table = teacher_table({study.study.name: study.background.teacher for study in studies})
    if table is not None:
        yield "## Teachers"
        yield markdown_table(table)


# ---------------------------------------------------------------- one study


def _section(archive: Archive, runs: Runs) -> Iterator[str]:
    study = archive.study
    found = answer(runs)
    yield f"## {study.name}"
    if study.question:
        yield study.question.strip()
    yield "\n".join(f"- {line}" for line in _made(archive, runs))
    if runs.complete.note:
        yield f"**Incomplete.** {_sentence(runs.complete.note)}"
    yield "\n\n".join(found.sentences)
    notes = (*floor_notes(runs, archive.background.teacher), *archive.background.confounds)
    if notes:
        yield "\n".join(f"- {note}" for note in notes)
    if runs.complete.seeds:
        yield "### Which knob explains how much"
        yield markdown_table(attribution_table(found.attributions))
    if study.hypotheses and runs.complete.seeds:
        yield "### Declared hypotheses"
        yield markdown_table(hypothesis_table(judge_hypotheses(runs, study.hypotheses)))
    yield "### Cells"
    yield markdown_table(cells_table(runs, archive.background.teacher))
    yield from _views(runs)


def _views(runs: Runs) -> Iterator[str]:
    course = course_table(runs)
    if course is not None:
        yield "### Step by step"
        yield markdown_table(course)
    followed = rlvr_table(runs)
    if followed is not None:
        yield "### Reinforcement learning afterwards"
        yield markdown_table(followed)
    beside = rounding(runs)
    if beside is not None:
        yield "### Sparsity beside rounding alone"
        yield beside.sentence
        yield markdown_table(beside.cells)
        if beside.effects is not None:
            yield markdown_table(beside.effects)
    traded = tradeoff(runs)
    if traded is not None:
        yield "### Gain on the task, loss elsewhere"
        yield traded.matched
        yield markdown_table(traded.pairs)
    drift = drift_fit(runs)
    if drift is not None:
        yield "\n\n".join(drift.sentences)


def _made(archive: Archive, runs: Runs) -> Iterator[str]:
    """What was run, when, with what, and for how long."""
    factors = " × ".join(f"{len(held)} {knob_name(name)}" for name, held in runs.levels.items())
    seeds = ", ".join(str(seed) for seed in runs.seeds())
    yield f"Run: {len(runs.runs)} cells ({factors or 'one arm'}), seeds {seeds}"
    for design in designs((runs,)):
        if design.deviations:
            apart = ", ".join(design.deviations)
            yield f"Unlike the paper's main experiment: {design.name}: {apart}"
    known = archive.background.provenance
    finished = cast("Mapping[str, str]", known.get("finished", {}))
    if finished:
        yield f"When: {finished['first']} to {finished['last']}"
    seconds = known.get("seconds")
    if seconds is not None:
        own = sum(run.cell.seconds or 0.0 for run in runs.runs)
        yield f"Time: {_time(float(seconds))} over all stages, {_time(own)} of it training of cells"
    for entry in cast("Sequence[Mapping[str, Any]]", known.get("runs", ())):
        yield f"Versions: {_versions(entry)}"
    yield f"Plan: `{(archive.background.plan_key or ABSENT)[:16]}`"


def _versions(entry: Mapping[str, Any]) -> str:
    packages = cast("Mapping[str, str]", entry.get("packages", {}))
    named = [f"{name} {packages[name]}" for name in PACKAGES if name in packages]
    python, commit = entry.get("python"), entry.get("commit")
    return ", ".join(
        [*named, f"Python {python}", f"commit {str(commit)[:12]}" if commit else ""]
    ).rstrip(", ")


def _time(seconds: float) -> str:
    minutes = seconds / 60
    return f"{minutes:.1f} min" if minutes >= 1 else f"{seconds:.0f} s"
