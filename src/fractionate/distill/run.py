"""What one run is made of."""

from collections.abc import Callable
from dataclasses import dataclass

from fractionate.config import Budget, Diagnostics
from fractionate.distill.journal import Journal
from fractionate.distill.objective import Objective
from fractionate.distill.prompts import Prompt
from fractionate.distill.scoring import Scorer
from fractionate.distill.sources import RolloutSource
from fractionate.distill.student import Student


@dataclass(frozen=True)
class Distillation:
    """Everything one run needs; the loop only orchestrates it.

    Attributes:
        student: The model in training.
        scorer: Runs both models over completions.
        source: Where completions come from.
        objective: The method's loss.
        prompts: Step number to prompts.
        budget: How long.
        diagnostics: What is looked at besides.
        seed: Names the auxiliary streams.
        journal: Records and checkpoints.
        checkpoint_every: Steps between two checkpoints.
        save_at: Steps after which `save` is called.
        save: Keeps the weights after a step for later evaluation.
    """

    student: Student
    scorer: Scorer
    source: RolloutSource
    objective: Objective
    prompts: Callable[[int], list[Prompt]]
    budget: Budget
    diagnostics: Diagnostics
    seed: int
    journal: Journal
    checkpoint_every: int
    save_at: frozenset[int]
    save: Callable[[int, Student], None]
