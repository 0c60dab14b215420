"""The shape of the house: sizes that may only shrink, and what importing costs."""

import ast
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "fractionate"
FILES = sorted(SOURCE.rglob("*.py"))


def _functions(path: Path) -> Iterator[tuple[str, int]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno is not None
            yield f"{path.relative_to(SOURCE)}:{node.name}", node.end_lineno - node.lineno + 1


def test_no_file_is_longer_than_400_lines():
    lengths = {str(p.relative_to(SOURCE)): len(p.read_text().splitlines()) for p in FILES}
    assert not {name: n for name, n in lengths.items() if n > 400}


def test_no_function_is_longer_than_80_lines():
    assert not {name: n for path in FILES for name, n in _functions(path) if n > 80}


def test_the_loop_fits_a_screen():
    lengths = dict(_functions(SOURCE / "distill" / "loop.py"))
    assert lengths["distill/loop.py:distill"] <= 80


def test_functions_are_short_as_a_rule():
    lengths = sorted(n for path in FILES for _, n in _functions(path))
    assert statistics.median(lengths) <= 14
    assert lengths[int(0.9 * len(lengths))] <= 40


def test_package_init_files_only_re_export():
    for path in SOURCE.rglob("__init__.py"):
        if path.parent == SOURCE:  # resolves its names lazily
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.Expr)
        assert all(isinstance(node, allowed) for node in tree.body), path


@pytest.mark.parametrize(
    "statement",
    [
        "import fractionate",
        "import fractionate.config",
        "import fractionate.study.plan, fractionate.study.store, fractionate.study.status",
        "import fractionate.cli",
        "import fractionate.analysis.report",
    ],
)
def test_planning_and_reporting_do_not_import_torch(statement: str):
    code = f"{statement}; import sys; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("statement", ["import fractionate", "import fractionate.cli"])
def test_starting_the_command_line_does_not_import_pandas(statement: str):
    code = f"{statement}; import sys; print('pandas' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"
