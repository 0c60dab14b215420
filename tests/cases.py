"""Worked numbers and bug reports of the field, as the tests read them."""

import json
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parent / "data"


def _number(value: Any) -> Any:
    """JSON has no infinities: the strings "inf", "-inf" and "nan" stand for them."""
    if isinstance(value, str) and value in {"inf", "-inf", "nan"}:
        return float(value)
    if isinstance(value, list):
        return [_number(item) for item in value]
    if isinstance(value, dict):
        return {key: _number(item) for key, item in value.items()}
    return value


EXAMPLES: dict[str, Any] = json.loads((_DATA / "methods_examples.json").read_text())
_BUGS = json.loads((_DATA / "bug_reports.json").read_text())
PAIRS: dict[str, Any] = _number(_BUGS["pairs"])
BUGS: dict[str, Any] = {case["id"]: _number(case) for case in _BUGS["cases"]}
