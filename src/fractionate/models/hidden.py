"""Hidden states and head of a causal language model, apart from each other.

The logits of every model used here are hidden states times the head, so a divergence can be formed
chunk by chunk without the whole logits matrix.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from fractionate.models.forward import packed_hidden, runs_packed

_LOGIT_FACTORS: Final = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
)
"""Fields of model configs that change the logits after the head; 1 and none leave them alone."""


@runtime_checkable
class Scorable(Protocol):
    """What scoring needs of completions; `rollouts.Completions` has it.

    Attributes:
        tokens: Token ids, right-padded, [batch, time].
        lengths: Tokens of each completion, [batch].
    """

    @property
    def tokens(self) -> Tensor: ...  # noqa: D102 - described above

    @property
    def lengths(self) -> Tensor: ...  # noqa: D102 - described above


def head_weight(module: PreTrainedModel) -> Float[Tensor, "vocab hidden"]:
    """The matrix that turns last hidden states into logits, tied to the embedding or not.

    Raises:
        ValueError: The head has a bias, or the config scales or caps the logits.
    """
    head = module.get_output_embeddings()
    name = type(module).__name__
    if not isinstance(head, nn.Linear):
        raise ValueError(  # noqa: TRY004 - the model is a wrong value for the caller
            f"{name} has no linear language-model head. Use a causal language model"
        )
    if head.bias is not None:
        raise ValueError(
            f"{name} has a bias in its head, which is not supported. Use a model without"
        )
    settings = module.config.to_dict()
    for field in _LOGIT_FACTORS:
        if settings.get(field) not in (None, 1, 1.0):
            raise ValueError(
                f"{name} changes its logits after the head ({field} is {settings[field]}), which "
                "is not supported. Use a model without it"
            )
    return head.weight


def backbone(module: PreTrainedModel) -> nn.Module:
    """The model without its head: ids in, last hidden states after the final norm out.

    Raises:
        ValueError: The model has no part that can be called so.
    """
    body = module.base_model
    if body is module:
        raise ValueError(f"{type(module).__name__} cannot be called without its head")
    return body


@contextlib.contextmanager
def evaluating(module: PreTrainedModel) -> Iterator[None]:
    """Eval mode inside, the module's own mode afterwards: a shared module keeps its dropout."""
    training = module.training
    if training:
        module.eval()
    try:
        yield
    finally:
        if training:
            module.train()


def check_linear_head(module: PreTrainedModel) -> None:
    """Compare logits with hidden states times head on two tokens.

    Raises:
        ValueError: They differ: something stands between hidden states and logits.
    """
    ids = torch.tensor([[0, 1]], device=module.device)
    with torch.no_grad(), evaluating(module):
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
        logits = module(**inputs).logits.float()
        hidden = backbone(module)(**inputs).last_hidden_state
        product = nn.functional.linear(hidden, head_weight(module)).float()
    if not torch.allclose(logits, product, rtol=1e-2, atol=1e-2 * float(logits.abs().max())):
        raise ValueError(
            f"the logits of {type(module).__name__} are not its last hidden states times its head. "
            "Use a model without scaling of logits"
        )


def completion_hidden(
    module: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    completions: Scorable,
    *,
    rows: Sequence[int] | None = None,
    checkpoint: bool = False,
    kernel: Literal["torch", "native", "compiled"] = "torch",
) -> Float[Tensor, "tokens hidden"]:
    """Last hidden states at the positions that predict each completion token.

    Llama and Qwen2 models on a CPU read the rows packed, without padding (`models.forward`). Every
    other model runs its own forward pass, padded on the right with positions counted from 0, so
    that causal attention never sees padding and no mask is needed. The mode of the module (train
    or eval) is left alone, and gradients flow.

    Args:
        module: Causal language model, called without its head.
        prompts: The context of each completion, one per row of `completions`.
        completions: What was written.
        rows: Which rows, in which order; all by default.
        checkpoint: Keep only the input of every layer for the backward pass, and compute the rest
            again there: less memory for a third more operations.
        kernel: What computes the parts of a layer that are no matrix products, where rows are read
            packed and the model is in float32. "compiled" is the model's own forward pass in any
            case, compiled by torch when it is first called.

    Returns:
        The hidden states of the rows one after the other: as many as their lengths add up to.

    Raises:
        ValueError: Prompts and completions differ in number, or a prompt is empty.
    """
    if len(prompts) != completions.tokens.shape[0]:
        raise ValueError(
            f"{len(prompts)} prompts for {completions.tokens.shape[0]} completions: give one each"
        )
    rows = range(len(prompts)) if rows is None else rows
    if any(len(prompts[row]) == 0 for row in rows):
        raise ValueError("a prompt has no token: nothing predicts the first completion token")
    lengths = completions.lengths.tolist()
    tokens = completions.tokens.tolist()
    rows = [row for row in rows if lengths[row]]
    if not rows:
        return head_weight(module).new_zeros(0, head_weight(module).shape[1])
    # the last token predicts nothing that is in the completion, so it need not be read
    texts = [
        [*prompts[row], *tokens[row][: lengths[row]]][: len(prompts[row]) + lengths[row] - 1]
        for row in rows
    ]
    wanted = [lengths[row] for row in rows]
    if kernel != "compiled" and runs_packed(module):
        return packed_hidden(module, texts, wanted, checkpoint=checkpoint, kernel=kernel)
    forward = _compiled_forward() if kernel == "compiled" else _forward
    return _padded_hidden(module, texts, wanted, checkpoint=checkpoint, forward=forward)


