"""What a study declares before its run, held against its cells."""

from collections.abc import Sequence

from fractionate.config import Study, StudyFileError, resolve
from fractionate.study.cells import Cell


def check_hypotheses(study: Study, cells: Sequence[Cell]) -> None:
    """Refuse a hypothesis about levels that there are not.

    Raises:
        StudyFileError: Names the hypothesis and the levels.
    """
    for i, hypothesis in enumerate(study.hypotheses):
        path = resolve(hypothesis.factor)
        labels = sorted({cell.factors[path] for cell in cells})
        for role, label in (("treatment", hypothesis.treatment), ("control", hypothesis.control)):
            if label not in labels:
                raise StudyFileError(
                    f"hypotheses[{i}].{role}: '{label}' is no level of {path}. "
                    f"Its levels: {', '.join(labels)}"
                )
        if hypothesis.treatment == hypothesis.control:
            raise StudyFileError(
                f"hypotheses[{i}]: treatment and control are both '{hypothesis.control}'. "
                f"Name two levels of {path}: {', '.join(labels)}"
            )


def check_rates(study: Study, cells: Sequence[Cell]) -> None:
    """Refuse low and high rates that no cell has, or that are swapped.

    Raises:
        StudyFileError: Names the rate and those of the cells.
    """
    if study.rates is None:
        return
    rates = sorted({cell.study.optimizer.lr for cell in cells})
    for name, rate in (("low", study.rates.low), ("high", study.rates.high)):
        if rate not in rates:
            listed = ", ".join(f"{value:g}" for value in rates)
            raise StudyFileError(
                f"rates.{name}: no cell has optimizer.lr {rate:g}. Rates of the cells: {listed}"
            )
    if study.rates.low > study.rates.high:
        raise StudyFileError(
            f"rates.low {study.rates.low:g} is above rates.high {study.rates.high:g}. Swap them"
        )
