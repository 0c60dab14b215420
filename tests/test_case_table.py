"""Every worked number and every bug report: the test that covers it, or why there is none yet."""

import ast
import fnmatch
from pathlib import Path

import pytest

from case_table import BUG_TESTS, EXAMPLE_TESTS, LATER
from cases import BUGS, EXAMPLES

TESTS = Path(__file__).parent


def _entry(key: str, table: dict[str, str]) -> list[str]:
    return [value for pattern, value in table.items() if fnmatch.fnmatchcase(key, pattern)]


def _functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("names", "table"), [(EXAMPLES, EXAMPLE_TESTS), (BUGS, BUG_TESTS)])
def test_every_case_has_an_entry(names: dict, table: dict[str, str]):
    missing = [key for key in names if not _entry(key, table) and not _entry(key, LATER)]
    assert not missing


@pytest.mark.parametrize(("names", "table"), [(EXAMPLES, EXAMPLE_TESTS), (BUGS, BUG_TESTS)])
def test_no_entry_is_for_nothing(names: dict, table: dict[str, str]):
    idle = [p for p in table if not any(fnmatch.fnmatchcase(key, p) for key in names)]
    assert not idle


@pytest.mark.parametrize("target", sorted({*EXAMPLE_TESTS.values(), *BUG_TESTS.values()}))
def test_every_named_test_exists(target: str):
    for name in target.split(" + "):
        file, _, function = name.partition("::")
        path = TESTS / file
        assert path.is_file(), name
        assert function in _functions(path), name


def test_a_case_is_either_tested_or_explained():
    names = [*EXAMPLES, *BUGS]
    both = [
        key
        for key in names
        if _entry(key, LATER) and (_entry(key, EXAMPLE_TESTS) or _entry(key, BUG_TESTS))
    ]
    assert not both
    assert all(len(reason) > 20 for reason in LATER.values())
