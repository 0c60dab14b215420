"""A study file: one base configuration, the factors that vary, and what is measured."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from fractionate.config.base import Config
from fractionate.config.measure import Diagnostics, Evaluate, Harness
from fractionate.config.method import Dtype, Method, Optimizer
from fractionate.config.rlvr import Rlvr, check_rlvr
from fractionate.config.sizes import SANDBOX_TEST_PROBLEMS, check_sizes
from fractionate.config.task import CountdownTask, Task, check_demonstrations
from fractionate.config.teacher import TeacherTraining, check_teacher_training
from fractionate.config.vary import Level, dotted_get, resolve

DRY_SUFFIX = "-dry"
"""How the name of a study in miniature ends: its records are no results."""

# ---------------------------------------------------------------- who teaches whom


class TeacherContext(Config):
    """What the teacher sees besides the prompt, in its own context only.

    Attributes:
        demonstration: Show the teacher a worked solution of the very problem.
        instruction: A sentence added at the end of the last user message.
    """

    demonstration: bool = False
    instruction: str | None = None


class SandboxWorld(Config):
    """The CPU-scale world: tiny models that know a little arithmetic.

    Attributes:
        kind: Always "sandbox".
        family: Of both models: "llama", or "qwen", a Qwen2 of other sizes whose vocabulary has
            another order.
        teacher: "teacher", or "bilingual", which writes its traces in a second dialect where the
            instruction "< >" asks for it.
        teacher_context: Conditioning of the teacher.
        students: What the student already knows: parts of the skill, a latent copy of it, or
            neither.
        bases: How many independently trained student bases; seed i uses base i modulo `bases`.
        checkpoints: A folder written by `fractionate sandbox build`; none takes the shipped models.
    """

    kind: Literal["sandbox"] = "sandbox"
    family: Literal["llama", "qwen"] = "llama"
    teacher: Literal["teacher", "bilingual"] = "teacher"
    teacher_context: TeacherContext | None = None
    students: Literal["components", "latent", "naive"] = "components"
    bases: PositiveInt = 3
    checkpoints: Path | None = None

    @model_validator(mode="after")
    def _is_there(self) -> "SandboxWorld":
        if self.teacher_context is not None and self.teacher_context.demonstration:
            raise ValueError(
                "world.teacher_context.demonstration needs a teacher that reads English. Set it "
                'to false; the instruction "< >" asks the bilingual teacher for its dialect'
            )
        if self.family == "qwen" and self.checkpoints is None:
            for field, value, only in (
                ("teacher", self.teacher, "teacher"),
                ("students", self.students, "components"),
            ):
                if value != only:
                    raise ValueError(
                        f"world.{field} '{value}' comes with family 'llama' only. Set "
                        f"world.{field}: {only}, or world.checkpoints to a folder that has it"
                    )
        return self


class Models(Config):
    """A pair of Hugging Face models: hub id, local folder or .gguf file.

    Attributes:
        student: The model to train.
        teacher: The frozen model to learn from; "student" means the student's own initial weights,
            which makes sense only with a `teacher_context`.
        student_revision: Commit or tag on the hub.
        teacher_revision: Commit or tag on the hub.
        teacher_dtype: In which the teacher is loaded.
        teacher_context: Conditioning of the teacher.
        vocabulary: "tokenizer" compares the laws on the tokenizer's ids; "min" on the smaller of
            the two logit widths, padding rows included.
        chat_template_kwargs: Passed to the chat template of both models, e.g. a pinned date.
    """

    student: str
    teacher: str
    student_revision: str | None = None
    teacher_revision: str | None = None
    teacher_dtype: Dtype = "float32"
    teacher_context: TeacherContext | None = None
    vocabulary: Literal["tokenizer", "min"] = "tokenizer"
    chat_template_kwargs: Mapping[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _self_teaching_needs_context(self) -> "Models":
        context = self.teacher_context
        conditioned = context is not None and (context.demonstration or context.instruction)
        if self.teacher in ("student", self.student) and not conditioned:
            raise ValueError(
                "models.teacher is the student itself: both laws are equal and nothing is learnt. "
                "Set models.teacher_context (demonstration: true, or an instruction), or another "
                "teacher"
            )
        return self


# ---------------------------------------------------------------- how long, how often


class Budget(Config):
    """What every cell gets, in the unit named: optimizer steps, or tokens in the loss.

    Attributes:
        steps: Optimizer steps; with `tokens` it is the most steps allowed.
        tokens: Tokens in the loss; the step that reaches it is the last one.
        prompts_per_step: Prompts, and completions, in one optimizer step.
        tokens_per_micro_batch: Prompt and completion tokens in one forward pass, padding included
            where a model needs it; gradients do not depend on it beyond rounding.
        activation_bytes: A micro-batch whose activations would take more keeps only the input of
            every layer and computes the rest again in the backward pass: a third more operations,
            and the same gradients bit for bit. 1 always does so.
    """

    steps: PositiveInt = 150
    tokens: PositiveInt | None = None
    prompts_per_step: PositiveInt = 32
    tokens_per_micro_batch: PositiveInt = 4096
    activation_bytes: PositiveInt = 4 * 2**30


class Lengths(Config):
    """Limits in tokens; whatever meets one is counted as truncated, never hidden.

    Attributes:
        prompt: Longest prompt; a longer one is an error before training.
        completion: Longest completion in training.
        evaluation: Longest completion in evaluation.
        harder: Longest completion on the harder task.
    """

    prompt: PositiveInt = 2048
    completion: PositiveInt = 512
    evaluation: PositiveInt = 2048
    harder: PositiveInt = 4096


class Checkpoints(Config):
    """What is kept of a cell's weights.

    Attributes:
        every: A resumable checkpoint every so many steps; an interruption costs at most that.
        keep: "last", or the steps whose weights stay.
    """

    every: PositiveInt = 25
    keep: Literal["last"] | tuple[PositiveInt, ...] = "last"


class Rates(Config):
    """Which learning rates the claims mean by low and high."""

    low: PositiveFloat
    high: PositiveFloat


class Hypothesis(Config):
    """A contrast that is declared before the run.

    Attributes:
        outcome: A metric of the results, e.g. "accuracy".
        factor: The factor contrasted, as a dotted path or an alias.
        treatment: Level label of the treatment.
        control: Level label of the control; the effect is treatment - control.
        within: Factors at whose levels the contrast is made separately.
        equivalence_margin: Two arms closer than this are called equivalent, in units of the
            outcome.
    """

    outcome: str
    factor: str
    treatment: str
    control: str
    within: str | tuple[str, ...] | None = None
    equivalence_margin: PositiveFloat | None = None


# ---------------------------------------------------------------- the study


class Study(Config):
    """Everything that decides the numbers of a study.

    Attributes:
        name: Short name, used for files and titles.
        question: What the study asks, for the report.
        world: The sandbox; exactly one of `world` and `models`.
        models: Real models; exactly one of `world` and `models`.
        task: What is learnt.
        teacher_training: Stages that make the teacher of `models.teacher` or the sandbox's.
        method: The base method.
        optimizer: The base optimizer.
        budget: What every cell gets.
        lengths: Token limits.
        prompt_order: "step_draw" draws prompts anew at every step, without replacement inside a
            step; "epoch_shuffle" goes through shuffled epochs.
        vary: Factor paths and their levels; cells are the full product.
        rates: Which rates the claims mean.
        seeds: One replicate each; shared by all arms, so that contrasts are paired.
        evaluate: What is measured, and when.
        diagnostics: What is recorded at every step.
        checkpoints: What is kept.
        hypotheses: Declared contrasts.
        rlvr: Reinforcement learning from every distilled student.
        kernel: What decodes, and computes a float32 step beside torch's matrix products: "torch",
            or "native", in C for Llama and Qwen2 models on a CPU. "auto" takes the native one
            where there is a C compiler, every model is of these kinds, and a stage has one thread.
            "compiled" scores and trains by the models' own forward pass, compiled by torch, on any
            device. The numbers differ in their last bits, so the plan settles it and keys hold it.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80)]
    question: str | None = None
    world: SandboxWorld | None = None
    models: Models | None = None
    task: Task = CountdownTask()
    teacher_training: tuple[TeacherTraining, ...] = ()
    method: Method = Method()
    optimizer: Optimizer = Optimizer()
    budget: Budget = Budget()
    lengths: Lengths = Lengths()
    prompt_order: Literal["step_draw", "epoch_shuffle"] = "step_draw"
    vary: Mapping[str, tuple[Level, ...]] = Field(default_factory=dict)
    rates: Rates | None = None
    seeds: tuple[NonNegativeInt, ...] = (42, 43, 44)
    evaluate: Evaluate = Evaluate()
    diagnostics: Diagnostics = Diagnostics()
    checkpoints: Checkpoints = Checkpoints()
    hypotheses: tuple[Hypothesis, ...] = ()
    rlvr: Rlvr | None = None
    kernel: Literal["auto", "torch", "native", "compiled"] = "auto"

    @model_validator(mode="after")
    def _whole(self) -> "Study":
        for rule in _RULES:
            rule(self)
        return self


