"""How far a model has drifted: divergences from its base and from its teacher, per completion."""

from typing import cast

import torch
from torch import Tensor

from fractionate.losses import linear_divergence
from fractionate.models.hidden import completion_hidden, evaluating, head_weight, micro_batches
from fractionate.rollouts.completions import Completions
from fractionate.rollouts.decode import Speaker

TOKENS_PER_PASS = 4096
"""Prompt and completion tokens, padding included, in one forward pass."""


def completion_kl(
    reference: Speaker,
    model: Speaker,
    completions: Completions,
    *,
    reference_temperature: float = 1.0,
    model_temperature: float = 1.0,
    tokens_per_pass: int = TOKENS_PER_PASS,
) -> list[float]:
    """Mean over each completion's tokens of KL(reference || model), over the whole vocabulary.

    On completions that the reference wrote, with both temperatures 1, it is the drift of arXiv
    2509.04259 from the base model. Prefixes are completed in each model's own context. Both models
    are scored in eval mode, and left in the mode they had.

    Args:
        reference: The law that the divergence starts from, with its prompt for every completion.
        model: The law compared with it, with its own prompts.
        completions: Where the two are compared.
        reference_temperature: Divides the reference's logits.
        model_temperature: Divides the model's logits.
        tokens_per_pass: Bounds memory; values do not depend on it beyond rounding.

    Returns:
        Nats per token, one per completion.

    Raises:
        ValueError: A completion has no token, or the prompts do not match the completions.
    """
    lengths = [int(length) for length in completions.lengths]
    if not all(lengths):
        raise ValueError(f"completion {lengths.index(0)} has no token: no divergence is defined")
    longest = [max(map(len, pair)) for pair in zip(reference.prompts, model.prompts, strict=True)]
    values = [0.0] * len(lengths)
    for rows in micro_batches(longest, lengths, tokens_per_pass):
        with (
            torch.no_grad(),
            evaluating(model.model.module),
            evaluating(reference.model.module),
        ):
            per_token = linear_divergence(
                student_hidden=completion_hidden(
                    model.model.module, model.prompts, completions, rows=rows
                ),
                student_head=head_weight(model.model.module),
                teacher_hidden=completion_hidden(
                    reference.model.module, reference.prompts, completions, rows=rows
                ),
                teacher_head=head_weight(reference.model.module),
                kind="forward",
                student_temperature=model_temperature,
                teacher_temperature=reference_temperature,
                vocab_size=min(reference.model.vocab_size, model.model.vocab_size),
            )
        parts = cast(Tensor, per_token).split([lengths[row] for row in rows])
        for row, part in zip(rows, parts, strict=True):
            values[row] = float(part.double().mean())
    return values
