"""A plan's operations and memory are those of a real step."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import step_cost

LARGE = [name for name, (size, *_) in step_cost.CASES.items() if size != "tiny"]


def _measured(name: str, *options: str) -> dict[str, float]:
    script = Path(step_cost.__file__)
    command = [sys.executable, str(script), name, *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize("name", ["tiny", "tiny, recomputed"])
def test_planned_operations_are_those_of_a_step(name: str):
    found = step_cost.measure(name, count=True)
    assert found["flops"] == pytest.approx(found["planned flops"], rel=0.15)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
@pytest.mark.parametrize("name", LARGE)
def test_planned_memory_is_the_peak_of_a_large_model(name: str):
    found = _measured(name)
    assert found["memory"] == pytest.approx(found["planned memory"], rel=0.15)


@pytest.mark.slow
def test_planned_operations_are_those_of_a_large_model():
    found = _measured("float32", "count")
    assert found["flops"] == pytest.approx(found["planned flops"], rel=0.15)
