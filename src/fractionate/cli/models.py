"""Verbs about single models: train one, measure one, compare two, build the sandbox's."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fractionate.cli.errors import BadInputError, from_the_user
from fractionate.cli.options import (
    DEFAULT_STORE,
    AsJson,
    Executor,
    Overrides,
    StoreFolder,
)
from fractionate.cli.printing import emit_json, note, say, table

if TYPE_CHECKING:
    from fractionate.metrics.checkpoints import CheckpointSparsity, Shares

THRESHOLDS = (0.0, 1e-8, 1e-6, 1e-5)
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
        str, typer.Option("--task", "--data", help="countdown, sandbox, or a data file.")
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


def sparsity(
    base: Annotated[str, typer.Argument(help="Model folder or .safetensors file, untrained.")],
    tuned: Annotated[list[str], typer.Argument(metavar="TUNED...", help="The same, trained.")],
    *,
    thresholds: Annotated[
        list[float] | None,
        typer.Option("--threshold", help="Repeatable; default 0 1e-8 1e-6 1e-5."),
    ] = None,
    rounded: Annotated[
        bool, typer.Option("--round", help="Round BASE to the dtype of TUNED first.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Which share of the weights training left where they were, by layer and matrix type."""
    import dataclasses

    from fractionate.cli.sources import located
    from fractionate.metrics.checkpoints import checkpoint_sparsity

    taus = tuple(thresholds or THRESHOLDS)
    found: dict[str, CheckpointSparsity] = {}
    for model in tuned:
        with from_the_user():
            found[model] = checkpoint_sparsity(
                Path(located(base)),
                Path(located(model)),
                thresholds=taus,
                round_before=rounded,
            )
    if as_json:
        models = {model: dataclasses.asdict(record) for model, record in found.items()}
        emit_json({"base": base, "base_rounded": rounded, "tuned": models})
        return
    for model, record in found.items():
        say(_sparsity_text(base, model, record))
        if record.dtypes[0] != record.dtypes[1] and not rounded:
            note(
                f"note: {base} is stored as {record.dtypes[0]}, {model} as {record.dtypes[1]}: the "
                "rounding between them counts as movement. --round leaves it out"
            )


def _sparsity_text(base: str, model: str, record: "CheckpointSparsity") -> str:
    labels = list(record.total.strict)
    inclusive = [label for label in labels if label != "0"]  # at 0 both mean exactly equal
    strict = ["equal" if label == "0" else f"< {label}" for label in labels]
    heads = ("", "parameters", *strict, *(f"<= {label}" for label in inclusive))
    groups: dict[str, Shares] = {"all": record.total}
    groups |= {f"layer {name}": shares for name, shares in record.by_layer.items()}
    groups |= {f"matrix {name}": shares for name, shares in record.by_matrix.items()}
    rows = [
        (
            name,
            str(shares.parameters),
            *(f"{100 * share:.2f} %" for share in shares.strict.values()),
            *(f"{100 * shares.inclusive[label]:.2f} %" for label in inclusive),
        )
        for name, shares in groups.items()
    ]
    left_out = f"not counted, tied: {', '.join(record.left_out)}\n" if record.left_out else ""
    return (
        f"{base} -> {model}: unmoved share of the weights, by |delta|\n"
        f"{table(heads, rows)}\n"
        f"moved at most 1e-3 of its size: {100 * record.total.relative:.2f} %; "
        f"||delta|| {record.delta_l2:.6g}; sum |delta| / sum |w| {record.relative_l1:.6g}; "
        f"stored as {record.dtypes[0]} and {record.dtypes[1]}\n"
        f"{left_out}"
        "Low precision alone keeps weights unmoved: compare runs of one learning rate and dtype.\n"
    )


def build(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="teacher, components, latent, naive."),
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
