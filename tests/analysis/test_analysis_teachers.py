import pytest

from fractionate.analysis.teachers import teacher_row
from fractionate.records import EvalRecord


def _item(i: int, *, correct: int, tokens: int, suite: str = "accuracy") -> EvalRecord:
    return EvalRecord(suite, str(i), 0.5, 1, correct, correct, 1 - correct, 0, tokens)


def test_a_teacher_s_row_has_accuracy_and_the_spread_of_its_lengths():
    items = [_item(i, correct=int(i < 3), tokens=10 * (i + 1)) for i in range(4)]
    row = teacher_row([*items, _item(9, correct=1, tokens=999, suite="harder")])
    assert row is not None
    assert (row.items, row.accuracy, row.unanswered) == (4, 0.75, 1)
    assert row.low < 0.75 < row.high
    assert row.mean_tokens == 25.0
    assert row.sd_tokens == pytest.approx(12.909944, abs=1e-6)


def test_a_teacher_whose_accuracy_was_not_measured_has_no_row():
    assert teacher_row([_item(0, correct=1, tokens=3, suite="harder")]) is None
