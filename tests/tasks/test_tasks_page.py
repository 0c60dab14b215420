"""The studies of docs/tasks.md are valid as they are printed."""

import re
from pathlib import Path

import pytest
import yaml

from fractionate.config.files import parse_study
from fractionate.tasks.build import _BUILDERS

TEXT = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split()[1])
def test_studies_of_the_page_are_valid(block):
    assert parse_study(yaml.safe_load(block)).task.kind in _BUILDERS


def test_every_kind_is_in_the_table():
    kinds = set(re.findall(r"^\| `(\w+)` \| \w", TEXT, flags=re.MULTILINE))
    assert set(_BUILDERS) <= kinds
