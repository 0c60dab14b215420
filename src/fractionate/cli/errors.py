"""How a command ends: exit codes, and one clear sentence in place of a traceback."""

import contextlib
import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path

import typer

BAD_INPUT, STAGE_FAILED, INTERRUPTED, PIPE_CLOSED = 2, 3, 130, 141


class BadInputError(ValueError):
    """What the user asked for cannot be done; the message names the option and the mend."""


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn the project's own errors into a message and an exit code; others keep their traceback.

    Raises:
        typer.Exit: With the code of the command.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        complain(str(error) or "interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        raise typer.Exit(PIPE_CLOSED) from None
    except ValueError as error:
        if not type(error).__module__.startswith("fractionate."):
            raise
        complain(str(error))
        raise typer.Exit(BAD_INPUT) from None


@contextlib.contextmanager
def from_the_user() -> Iterator[None]:
    """Around calls whose ValueError speaks of what the user typed.

    Raises:
        BadInputError: In place of a plain ValueError.
    """
    try:
        yield
    except ValueError as error:
        raise BadInputError(str(error)) from error


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around writing to a place that the user named.

    Raises:
        BadInputError: It cannot be written to.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BadInputError(f"{path} cannot be written ({reason}). Name another place") from error


def require_writable(path: Path, option: str) -> None:
    """See that a file or folder can be made, before hours of work end at it.

    Args:
        path: What will be written; nothing is made yet.
        option: That names it.

    Raises:
        BadInputError: It cannot.
    """
    place = path.absolute()
    while not place.exists():
        place = place.parent
    try:
        if place.is_dir():
            with tempfile.TemporaryFile(dir=place):
                pass
        elif place == path.absolute():
            with place.open("ab"):
                pass
        else:
            raise NotADirectoryError(errno.ENOTDIR, f"{place} is a file")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BadInputError(
            f"{option} {path} cannot be written ({reason}). Name another place"
        ) from error


def complain(message: str) -> None:
    """Print an error to stderr."""
    typer.secho(f"error: {message}", fg=typer.colors.RED, err=True)


def fail() -> typer.Exit:
    """The end of a command some of whose stages failed, after the message."""
    return typer.Exit(STAGE_FAILED)
