"""Where the shipped study files and the starter templates are."""

from pathlib import Path

import fractionate
from fractionate.cli.errors import BadInputError

TEMPLATES = Path(__file__).parent / "templates"


def shipped_study(name: str) -> Path:
    """The file of a study that comes with the package, e.g. "demo".

    An installed package carries `studies/`; in a checkout it lies at the root of the repository.

    Raises:
        BadInputError: There is none of this name.
    """
    package = Path(fractionate.__file__).parent
    for root in (package, package.parents[1]):
        path = root / "studies" / "sandbox" / f"{name}.yaml"
        if path.is_file():
            return path
    raise BadInputError(
        f"the study '{name}' did not come with this installation of Fractionate. Install it again"
    )


def template(name: str) -> str:
    """The text of a starter study."""
    return (TEMPLATES / f"{name}.yaml").read_text(encoding="utf-8")
