"""What each kind of stage computes: the one place where configurations become models and runs."""

from fractionate.study.stages.run import run_stage

__all__ = ["run_stage"]