def _forward(body: nn.Module, ids: Tensor, positions: Tensor) -> Tensor:
    return body(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state


@functools.cache
def _compiled_forward() -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """One for all models of a process; torch compiles it again for each kind of model."""
    return torch.compile(_forward, dynamic=True)


def _padded_hidden(
    module: PreTrainedModel,
    texts: Sequence[Sequence[int]],
    wanted: Sequence[int],
    *,
    checkpoint: bool,
    forward: Callable[[nn.Module, Tensor, Tensor], Tensor],
) -> Float[Tensor, "tokens hidden"]:
    """The last `wanted` hidden states of every text, by the module's own forward pass."""
    width = max(len(text) for text in texts)
    ids = torch.zeros(len(texts), width, dtype=torch.long)
    for i, text in enumerate(texts):
        ids[i, : len(text)] = torch.tensor(text, dtype=torch.long)
    starts = [len(text) - count for text, count in zip(texts, wanted, strict=True)]
    where = _flat_positions(starts, wanted, width).to(module.device)
    ids = ids.to(module.device)
    positions = torch.arange(width, device=ids.device).expand(ids.shape[0], -1)

    with _checkpointing(module) if checkpoint else contextlib.nullcontext():
        hidden = forward(backbone(module), ids, positions)
    return hidden.flatten(0, 1)[where]


@contextlib.contextmanager
def _checkpointing(module: PreTrainedModel) -> Iterator[None]:
    """Layers keep only their input inside; transformers does so for layers in training mode.

    The mode of a layer's parts stays as it is, so that dropout stays off where it is off.
    """
    layers = [part for part in module.modules() if isinstance(part, GradientCheckpointingLayer)]
    modes = [layer.training for layer in layers]
    module.activation_checkpointing_enable({"use_reentrant": False})
    try:
        for layer in layers:
            layer.training = True
        yield
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            layer.training = mode
        module.activation_checkpointing_disable()


def _flat_positions(
    starts: Sequence[int], lengths: Sequence[int], width: int
) -> Int[Tensor, " tokens"]:
    spans = [
        torch.arange(length) + i * width + start
        for i, (start, length) in enumerate(zip(starts, lengths, strict=True))
    ]
    return torch.cat(spans)


def micro_batches(
    prompt_lengths: Sequence[int],
    completion_lengths: Sequence[int],
    max_tokens: int,
    *,
    packed: bool = False,
) -> list[list[int]]:
    """Group rows so that each group stays within a token budget, padded to its longest row or not.

    Rows are taken by length, longest first, so that padding is rare; a row longer than the budget
    stands alone. Every row is in exactly one group.

    Args:
        prompt_lengths: Tokens of each prompt.
        completion_lengths: Tokens of each completion.
        max_tokens: Of a group, padding included: rows times longest row, or the sum of rows.
        packed: Whether rows are not padded.

    Returns:
        Groups of row indices.
    """
    totals = [p + c for p, c in zip(prompt_lengths, completion_lengths, strict=True)]
    groups: list[list[int]] = []
    used = 0
    for row in sorted(range(len(totals)), key=lambda index: (-totals[index], index)):
        size = totals[row] if packed else totals[groups[-1][0]] if groups else 0
        if groups and used + size <= max_tokens:
            groups[-1].append(row)
            used += size
        else:
            groups.append([row])
            used = totals[row]
    return groups
