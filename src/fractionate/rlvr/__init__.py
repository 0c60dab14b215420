"""Reinforcement learning with verifiable rewards: GRPO by TRL, the task's verifier as reward."""
