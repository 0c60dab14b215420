"""Printing: text for people, one JSON document for scripts."""

import json
from collections.abc import Sequence
from typing import Any

import typer


def say(text: str = "") -> None:
    """Print a line to stdout."""
    typer.echo(text)


def note(text: str) -> None:
    """Print a line to stderr: what people should know and scripts should not read."""
    typer.echo(text, err=True)


def emit_json(value: Any) -> None:
    """Print one JSON document.

    Raises:
        ValueError: The value holds NaN or an infinity.
    """
    typer.echo(json.dumps(value, indent=2, allow_nan=False, default=str))


def emit_one_or_all(values: Sequence[Any]) -> None:
    """Print one JSON document: the value itself if there is one, else a list of them."""
    emit_json(values[0] if len(values) == 1 else list(values))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first to the left, the others to the right."""
    lines = [list(heads), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    shown = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([shown[0], "  ".join("-" * width for width in widths), *shown[1:]])
