"""Arguments and options that several verbs share."""

from pathlib import Path
from typing import Annotated

import typer

StudyFile = Annotated[Path, typer.Argument(metavar="FILE", help="Study file (YAML).")]
StudyFiles = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="Study files (YAML), one after the other.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="FIELD=VALUE", help="Override a field, e.g. lr=1e-4; repeatable."
    ),
]
StoreFolder = Annotated[Path, typer.Option("--store", help="Folder of the results.")]
Executor = Annotated[
    str, typer.Option("--executor", help="serial, or process:N for N worker processes.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="Use what is finished, and say what is missing.")
]

DEFAULT_STORE = Path("runs")
