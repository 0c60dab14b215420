"""Which untrained student a cell starts from."""

from fractionate.study.cells import Cell

StudentBase = tuple[str, int]
"""What a student already knows, empty outside the sandbox, and the number of its base."""


def student_base_of(cell: Cell) -> StudentBase:
    """The untrained student of a cell."""
    world = cell.study.world
    return ("" if world is None else world.students, cell.base)


def base_name(base: StudentBase) -> str:
    """The student for people."""
    kind, number = base
    return f"student base {number}" if kind in ("", "components") else f"{kind} student {number}"
