"""Sampling backends behind one protocol: our own decoder, and transformers' `generate`.

The native engine is the default; the other one checks it and serves what only `generate` can do.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, final

import torch
from torch import Tensor
from transformers import GenerationConfig

from fractionate.models.hidden import evaluating, head_weight
from fractionate.models.load import LanguageModel
from fractionate.models.stepper import pack
from fractionate.records import Source, StopReason
from fractionate.rng import borrow_global
from fractionate.rollouts.completions import Completions
from fractionate.rollouts.draw import sample
from fractionate.rollouts.sampling import entropy as law_entropy
from fractionate.rollouts.tape import Sampled


class Engine(Protocol):
    """Something that samples completions of one model."""

    def sample(  # noqa: PLR0913 - a sampler is described by all of these
        self,
        model: LanguageModel,
        prompts: Sequence[Sequence[int]],
        *,
        samples: int = 1,
        temperature: float | int = 1.0,
        top_p: float | int = 1.0,
        max_new_tokens: int,
        seed: int,
        entropy: bool = False,
    ) -> Sampled:
        """Sample completions: see `rollouts.sample`."""
        ...


@final
class NativeEngine:
    """Our own batched decoder."""

    def sample(  # noqa: PLR0913 - a sampler is described by all of these
        self,
        model: LanguageModel,
        prompts: Sequence[Sequence[int]],
        *,
        samples: int = 1,
        temperature: float | int = 1.0,
        top_p: float | int = 1.0,
        max_new_tokens: int,
        seed: int,
        entropy: bool = False,
    ) -> Sampled:
        """Sample completions: see `rollouts.sample`."""
        return sample(
            model,
            prompts,
            samples=samples,
            temperature=temperature,
            top_p=top_p,
            max_new_tokens=max_new_tokens,
            seed=seed,
            entropy=entropy,
        )


@final
class TransformersEngine:
    """`generate` of transformers: the same law, other random numbers."""

    def sample(  # noqa: PLR0913 - a sampler is described by all of these
        self,
        model: LanguageModel,
        prompts: Sequence[Sequence[int]],
        *,
        samples: int = 1,
        temperature: float | int = 1.0,
        top_p: float | int = 1.0,
        max_new_tokens: int,
        seed: int,
        entropy: bool = False,
    ) -> Sampled:
        """Sample completions: see `rollouts.sample`; generate keeps the logits of every step."""
        packed = pack(prompts, model.device)
        columns = torch.arange(packed.ids.shape[1], device=model.device)
        mask = (columns[None, :] >= packed.pads[:, None]).long()
        settings = GenerationConfig(
            max_new_tokens=max_new_tokens,
            eos_token_id=list(model.stop_ids),
            pad_token_id=model.pad_id,
            suppress_tokens=_beyond_vocabulary(model),
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=entropy,
            **_sampler(temperature, top_p),
        )
        generate: Any = model.module.generate
        with borrow_global(seed, "generate"), torch.no_grad(), evaluating(model.module):
            output = generate(
                input_ids=packed.ids.repeat_interleave(samples, 0),
                attention_mask=mask.repeat_interleave(samples, 0),
                generation_config=settings,
            )
        tokens = output.sequences[:, packed.ids.shape[1] :]
        completions = _completions(model, tokens, output.scores, greedy=temperature == 0)
        if not entropy:
            return Sampled(completions)
        logits = torch.stack(output.logits, 1)[..., : model.vocab_size]
        spread = law_entropy(logits).masked_fill(~completions.mask, 0.0)
        return Sampled(completions, spread.sum(1) / completions.lengths)


ENGINES: Final[Mapping[str, Engine]] = {
    "native": NativeEngine(),
    "transformers": TransformersEngine(),
}
"""Engines by name."""


def _sampler(temperature: float | int, top_p: float | int) -> dict[str, Any]:
    if temperature == 0:
        return {"do_sample": False}
    return {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}


def _beyond_vocabulary(model: LanguageModel) -> list[int] | None:
    rows = head_weight(model.module).shape[0]
    return list(range(model.vocab_size, rows)) or None


def _completions(
    model: LanguageModel, tokens: Tensor, scores: Sequence[Tensor], *, greedy: bool
) -> Completions:
    """Cut each row after its first stop token; scores are the processed log-laws of each step."""
    stops = torch.isin(tokens, torch.tensor(model.stop_ids, device=tokens.device))
    stopped = stops.any(1)
    lengths = torch.where(stopped, stops.int().argmax(1) + 1, tokens.shape[1])
    inside = torch.arange(tokens.shape[1], device=tokens.device)[None, :] < lengths[:, None]
    law = torch.stack(list(scores), 1).float().log_softmax(-1)
    log_probs = law.gather(-1, tokens[..., None])[..., 0].masked_fill(~inside, 0.0)
    return Completions(
        tokens=tokens.masked_fill(~inside, model.pad_id),
        lengths=lengths,
        log_probs=torch.zeros_like(log_probs) if greedy else log_probs,
        source=torch.full_like(tokens, Source.STUDENT).masked_fill(~inside, 0),
        stop=tuple(StopReason.STOP if stop else StopReason.LENGTH for stop in stopped.tolist()),
    )
