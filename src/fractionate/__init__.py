"""Fractionate: which knob of a distillation matters?

The public names are resolved when they are first used, so that importing the package imports
neither torch nor pandas.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fractionate.api import Results, load_study, plan, report, run
    from fractionate.config import Method, Optimizer, Study, StudyFileError
    from fractionate.study.plan import Plan

__version__ = "0.1.0"

_HOMES = {
    "Method": "fractionate.config",
    "Optimizer": "fractionate.config",
    "Plan": "fractionate.study.plan",
    "Results": "fractionate.api",
    "Study": "fractionate.config",
    "StudyFileError": "fractionate.config",
    "load_study": "fractionate.api",
    "plan": "fractionate.api",
    "report": "fractionate.api",
    "run": "fractionate.api",
}

__all__ = [
    "Method",
    "Optimizer",
    "Plan",
    "Results",
    "Study",
    "StudyFileError",
    "load_study",
    "plan",
    "report",
    "run",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'fractionate' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
