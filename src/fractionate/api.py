"""The library's front door: load a study, plan it, run it, look at the results."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fractionate.analysis.outcome_names import refuse_unmeasured
from fractionate.config import DRY_SUFFIX, Study, read_study
from fractionate.study.executors import Outcome, Progress, parse_executor
from fractionate.study.hardware import device_of_runs
from fractionate.study.kept import keeping
from fractionate.study.outcomes import Outcomes, read_outcomes
from fractionate.study.plan import Plan, make_plan
from fractionate.study.store import Store

DEFAULT_STORE, DRY_STORE = "runs", "runs-dry"
"""Where results go if nothing else is said; those of studies in miniature."""

if TYPE_CHECKING:
    import pandas as pd

    from fractionate.analysis.archive import Archive
    from fractionate.analysis.background import Background
    from fractionate.analysis.claims import Claim
    from fractionate.analysis.runs import Runs


class StageFailedError(RuntimeError):
    """Some stages failed; everything else is finished and stays.

    Attributes:
        results: What there is.
    """

    def __init__(self, message: str, results: "Results") -> None:
        """Keep the results beside the message."""
        super().__init__(message)
        self.results = results


def load_study(path: str | Path, overrides: Sequence[str] = ()) -> Study:
    """Read and validate a study file.

    Args:
        path: YAML file.
        overrides: `dotted.path=value`, applied before validation.

    Raises:
        StudyFileError: The file is missing or says something impossible; names the field.
    """
    return read_study(path, overrides)


def plan(study: Study | str | Path, *, device: str | None = None) -> Plan:
    """All cells and stages of a study, with their keys; loads no model.

    Args:
        study: A study or its file.
        device: On which stages run, "cpu" or "cuda"; none takes FRACTIONATE_DEVICE, or the CPU.

    Raises:
        StudyFileError: A level, a hypothesis or an input file is impossible.
        ValueError: The device is unknown.
    """
    study = study if isinstance(study, Study) else load_study(study)
    refuse_unmeasured(study)
    return make_plan(study, device=device_of_runs(device))


def dry_plan(study: Study, store: str | Path) -> Plan:
    """The plan of a study in miniature; its models and data are written into the store.

    Args:
        study: Any study.
        store: Where its results will be.

    Raises:
        StudyFileError: A model or a table is of a kind that has no miniature.
    """
    stages = importlib.import_module("fractionate.study.stages.dry")  # plans never reach torch
    return plan(stages.dry(study, Path(store) / "inputs" / study.name))


def run(
    plan: Plan,
    store: str | Path = DEFAULT_STORE,
    executor: str = "serial",
    progress: Progress | None = None,
    *,
    dry_scale: bool = False,
) -> "Results":
    """Compute what the store does not have yet. Running again resumes.

    Args:
        plan: What to run.
        store: Folder of the results.
        executor: "serial" or "process:N".
        progress: Told of every event of every stage.
        dry_scale: Run the study in miniature: every stage, on tiny random models. It shows that the
            study runs, and has no results. The default store is then `DRY_STORE`.

    Raises:
        StageFailedError: A stage failed; the others are finished.
        StoreError: The store cannot be written, or the disk cannot hold the results.
        KeyboardInterrupt: Stopped from outside; unfinished work is kept.
    """
    if dry_scale:
        store = DRY_STORE if str(store) == DEFAULT_STORE else store
        plan = dry_plan(plan.study, store)
    runner = parse_executor(executor)
    with keeping(plan.study, Store(store)):
        outcome = runner.run(plan, Path(store), progress=progress)
        if "preflight" not in {plan.stage(key).kind for key in outcome.done}:
            raise _failed(plan, store, outcome)  # no cell of this study can run as it is
    if outcome.failed:
        raise _failed(plan, store, outcome)
    return Results(plan, Store(store))


def _failed(plan: Plan, store: str | Path, outcome: Outcome) -> StageFailedError:
    lines = [f"{plan.stage(key).name}: {f.message}" for key, f in outcome.failed.items()]
    return StageFailedError("\n".join(lines), Results(plan, Store(store)))


@dataclass(frozen=True)
class Results:
    """What a plan's finished stages recorded.

    Attributes:
        plan: The plan.
        store: Where the results are.
    """

    plan: Plan
    store: Store

    @cached_property
    def outcomes(self) -> Outcomes:
        """All records, read once."""
        return read_outcomes(self.plan, self.store)

    def frame(self, *, allow_missing: bool = False) -> "pd.DataFrame":
        """A tidy table: one row per cell, step and metric, with interval and n.

        Raises:
            IncompleteStudyError: Cells are missing and `allow_missing` is False; lists them.
        """
        from fractionate.analysis.frame import frame_of

        return frame_of(self.runs(allow_missing=allow_missing))

    def anova(
        self,
        outcome: str,
        factors: Sequence[str] | None = None,
        *,
        allow_missing: bool = False,
    ) -> "pd.DataFrame":
        """Factorial analysis of variance of one outcome at the last step.

        Args:
            outcome: A metric of the frame, e.g. "accuracy".
            factors: Which factors, by path or alias; all varied ones by default. Runs are averaged
                over the others first.
            allow_missing: Use the seeds that are complete.

        Returns:
            One row per block and term: effect, SS, df, F, p, eta2 and omega2 with their intervals.

        Raises:
            IncompleteStudyError: Cells are missing and `allow_missing` is False.
            ValueError: The outcome was not measured, or a factor was not varied.
        """
        from fractionate.analysis.anova_table import anova_table
        from fractionate.analysis.attribution import attribute

        runs = self.runs(allow_missing=allow_missing)
        return anova_table(attribute(runs, outcome, factors or ()))

    def runs(self, *, allow_missing: bool = False) -> "Runs":
        """The cells grouped into arms, for the functions of `fractionate.analysis`.

        Raises:
            IncompleteStudyError: Cells are missing and `allow_missing` is False.
        """
        return self.archive().runs(allow_missing=allow_missing)

    def archive(self) -> "Archive":
        """The study with its records, apart from plan and store: what reports are made of."""
        from fractionate.analysis.archive import Archive

        return Archive(
            study=self.plan.study,
            cells=self.outcomes.cells,
            expected=tuple(cell.name for cell in self.plan.cells),
            background=_background(self),
        )


def report(
    results: "Results | Archive",
    path: str | Path,
    *,
    allow_missing: bool = False,
    claims: "Sequence[Claim] | None" = None,
) -> Path:
    """Write the self-contained HTML report of a study.

    Args:
        results: What `run` returned, `Results(plan, store)` of an earlier run, or exported records.
        path: The HTML file, or a folder to write `<name>.html` into.
        allow_missing: Report on the cells there are, and say which are missing.
        claims: The paper's claims as judged on several studies; none judges them on this one.

    Returns:
        The file written.

    Raises:
        IncompleteStudyError: Cells are missing and `allow_missing` is False.
    """
    from fractionate.analysis.report import render_report

    archive = results.archive() if isinstance(results, Results) else results
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        path = path / f"{archive.study.name}.html"
    runs = archive.runs(allow_missing=allow_missing)
    html = render_report(runs, archive.background, claims)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")
    return path


def _background(results: Results) -> "Background":
    """What the report says beside the records."""
    from fractionate.analysis.background import Background, Example

    plan, outcomes = results.plan, results.outcomes
    return Background(
        plan_key=plan.key,
        hypotheses_hash=plan.hypotheses_hash,
        confounds=tuple(
            f"{found.factor}: '{found.levels[0]}' against '{found.levels[1]}' also changes "
            f"{found.also}. For matched cells: {found.offer}"
            for found in plan.confounds
        ),
        notes=(*plan.notes, *outcomes.preflight.get("warnings", ())),
        teacher=outcomes.teacher_evaluation,
        examples=tuple(
            Example(cell, shown["prompt"], shown["completion"], shown["verdict"])
            for cell, several in outcomes.examples.items()
            for shown in several[:1]
        ),
        provenance=outcomes.provenance,
        smoke=plan.study.name == "smoke" or plan.study.name.endswith(DRY_SUFFIX),
    )
