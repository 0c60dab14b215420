import pytest

from fractionate.metrics.programs import LimitedCodeEval, ProgramLimits, passes

LIMITS = ProgramLimits(seconds=1, memory=1 << 29)


@pytest.mark.parametrize(
    ("program", "passed"),
    [
        ("assert 1 + 1 == 2", True),
        ("assert 1 + 1 == 3", False),
        ("def broken(:", False),
        ("print('anything')", True),
        ("import sys; sys.exit(0)", False),
        ("import os; os._exit(0)", False),
        ("while True: pass", False),
        ("x = bytearray(1 << 30)", False),
        ("import socket; socket.socket()", False),
        ("open('f', 'wb').write(bytes(1 << 21))", False),
        ("import os; assert not [k for k in os.environ if not k.startswith('LC_')]", True),
        ("import os; assert os.listdir() == []", True),
    ],
)
def test_a_program_passes_if_it_reaches_its_end_within_the_limits(program, passed):
    assert passes(program, LIMITS) is passed


def test_pass_at_k_over_candidates():
    metric = LimitedCodeEval(LIMITS)
    scores, verdicts = metric.compute(
        references=["assert a == 1"], predictions=[["a = 1", "a = 2"]], k=[1, 2, 3]
    )
    assert scores == {"pass@1": 0.5, "pass@2": 1.0}
    assert verdicts == [[True, False]]