def _one_pair(study: Study) -> None:
    if (study.world is None) == (study.models is None):
        raise ValueError(
            "a study takes exactly one of 'world' (the sandbox) and 'models' (student and teacher)"
        )


def _sandbox_task(study: Study) -> None:
    task = study.task
    if study.world is None:
        if study.evaluate.forgetting == "skills":
            raise ValueError(
                "evaluate.forgetting 'skills' are skills of the sandbox, but this study has "
                "'models'. Set evaluate.forgetting: {kind: harness}, or null"
            )
        return
    if isinstance(study.evaluate.forgetting, Harness):
        raise ValueError(  # noqa: TRY004 - a wrong value for this world, not a wrong type
            "evaluate.forgetting {kind: harness} asks in English, which no sandbox model reads. "
            "Set evaluate.forgetting: skills"
        )
    if task.kind != "countdown" or task != CountdownTask(operands=task.operands):
        raise ValueError(
            "the sandbox poses its own Countdown problems (numbers 1-15, targets 1-60): of task "
            "only {kind: countdown, operands: 3 or 4} can be set, or use 'models'"
        )
    if task.operands not in (3, 4):
        raise ValueError(f"task.operands is {task.operands}: the sandbox knows 3 and 4")
    harder = study.evaluate.harder
    if harder is not None and (harder.operands not in (3, 4) or harder.numbers is not None):
        raise ValueError(
            "evaluate.harder: the sandbox knows operands 3 and 4, and its own numbers only"
        )


