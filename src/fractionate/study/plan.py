"""The plan: which stages a study needs, in which order, and under which keys.

Nothing here loads a model. A plan is a pure function of the study, of the content of its input
files and of the device type, so the same study always has the same keys.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fractionate.config import Adaptation, Rlvr, Study, StudyFileError, TeacherTraining
from fractionate.study import describe, reads
from fractionate.study.cells import Cell, Confound, confounds, expand
from fractionate.study.cost import PlanCost, estimate
from fractionate.study.declared import check_hypotheses, check_rates
from fractionate.study.dimensions import Dimensions, dimensions_of, require_weights
from fractionate.study.follow_up import check_cells, goes_on
from fractionate.study.hardware import fallback_note, settled
from fractionate.study.identity import (
    Source,
    benchmark_inputs,
    data_inputs,
    student_input,
    teacher_input,
)
from fractionate.study.kernels import settled_kernel
from fractionate.study.keys import Draft, Stage, digest
from fractionate.study.store import Store
from fractionate.study.student_bases import StudentBase, base_name, student_base_of


@dataclass(frozen=True)
class CellStages:
    """The stages behind one cell, by key.

    Attributes:
        cell: The cell.
        training: Its training run.
        base: Its student base.
        corpus: The teacher completions it trains on, if they are cached.
        base_evaluation: The untrained student, if step 0 is evaluated.
        evaluations: Its evaluations by step; the last step is "last".
        rlvr: The reinforcement learning that goes on from it, if any.
        rlvr_evaluations: The evaluations of that, by update.
    """

    cell: Cell
    training: str
    base: str
    corpus: str | None
    base_evaluation: str | None
    evaluations: Mapping[reads.At, str]
    rlvr: str | None = None
    rlvr_evaluations: Mapping[reads.At, str] = field(default_factory=dict[reads.At, str])


@dataclass(frozen=True)
class Plan:
    """What a study will do.

    Attributes:
        study: The study.
        cells: Every cell: all arms of the first seed, then of the next.
        cell_stages: The stages behind each cell, by its name.
        stages: Every stage once; parents before children, shared stages first.
        confounds: Contrasts that change a second thing with their factor.
        notes: What the reader should know before the run.
        hypotheses_hash: SHA-256 of the declared hypotheses, margins and rates.
        key: SHA-256 over the names of the cells, all stage keys and the hypotheses.
    """

    study: Study
    cells: tuple[Cell, ...]
    cell_stages: Mapping[str, CellStages]
    stages: tuple[Stage, ...]
    confounds: tuple[Confound, ...]
    notes: tuple[str, ...]
    hypotheses_hash: str
    key: str

    @cached_property
    def by_key(self) -> Mapping[str, Stage]:
        """Stages by key."""
        return {stage.key: stage for stage in self.stages}

    def stage(self, key: str) -> Stage:
        """The stage with a key."""
        return self.by_key[key]

    def of_kind(self, kind: str) -> tuple[Stage, ...]:
        """All stages of one kind, in order."""
        return tuple(stage for stage in self.stages if stage.kind == kind)

    def descendants(self, key: str) -> frozenset[str]:
        """Keys of all stages that cannot run without this one."""
        found = {key}
        for stage in self.stages:
            if found.intersection(stage.needs):
                found.add(stage.key)
        return frozenset(found - {key})

    def dimensions(self, stage: Stage) -> Dimensions | None:
        """Sizes of the model of a `student_base` or `teacher` stage, where they can be told."""
        return dimensions_of(stage.inputs["model"].location)

    def cost(self, store: Store | None = None) -> PlanCost:
        """Estimated cost, upper bounds where it depends on what models write."""
        return estimate(self.stages, store)

    def describe(self, store: Store | None = None) -> str:
        """The plan for people; with a store also what is done already."""
        return describe.text(self, self.cost(store))

    def to_dict(self, store: Store | None = None) -> dict[str, Any]:
        """The plan as plain values."""
        return describe.plain(self, self.cost(store))

    def to_json(self, store: Store | None = None) -> str:
        """The plan as JSON."""
        return json.dumps(self.to_dict(store), indent=2, allow_nan=False)


def make_plan(study: Study, *, device: str = "cpu", threads: int = 1) -> Plan:
    """Plan a study.

    Args:
        study: The study.
        device: Device type on which stages run, "cpu" or "cuda".
        threads: Threads of every stage.

    Raises:
        StudyFileError: A level, a hypothesis or an input is impossible; names the field.
    """
    cells = expand(study)
    check_hypotheses(study, cells)
    check_rates(study, cells)
    check_cells(study, cells)
    sources = [student_input(study, cells[0].base).location, teacher_input(study).location]
    kernel = settled_kernel(study.kernel, sources, device=device, threads=threads)
    builder = _Builder(study, {"device": device, "threads": threads, "kernel": kernel})
    planned = builder.build(cells)
    stages = builder.ordered()
    hypotheses = digest(
        {
            "hypotheses": [h.model_dump(mode="json") for h in study.hypotheses],
            "rates": study.rates.model_dump(mode="json") if study.rates is not None else None,
        }
    )
    named = [[cell.cell.name, cell.training] for cell in planned]
    return Plan(
        study=study,
        cells=cells,
        cell_stages={stages.cell.name: stages for stages in planned},
        stages=stages,
        confounds=confounds(cells),
        notes=tuple(builder.notes),
        hypotheses_hash=hypotheses,
        key=digest([study.name, named, [stage.key for stage in stages], hypotheses]),
    )


class _Builder:
    """Collects stages, each once."""

    def __init__(self, study: Study, execution: Mapping[str, str | int]) -> None:
        self._study = study
        self._execution = execution
        self._stages: dict[str, Stage] = {}
        self._data = data_inputs(study)
        self._students: dict[StudentBase, dict[str, Any]] = {}
        self._teacher: dict[str, Any] = {}
        self.notes: list[str] = []
        for name, source in {s.location: (name, s) for name, s in self._data.items()}.values():
            self._pinned(source, f"task.{name.partition('.')[2]}.revision")

    def build(self, cells: Sequence[Cell]) -> tuple[CellStages, ...]:
        study = self._study
        bases: dict[StudentBase, str] = {}
        for base, owner in sorted({student_base_of(c): c for c in cells}.items()):
            source = self._pinned(student_input(owner.study, owner.base), "models.student_revision")
            _sizes(source, _field_of(study, "student"))
            self._students[base] = where(source, "float32")
            bases[base] = self._add(
                "student_base",
                base_name(base),
                reads.student_base(study),
                model=source,
                runtime={"student": self._students[base]},
            )
        source = self._pinned(teacher_input(study), "models.teacher_revision")
        self._teacher = where(source, reads.teacher(study)["teacher_dtype"])
        loaded = {"teacher": self._teacher}
        teacher = self._add(
            "teacher", "teacher", reads.teacher(study), model=source, runtime=loaded
        )
        self._dimensions = _sizes(source, _field_of(study, "teacher"))
        for i, stage in enumerate(study.teacher_training):
            teacher = self._teacher_training(i, stage, teacher)
        settings = self._rlvr_settings()
        preflight = self._add(
            "preflight",
            "preflight",
            reads.preflight(study, cells, settings),
            (*bases.values(), teacher),
            inputs={**self._data, **self._rewarded_data("rlvr")},
            runtime={"student": self._students[min(bases)], "teacher": self._teacher},
        )
        if reads.measures_anything(study):
            self._add(
                "teacher_evaluation",
                "evaluation of the teacher",
                reads.teacher_evaluation(study),
                (teacher,),
                after=(preflight,),
                runtime={"teacher": self._teacher},
            )
        planned = (
            self._cell(cell, bases[student_base_of(cell)], teacher, preflight) for cell in cells
        )
        return tuple(
            stages if settings is None else self._rlvr(stages, settings) for stages in planned
        )

    def ordered(self) -> tuple[Stage, ...]:
        """Shared stages first, then every cell followed by its evaluations."""
        own = ("cell", "cell_evaluation", "rlvr", "rlvr_evaluation")
        stages = list(self._stages.values())
        return (
            *(stage for stage in stages if stage.kind not in own),
            *(stage for stage in stages if stage.kind in own),
        )

    def _cell(self, cell: Cell, base: str, teacher: str, preflight: str) -> CellStages:
        study, after = cell.study, (preflight,)
        own = student_base_of(cell)
        models = {"student": self._students[own], "teacher": self._teacher}
        corpus = None
        if reads.reads_corpus(study):
            config = reads.corpus(study, cell.seed, self._dimensions)
            name = f"teacher completions seed={cell.seed}"
            corpus = self._add(
                "corpus",
                name,
                config,
                (teacher,),
                after=after,
                runtime={"teacher": self._teacher},
            )
        base_evaluation = None
        if 0 in study.evaluate.at:
            parents = (base, teacher) if reads.evaluation_reads_teacher(study, 0) else (base,)
            name = f"evaluation of {base_name(own)}"
            config = reads.base_evaluation(study)
            base_evaluation = self._add(
                "base_evaluation", name, config, parents, after=after, runtime=models
            )
        training = self._add(
            "cell",
            cell.name,
            reads.cell(study),
            (base, teacher) if corpus is None else (base, teacher, corpus),
            after=after,
            runtime={"every": study.checkpoints.every, **models},
        )
        read: dict[reads.At, tuple[str, ...]] = {
            step: (base, teacher) if reads.evaluation_reads_teacher(study, step) else (base,)
            for step in reads.evaluated_steps(study)
        }
        evaluations: dict[reads.At, str] = {
            step: self._add(
                "cell_evaluation",
                f"evaluation at step {step}: {cell.name}",
                reads.cell_evaluation(study, step),
                (training, *parents),
                runtime=models,
            )
            for step, parents in read.items()
        }
        return CellStages(cell, training, base, corpus, base_evaluation, evaluations)

    def _teacher_training(self, index: int, stage: TeacherTraining, teacher: str) -> str:
        """The teacher after one more stage of its training."""
        resolved = self._settled(stage.adaptation, f"teacher_training[{index}]")
        settings = stage.model_copy(update={"adaptation": resolved})
        return self._add(
            "teacher_training",
            f"teacher after {stage.kind}",
            reads.teacher_training(self._study, settings),
            (teacher,),
            runtime={"every": stage.checkpoint_every, "teacher": self._teacher},
        )

    def _rlvr_settings(self) -> Rlvr | None:
        """The study's RLVR, resolved."""
        settings = self._study.rlvr
        if settings is None:
            return None
        adaptation = self._settled(settings.adaptation, "rlvr")
        return settings.model_copy(update={"adaptation": adaptation})

    def _rewarded_data(self, role: str) -> dict[str, Source]:
        """The data file of the RLVR's task, if it has one."""
        settings = self._study.rlvr
        if settings is None:
            return {}
        return data_inputs(reads.rewarded(self._study, settings), role=role, field="rlvr.task")

    def _settled(self, adaptation: Adaptation, name: str) -> Adaptation:
        resolved = settled(adaptation, device=str(self._execution["device"]), field=name)
        note = fallback_note(adaptation, resolved, field=name)
        if note is not None:
            self.notes.append(note)
        return resolved

    def _rlvr(self, stages: CellStages, settings: Rlvr) -> CellStages:
        """RLVR from a cell's last step, and its held-out evaluations."""
        cell = stages.cell
        if not goes_on(cell, settings):
            return stages
        inputs = self._rewarded_data("data")
        models = {"student": self._students[student_base_of(cell)]}
        training = self._add(
            "rlvr",
            f"RLVR: {cell.name}",
            reads.rlvr(cell.study, settings),
            (stages.training, stages.base),
            inputs=inputs,
            runtime={"every": settings.checkpoint_every, **models},
        )
        evaluations: dict[reads.At, str] = {
            step: self._add(
                "rlvr_evaluation",
                f"evaluation after {step} updates of RLVR: {cell.name}",
                reads.rlvr_evaluation(cell.study, settings, step),
                (stages.training if step == 0 else training, stages.base),
                inputs=inputs,
                runtime=models,
            )
            for step in reads.rlvr_evaluated_steps(settings)
        }
        return replace(stages, rlvr=training, rlvr_evaluations=evaluations)

    def _add(  # noqa: PLR0913 - a stage has that many independent parts
        self,
        kind: str,
        name: str,
        config: Mapping[str, Any],
        parents: tuple[str, ...] = (),
        *,
        model: Source | None = None,
        inputs: Mapping[str, Source] | None = None,
        after: tuple[str, ...] = (),
        runtime: Mapping[str, Any],
    ) -> str:
        if inputs is None:
            inputs = {"model": model} if model is not None else self._data
        inputs = {**inputs, **benchmark_inputs(self._study, kind)}
        stage = Draft(kind, name, config, parents, self._execution, inputs, after, runtime).stage()
        self._stages.setdefault(stage.key, stage)
        return stage.key

    def _pinned(self, source: Source, field: str) -> Source:
        if "hub" in source.identity and source.identity["revision"] is None:
            self.notes.append(
                f"{field} is not set: {source.location} may change on the hub while its results "
                "keep their keys. Pin a commit"
            )
        return source


def _field_of(study: Study, role: str) -> str:
    """The field of a study that names a model."""
    if study.models is None:
        return "world.checkpoints"
    own = role == "teacher" and study.models.teacher == "student"
    return "models.student" if own else f"models.{role}"


def _sizes(source: Source, field: str) -> Dimensions | None:
    """Sizes of a model, its files looked into as far as no weights are read.

    Raises:
        StudyFileError: Its configuration or header is broken, or it has no weights.
    """
    try:
        require_weights(source.location)
        return dimensions_of(source.location)
    except ValueError as error:
        raise StudyFileError(f"{field}: {error}") from None


def where(source: Source, dtype: str) -> dict[str, Any]:
    """How to load an input model; what it is stands in the keys, where it is does not."""
    return {
        "location": source.location,
        "revision": source.identity.get("revision"),
        "dtype": dtype,
    }
