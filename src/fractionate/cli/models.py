"""Verbs about single models: train one, measure one, build the sandbox's."""

from pathlib import Path
from typing import Annotated

import typer

from fractionate.cli.errors import BadInputError
from fractionate.cli.options import (
    DEFAULT_STORE,
    AsJson,
    Executor,
    Overrides,
    StoreFolder,
)
from fractionate.cli.printing import emit_json, note, say, table

_BASES = 3

Prompt = Annotated[str | None, typer.Option(help="Column of the prompts of a data file.")]
Messages = Annotated[str | None, typer.Option(help="Column of chat messages, instead.")]
Completion = Annotated[str | None, typer.Option(help="Column of demonstrations.")]
Answer = Annotated[str | None, typer.Option(help="Column of the gold answers.")]
Grade = Annotated[str | None, typer.Option(help="exact, number, choice or none.")]
Operands = Annotated[int, typer.Option(min=2, max=6, help="Numbers of a Countdown problem.")]


def distill(  # noqa: PLR0913 - one argument per option
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A study file without 'vary', instead.")
    ] = None,
    *,
    student: Annotated[str | None, typer.Option(help="Hub id, folder or .gguf file.")] = None,
    teacher: Annotated[str | None, typer.Option(help="Hub id, folder or .gguf file.")] = None,
    task: Annotated[
        str, typer.Option("--task", "--data", help="countdown, or a data file.")
    ] = "countdown",
    prompt: Prompt = None,
    messages: Messages = None,
    completion: Completion = None,
    answer: Answer = None,
    grade: Grade = None,
    operands: Operands = 3,
    test: Annotated[int, typer.Option(min=1, help="Problems held out for the table.")] = 200,
    rollout: Annotated[str, typer.Option(help="Who writes: student, teacher, ...")] = "student",
    kl: Annotated[str, typer.Option(help="forward, reverse, jsd, ...")] = "forward",
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 1e-5,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 150,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts per step.")] = 32,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest completion.")] = 512,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the run.")] = None,
    overrides: Overrides = None,
    store: StoreFolder = DEFAULT_STORE,
    executor: Executor = "serial",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Also copy the trained student there.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train one student from one teacher: a single good run, measured before and after."""
    from fractionate.cli import distilling

    if file is not None:
        if student or teacher:
            raise BadInputError("name a study file, or --student and --teacher, not both")
        from fractionate import api

        study = distilling.one_cell(api.load_study(file, overrides or ()), seed=seed)
    else:
        if student is None or teacher is None:
            raise BadInputError("--student and --teacher are both needed, or a study file")
        columns = _columns(prompt, messages, completion, answer, grade)
        flags = distilling.Flags(
            student=student,
            teacher=teacher,
            task=task,
            columns=columns,
            operands=operands,
            test=test,
            rollout=rollout,
            divergence=kl,
            lr=lr,
            steps=steps,
            prompts=prompts,
            max_tokens=max_tokens,
            seed=42 if seed is None else seed,
        )
        study = distilling.study_of(flags, overrides or ())
    distilling.run(study, distilling.Target(store, executor, out, as_json))


def _columns(
    prompt: str | None,
    messages: str | None,
    completion: str | None,
    answer: str | None,
    grade: str | None,
) -> dict[str, str | None]:
    return {
        "prompt": prompt,
        "messages": messages,
        "completion": completion,
        "answer": answer,
        "grade": grade,
    }


def evaluate(  # noqa: PLR0913 - one argument per option
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Hub id, folder, .gguf file, or a sandbox model: teacher, components-0, ...",
        ),
    ],
    *,
    task: Annotated[
        str,
        typer.Option(
            "--task",
            "--data",
            help="countdown, sandbox, science, medreason, math, gsm8k, or a data file.",
        ),
    ] = "countdown",
    prompt: Prompt = None,
    messages: Messages = None,
    answer: Answer = None,
    grade: Grade = None,
    operands: Operands = 3,
    items: Annotated[
        int | None, typer.Option(min=1, help="Problems; 200, or all rows of a file.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Completions per problem.")] = 1,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 decodes greedily.")] = 0.5,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest completion.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float64.")] = "float32",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling.")] = 42,
    as_json: AsJson = False,
) -> None:
    """Measure one model on one task: accuracy, or pass@k with several samples."""
    from fractionate.cli import evaluating
    from fractionate.cli.measures import interval, losses, plain, shown

    columns = _columns(prompt, messages, None, answer, grade)
    request = evaluating.Request(
        model=model,
        task=task,
        columns=columns,
        operands=operands,
        items=items,
        samples=samples,
        temperature=temperature,
        max_tokens=max_tokens,
        dtype=dtype,
        seed=seed,
    )
    records = evaluating.measure(request)
    from fractionate.analysis.measure import evaluation_values

    values, lost = list(evaluation_values(records, None)), losses(records)
    if as_json:
        emit_json(
            {
                "model": model,
                "task": task,
                "temperature": temperature,
                "metrics": plain(values),
                **lost,
            }
        )
        return
    rows = [(v.metric, shown(v.metric, v.value), interval(v), str(v.n)) for v in values]
    say(table(("metric", "value", "95 %", "n"), rows))
    reasons = ", ".join(f"{reason} {count}" for reason, count in lost["reasons"].items())
    say(
        f"of {lost['completions']} completions {lost['truncated']} were truncated, "
        f"{lost['unanswered']} without a readable answer; verdicts: {reasons}"
    )


def build(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="teacher, components, latent, naive, bilingual, qwen-teacher, qwen-components.",
        ),
    ] = None,
    *,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="The same, as an option.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed; by default 0, and 0 to 2 for components."),
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the models.")] = Path(
        "sandbox-models"
    ),
    scale: Annotated[
        float, typer.Option(min=1e-4, help="Factor on the steps; 1 is the recipe.")
    ] = 1.0,
    measured: Annotated[
        bool, typer.Option("--evaluate/--no-evaluate", help="Measure each model when it is built.")
    ] = True,
) -> None:
    """Pre-train the sandbox's teacher and students, or go on with it."""
    from fractionate.cli import building

    wanted = building.wanted([*(names or ()), *(only or ())], seed, bases=_BASES)
    for name, number in wanted:
        building.build(name, number, out, scale=scale, measured=measured)
    note(f"to use them: set world.checkpoints: {out.resolve()} in the study")
