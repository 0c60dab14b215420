"""A study: its cells, its plan, the store of its results and the executors. Free of torch."""

from fractionate.study.cells import Cell, Confound, expand
from fractionate.study.cost import PlanCost, StageCost, TokenCounts, flops_of
from fractionate.study.errors import StoreError, StoreFullError
from fractionate.study.execution import Executor, InterruptedRunError, Outcome
from fractionate.study.executors import SerialExecutor, parse_executor
from fractionate.study.keys import Stage
from fractionate.study.plan import CellStages, Plan, make_plan
from fractionate.study.pool import ProcessExecutor
from fractionate.study.status import Status, status
from fractionate.study.store import Store
from fractionate.study.workspace import Workspace

__all__ = [
    "Cell",
    "CellStages",
    "Confound",
    "Executor",
    "InterruptedRunError",
    "Outcome",
    "Plan",
    "PlanCost",
    "ProcessExecutor",
    "SerialExecutor",
    "Stage",
    "StageCost",
    "Status",
    "Store",
    "StoreError",
    "StoreFullError",
    "TokenCounts",
    "Workspace",
    "expand",
    "flops_of",
    "make_plan",
    "parse_executor",
    "status",
]
