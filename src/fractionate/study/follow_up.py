"""Which cells RLVR goes on from."""

from collections.abc import Sequence

from fractionate.config import Rlvr, Study, StudyFileError, resolve
from fractionate.study.cells import Cell


def goes_on(cell: Cell, settings: Rlvr) -> bool:
    """Whether a cell has one of the labels that `rlvr.cells` lists of every factor it names."""
    return all(cell.factors[resolve(name)] in labels for name, labels in settings.cells.items())


def check_cells(study: Study, cells: Sequence[Cell]) -> None:
    """Refuse a choice of cells that names what the study does not vary, or that chooses none.

    Raises:
        StudyFileError: Names the factor, or the label and those there are.
    """
    if study.rlvr is None:
        return
    for name, labels in study.rlvr.cells.items():
        known = {cell.factors.get(resolve(name)) for cell in cells} - {None}
        if not known:
            raise StudyFileError(
                f"rlvr.cells: '{name}' is no factor of this study. Its factors: "
                f"{', '.join(cells[0].factors) or 'none'}"
            )
        for label in labels:
            if label not in known:
                raise StudyFileError(
                    f"rlvr.cells.{name}: '{label}' is no level. Its levels: "
                    f"{', '.join(sorted(str(level) for level in known))}"
                )
    if not any(goes_on(cell, study.rlvr) for cell in cells):
        raise StudyFileError("rlvr.cells chooses no cell. Leave it out to take all")
