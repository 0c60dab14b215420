"""The verbs together. Importing this loads neither torch nor pandas nor pydantic."""

from typing import Annotated, Any, final

import typer
from typer.core import TyperGroup

from fractionate.cli import keeping, models, results, sparsity, studies
from fractionate.cli.errors import explained
from fractionate.cli.printing import say


@final
class Verbs(TyperGroup):
    """The group of all verbs: knows their order and how errors end."""

    def invoke(self, ctx: Any) -> Any:
        """Run a verb; the project's errors become a message and an exit code."""
        with explained():
            return super().invoke(ctx)


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Which knob of a distillation matters: rollouts, KL direction or learning rate?",
)
sandbox = typer.Typer(no_args_is_help=True, help="The CPU-scale world of tiny models.")

START, RESULTS, MODELS, STORE = "Studies", "Results", "Models", "The store"
_PANELS = {
    START: (
        studies.demo,
        studies.init,
        studies.check,
        studies.plan,
        studies.run,
        studies.status,
    ),
    RESULTS: (results.report, results.figures, results.compare, results.advise),
    MODELS: (models.distill, models.evaluate, sparsity.sparsity),
    STORE: (keeping.show, keeping.replay, keeping.verify, keeping.export, keeping.gc),
}
for _panel, _verbs in _PANELS.items():
    for _verb in _verbs:
        app.command(rich_help_panel=_panel)(_verb)
sandbox.command("build")(models.build)
app.add_typer(sandbox, name="sandbox", rich_help_panel=MODELS)


def _version(shown: bool) -> None:  # noqa: FBT001 - the signature of an option's callback
    if shown:
        from fractionate import __version__

        say(__version__)
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Which knob of a distillation matters: rollouts, KL direction or learning rate?"""


def main() -> None:
    """Run the command line and leave with its exit code."""
    app()