def _style(study: Study) -> None:
    style, sandbox = study.evaluate.style, study.world is not None
    if style is not None and (style.kind == "dialect") != sandbox:
        raise ValueError(
            f"evaluate.style.kind is '{style.kind}': the dialect is the sandbox's, Spanish is for "
            f"'models'. Set it to {'dialect' if sandbox else 'spanish'}"
        )


def _factors(study: Study) -> None:
    base = study.model_dump(mode="python")
    seen: set[str] = set()
    for factor, levels in study.vary.items():
        path = resolve(factor)
        dotted_get(base, path, where=f"vary.{factor}")
        head = path.split(".")[0]
        if head not in ("method", "optimizer", "budget") and path != "world.students":
            raise ValueError(
                f"vary.{factor}: factors are fields of method, optimizer or budget, not of "
                f"'{head}', and world.students"
            )
        if path in seen:
            raise ValueError(f"vary names the factor '{path}' twice. Remove one")
        seen.add(path)
        if not levels:
            raise ValueError(f"vary.{factor} has no level. List at least one")


def _seeds(study: Study) -> None:
    if not study.seeds:
        raise ValueError("seeds is empty. List at least one seed")
    if len(set(study.seeds)) != len(study.seeds):
        raise ValueError(f"seeds {list(study.seeds)} repeats a seed. Each replicate needs its own")


def _steps(study: Study) -> None:
    late = [at for at in study.evaluate.at if at != "last" and at > study.budget.steps]
    if late:
        raise ValueError(f"evaluate.at {late} lies beyond budget.steps {study.budget.steps}")
    if study.checkpoints.keep != "last":
        beyond = [step for step in study.checkpoints.keep if step > study.budget.steps]
        if beyond:
            raise ValueError(
                f"checkpoints.keep {beyond} lies beyond budget.steps {study.budget.steps}"
            )


def _hypotheses(study: Study) -> None:
    factors = {resolve(name) for name in study.vary}
    for i, hypothesis in enumerate(study.hypotheses):
        within = hypothesis.within or ()
        for name in (hypothesis.factor, *((within,) if isinstance(within, str) else within)):
            if resolve(name) not in factors:
                raise ValueError(
                    f"hypotheses[{i}] speaks of '{name}', which this study does not vary. "
                    f"Factors: {', '.join(sorted(factors)) or 'none'}"
                )


def _data(study: Study) -> None:
    needs = [study.method.rollout.kind] + [
        str(level["kind"])
        for factor, levels in study.vary.items()
        if resolve(factor) == "method.rollout"
        for level in levels
        if isinstance(level, Mapping) and "kind" in level
    ]
    if "dataset" in needs:
        why = "method.rollout 'dataset' trains on completions of the dataset"
        check_demonstrations(study.task, why)
    context = study.models.teacher_context if study.models is not None else None
    if context is not None and context.demonstration:
        check_demonstrations(study.task, "models.teacher_context shows the teacher a demonstration")


def _sizes(study: Study) -> None:
    """What is too much would show only when the first model is trained or measured."""
    check_sizes(
        study.task,
        study.evaluate,
        prompts_per_step=study.budget.prompts_per_step,
        sandbox=study.world is not None,
    )


def _trained(study: Study) -> None:
    check_teacher_training(study.teacher_training, study.task)
    if study.rlvr is not None:
        sandbox = SANDBOX_TEST_PROBLEMS if study.world is not None else None
        check_rlvr(study.rlvr, sandbox_problems=sandbox)


_RULES: tuple[Callable[[Study], None], ...] = (
    _one_pair,
    _sandbox_task,
    _style,
    _factors,
    _seeds,
    _steps,
    _hypotheses,
    _data,
    _sizes,
    _trained,
)
