"""How uncertain another model is along completions that it did not write."""

from typing import cast

import torch

from fractionate.losses import DivergenceStats, linear_divergence
from fractionate.models.hidden import completion_hidden, evaluating, head_weight, micro_batches
from fractionate.rollouts.completions import Completions
from fractionate.rollouts.decode import Speaker

TOKENS_PER_PASS = 4096


def completion_entropy(
    reference: Speaker, writer: Speaker, completions: Completions
) -> list[float]:
    """Mean entropy of the reference's next-token law along each completion, at temperature 1.

    With the writer's own entropy on the same positions it tells the entropy trap: a small
    divergence between two laws that are both far from certain (arXiv 2609.35259, appendix A.10).

    Args:
        reference: Whose law, with its prompt for every completion.
        writer: Who wrote, for the vocabulary that both share.
        completions: Where.

    Returns:
        Nats per token, one per completion.
    """
    lengths = [int(length) for length in completions.lengths]
    values = [0.0] * len(lengths)
    module, head = reference.model.module, head_weight(reference.model.module)
    vocab = min(reference.model.vocab_size, writer.model.vocab_size)
    prompt_lengths = [len(prompt) for prompt in reference.prompts]
    for rows in micro_batches(prompt_lengths, lengths, TOKENS_PER_PASS):
        with torch.no_grad(), evaluating(module):
            hidden = completion_hidden(module, reference.prompts, completions, rows=rows)
            _, stats = linear_divergence(
                student_hidden=hidden,
                student_head=head,
                teacher_hidden=hidden,
                teacher_head=head,
                kind="forward",
                vocab_size=vocab,
                return_stats=True,
            )
        entropies = cast(DivergenceStats, stats).teacher_entropy
        for row, part in zip(rows, entropies.split([lengths[r] for r in rows]), strict=True):
            values[row] = float(part.double().mean())
    return values
