"""Groups of completions for GRPO: sampled from the policy, judged by the verifier, counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from fractionate.config import Grpo
from fractionate.metrics.verdicts import Answer, read_answers
from fractionate.models.prompts import check_length, render
from fractionate.rlvr.policy import Policy
from fractionate.rlvr.rewards import Reward, Rewarder
from fractionate.rng import derive_seed
from fractionate.rollouts.draw import sample
from fractionate.tasks.base import Problem


@dataclass
class _Tally:
    """What was sampled since the last record."""

    answers: list[Answer] = field(default_factory=list[Answer])
    rewards: list[Reward] = field(default_factory=list[Reward])
    prompt_tokens: int = 0


@final
class GroupRollouts:
    """Samples for the trainer: a group of completions for every prompt.

    The random numbers of a generation depend on the seed, on the updates done and on how many
    generations these updates have seen, so that a resumed run draws what it would have drawn.
    """

    def __init__(
        self,
        policy: Policy,
        problems: Sequence[Problem],
        *,
        rewarder: Rewarder,
        config: Grpo,
        chat_template_kwargs: Mapping[str, Any],
    ) -> None:
        """Bind the policy and what it is asked; problems are known to the trainer by their key."""
        self._policy = policy
        self._problems = {problem.key: problem for problem in problems}
        self.rewarder = rewarder
        self._config = config
        self._kwargs = chat_template_kwargs
        self._tally = _Tally()
        self._at = (0, 0)

    @property
    def keys(self) -> list[str]:
        """Keys of all problems, in their order."""
        return list(self._problems)

    def __call__(self, keys: Sequence[str], trainer: Any) -> dict[str, Any]:
        """One generation, in the form that TRL's `rollout_func` has.

        Args:
            keys: A problem's key for every completion, groups in a row.
            trainer: The trainer, of which only the number of updates done is read.

        Returns:
            Token ids of prompts and completions, and the rewards that `verified` hands over.
        """
        group, config = self._config.group, self._config
        problems = [self._problems[key] for key in keys[::group]]
        model = self._policy.plain()
        prompts = [render(model.tokenizer, p.messages, self._kwargs) for p in problems]
        for problem, prompt in zip(problems, prompts, strict=True):
            check_length(prompt, config.prompt, field="prompt", key=problem.key)
        completions = sample(
            model,
            prompts,
            samples=group,
            temperature=config.temperature,
            top_p=config.top_p,
            max_new_tokens=config.completion,
            seed=self._seed(trainer.state.global_step),
        ).completions
        answers = read_answers(model, completions)
        rewards = self.rewarder([p for p in problems for _ in range(group)], answers)
        self._tally.answers += answers
        self._tally.rewards += rewards
        self._tally.prompt_tokens += sum(map(len, prompts))
        rows = zip(completions.tokens.tolist(), completions.lengths.tolist(), strict=True)
        return {
            "prompt_ids": [prompt for prompt in prompts for _ in range(group)],
            "completion_ids": [tokens[:length] for tokens, length in rows],
            "logprobs": None,
            "reward": [reward.value for reward in rewards],
        }

    def _seed(self, updates: int) -> int:
        done, generation = self._at
        self._at = (updates, generation + 1 if updates == done else 1)
        return derive_seed(self._config.seed, "grpo", updates, self._at[1])

    def counted(self) -> dict[str, Any]:
        """Fields of an `RlvrRecord` for what was sampled since the last call."""
        tally, self._tally = self._tally, _Tally()
        n = len(tally.rewards)
        values = np.array([reward.value for reward in tally.rewards])
        groups = values.reshape(-1, self._config.group)
        tokens = sum(answer.tokens for answer in tally.answers)
        return {
            "completions": n,
            "reward": float(values.mean()) if n else None,
            "reward_sd": float(values.std(ddof=1)) if n else None,
            "correct": sum(reward.grade.correct for reward in tally.rewards),
            "unanswered": sum(not reward.grade.answered for reward in tally.rewards),
            "truncated": sum(answer.truncated for answer in tally.answers),
            "silent_groups": float((np.ptp(groups, axis=1) == 0).mean()) if n else None,
            "mean_length": tokens / n if n else None,
            "tokens_generated": tokens,
            "prompt_tokens": tally.prompt_tokens,
        }


def verified(reward: Sequence[float], **_: Any) -> list[float | None]:
    """TRL's reward function: the rewards that came with the completions."""
    return list(reward)
