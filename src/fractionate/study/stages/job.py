"""A stage at work: its configuration as objects, its parents as folders, its models loaded."""

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter

from fractionate.config import Harness, SandboxWorld, Task, TeacherContext
from fractionate.distill.prompts import PromptBook
from fractionate.models.load import LanguageModel, load_model
from fractionate.models.vocabulary import Vocabulary, align
from fractionate.study.kernels import Kernel
from fractionate.study.keys import Stage
from fractionate.study.store import Store
from fractionate.study.workspace import Workspace
from fractionate.tasks import base as tasks
from fractionate.tasks.build import build_task

UNPACKED = "model"
"""Folder in the result of a model stage with the weights of a .gguf file, as Hugging Face's."""


@dataclass(frozen=True)
class Pair:
    """Student and teacher over one vocabulary.

    Attributes:
        student: The model to train, fresh from its base.
        teacher: The frozen model.
        vocabulary: What both laws are over.
    """

    student: LanguageModel
    teacher: LanguageModel
    vocabulary: Vocabulary


@dataclass(frozen=True)
class Job:
    """One stage with everything it needs.

    Attributes:
        stage: What is computed.
        store: Where its parents' results are.
        workspace: Where it writes.
        report: Takes progress and warnings.
    """

    stage: Stage
    store: Store
    workspace: Workspace
    report: Callable[[dict[str, Any]], None]

    @property
    def config(self) -> Mapping[str, Any]:
        """The stage's configuration, plain values."""
        return self.stage.config

    @property
    def device(self) -> str:
        """Torch device of the stage."""
        return str(self.stage.execution["device"])

    @property
    def kernel(self) -> Kernel:
        """What decodes and computes steps, as the plan settled it."""
        return cast(Kernel, self.stage.execution["kernel"])

    def progress(self, step: int, total: int) -> None:
        """Say how far the stage is, on disk and to whoever listens."""
        self.workspace.progress(step, total)
        self.report({"step": step, "total": total})

    def parent(self, kind: str) -> Path:
        """Folder of the parent of a kind.

        Raises:
            KeyError: The stage has no such parent.
        """
        for key in self.stage.parents:
            folder = self.store.path(key)
            if folder.parent.name == kind:
                return folder
        raise KeyError(f"stage {self.stage.name} reads no {kind}")

    # ------------------------------------------------------------ what is learnt

    @functools.cached_property
    def world(self) -> SandboxWorld | None:
        """The sandbox, if the stage is in it."""
        return SandboxWorld() if self.config["world"] == "sandbox" else None

    @functools.cached_property
    def task(self) -> tasks.Task:
        """The task, with its data."""
        return build_task(self.task_config, self.world)

    @functools.cached_property
    def task_config(self) -> Task:
        """The task's configuration; local data is where this run has it."""
        fields = copy.deepcopy(self.config["task"])
        for role, source in self.stage.inputs.items():
            head, _, name = role.partition(".")
            if head != "data" or "hub" in source.identity:
                continue
            field, _, index = name.partition(".")
            holder = fields if field == "path" else fields[field][int(index or 0)]
            holder["path"] = source.location
        return TypeAdapter[Task](Task).validate_python(fields)

    @property
    def harness(self) -> Harness | None:
        """The benchmarks of the study; task files of one's own are where this run has them."""
        fields = self.config["evaluate"]["forgetting"]
        if not isinstance(fields, Mapping):
            return None
        source = self.stage.inputs.get("benchmarks")
        return Harness.model_validate({**fields, "include": source and source.location})

    @property
    def teacher_context(self) -> TeacherContext | None:
        """What the teacher sees besides the prompt."""
        context = self.config.get("teacher_context")
        return None if context is None else TeacherContext.model_validate(context)

    def prompts(self, student: LanguageModel, split: tasks.Split, n: int | None) -> PromptBook:
        """Problems of a split, as token ids for both models."""
        return PromptBook(
            self.task.problems(split, n),
            task=self.task,
            student=student,
            limit=self.config["lengths"]["prompt"],
            context=self.teacher_context,
            chat_template_kwargs=self.config["chat_template_kwargs"],
        )

    # ------------------------------------------------------------ models

    def base(self) -> LanguageModel:
        """The untrained student, in float32."""
        where = self.stage.runtime["student"]
        return load_model(
            self._location("student_base", where),
            revision=where["revision"],
            dtype=where["dtype"],
            device=self.device,
            kernel=self.kernel,
        )

    def teacher(self) -> LanguageModel:
        """The teacher; loaded once per process and shared, for nothing changes it."""
        location, revision = self.teacher_source()
        dtype = self.stage.runtime["teacher"]["dtype"]
        return _frozen(location, revision, dtype, self.device, self.kernel)

    def teacher_source(self) -> tuple[str, str | None]:
        """Where the teacher is, with its revision: the last stage of its training, or the input."""
        where = self.stage.runtime["teacher"]
        for key in self.stage.parents:
            folder = self.store.path(key)
            if folder.parent.name == "teacher_training":
                return str(folder / UNPACKED), None
        return self._location("teacher", where), where["revision"]

    def _location(self, kind: str, where: Mapping[str, Any]) -> str:
        """The input itself, or the unpacked copy that its stage keeps of a packed one."""
        unpacked = self.parent(kind) / UNPACKED
        return str(unpacked) if unpacked.is_dir() else str(where["location"])

    def pair(self) -> Pair:
        """Both models, cut to one vocabulary.

        Raises:
            VocabularyMismatchError: They do not share a tokenizer or a chat template.
        """
        student, teacher = self.base(), self.teacher()
        vocabulary = align(
            student,
            teacher,
            slice=self.config.get("vocabulary", "tokenizer"),
            chat_template_kwargs=self.config["chat_template_kwargs"],
        )
        return Pair(vocabulary.of(student), vocabulary.of(teacher), vocabulary)


@functools.lru_cache(maxsize=2)
def _frozen(
    location: str, revision: str | None, dtype: str, device: str, kernel: Kernel
) -> LanguageModel:
    model = load_model(location, revision=revision, dtype=dtype, device=device, kernel=kernel)
    model.module.requires_grad_(False)
    return model
