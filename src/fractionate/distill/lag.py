"""Rollouts that are some steps old when they are trained on."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

import torch
from torch import Tensor

from fractionate.distill.prompts import Prompt
from fractionate.distill.sources import Drawn, FreshRollouts, RolloutSource
from fractionate.records import StopReason
from fractionate.rollouts.completions import Completions

_STOPS: Final = tuple(StopReason)


@final
class LaggedRollouts(RolloutSource):
    """Completions that the student wrote `lag` steps before they are trained on.

    Each step draws for the step `lag` later, as an asynchronous sampler does; the first steps
    all train on the untrained student's. The completions under way are kept, not old weights.
    """

    def __init__(
        self,
        rollouts: FreshRollouts,
        *,
        lag: int,
        steps: int,
        prompts: Callable[[int], Sequence[Prompt]],
    ) -> None:
        """Draw ahead.

        Args:
            rollouts: Writes completions with the student as it is.
            lag: Steps between writing and training.
            steps: Steps of the run; nothing is written for a later one.
            prompts: Step number to prompts.
        """
        self._rollouts, self._prompts = rollouts, prompts
        self._lag, self._steps = lag, steps
        self._under_way: dict[int, Completions] = {}

    def completions(self, step: int, prompts: Sequence[Prompt]) -> Drawn:  # noqa: ARG002 - they were drawn
        """What an older student wrote for the prompts of this step."""
        first = 0 if step == 0 else step + self._lag
        generated = 0
        for target in range(first, min(step + self._lag + 1, self._steps)):
            drawn = self._rollouts.completions(target, self._prompts(target))
            self._under_way[target] = drawn.completions
            generated += drawn.tokens_generated
        return Drawn(self._under_way.pop(step), generated)

    def state(self) -> dict[str, Tensor]:
        """The completions under way."""
        return {
            f"{step}/{name}": tensor
            for step, completions in self._under_way.items()
            for name, tensor in _tensors(completions).items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up the completions that were under way."""
        steps = {int(name.split("/")[0]) for name in state}
        self._under_way = {
            step: _completions(
                {name.split("/")[1]: t for name, t in state.items() if name.startswith(f"{step}/")}
            )
            for step in steps
        }


def _tensors(completions: Completions) -> dict[str, Tensor]:
    return {
        "tokens": completions.tokens,
        "lengths": completions.lengths,
        "log_probs": completions.log_probs,
        "source": completions.source,
        "stop": torch.tensor([_STOPS.index(stop) for stop in completions.stop]),
    }


def _completions(tensors: Mapping[str, Tensor]) -> Completions:
    fields = {name: tensor for name, tensor in tensors.items() if name != "stop"}
    return Completions(**fields, stop=tuple(_STOPS[i] for i in tensors["stop"].tolist()))
