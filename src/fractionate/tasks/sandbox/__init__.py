"""The sandbox's tasks: Countdown in 128 words, its traces and parts, and the prior skills."""

from fractionate.tasks.sandbox.countdown import SandboxCountdown
from fractionate.tasks.sandbox.skills import SandboxSkill
from fractionate.tasks.sandbox.vocabulary import SKILL_TAGS

__all__ = ["SKILL_TAGS", "SandboxCountdown", "SandboxSkill"]
