"""One thread, deterministic algorithms and fixed property tests for the whole suite."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)

settings.register_profile("gate", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("gate")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite tests/golden; needs a new line under Numerics in CHANGELOG.md",
    )


def pytest_terminal_summary(terminalreporter) -> None:
    """Say how many tests did not run; `-ra` prints each one's reason."""
    skipped = len(terminalreporter.stats.get("skipped", []))
    terminalreporter.write_line(f"{skipped} tests were skipped, for the reasons above")


@pytest.fixture
def generator() -> torch.Generator:
    """A torch generator with a fixed seed."""
    return torch.Generator().manual_seed(0)
