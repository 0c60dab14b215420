"""Peak memory of a training run on a CPU, above what the imports take.

Three moments may be the peak. While a micro-batch goes backward: weights, moments, master copy and
teacher, all gradients, the activations of the micro-batch and one chunk of the loss. While an
update is taken: gradients in the dtype of the updated weights beside what stays. While the student
writes: the same weights, the decoder's copy of them and its cache. Llama and Qwen2 models run
packed (see `fractionate.models.forward`); others keep about twice the activations.
"""

from collections.abc import Mapping
from typing import Any

from fractionate.study.dimensions import Dimensions
from fractionate.study.operations import BYTES, Models

_LOSS_CHUNK = 64 * 2**20
"""Bytes that the fused loss keeps of one chunk of positions."""
_BLOCK = 512
"""Tokens that go through a layer together; a longer row goes alone."""
_LIBRARIES = 32 * 2**20
"""Bytes that the libraries take besides, when they first compute."""


def training_memory(
    config: Mapping[str, Any], optimizer: Mapping[str, Any], models: Models
) -> float:
    """Peak bytes of a cell.

    Args:
        config: Of the stage: budget and lengths.
        optimizer: Of the stage.
        models: Student and teacher, both of known size.
    """
    student, teacher = models.student, models.teacher
    assert student is not None
    assert teacher is not None
    computed = BYTES[optimizer["compute_dtype"]]
    tokens, longest = _micro_batch(config)
    held = _held(student, optimizer) + models.teacher_bytes * teacher.parameters
    learning = (
        student.parameters * computed
        + activations(student, tokens, longest, computed, config["budget"]["activation_bytes"])
        + _loss(student, tokens, computed)
    )
    widened = student.parameters if computed < BYTES["float32"] else student.block_parameters
    cache = config["budget"]["prompts_per_step"] * longest * student.cache_per_token
    writing = BYTES["float32"] * (widened + cache)
    updating = student.parameters * BYTES[_updated(optimizer)]
    return float(held + max(learning, writing, updating) + _LIBRARIES)


def recomputes(
    config: Mapping[str, Any], optimizer: Mapping[str, Any], student: Dimensions
) -> bool:
    """Whether the activations of a full micro-batch exceed `budget.activation_bytes`."""
    needed = _micro_batch(config)[0] * kept_per_token(student) * BYTES[optimizer["compute_dtype"]]
    return needed > config["budget"]["activation_bytes"]


def _micro_batch(config: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens of a full micro-batch and of the longest row."""
    longest = config["lengths"]["prompt"] + config["lengths"]["completion"]
    asked = max(config["budget"]["tokens_per_micro_batch"], longest)
    return min(asked, config["budget"]["prompts_per_step"] * longest), longest


def _held(student: Dimensions, optimizer: Mapping[str, Any]) -> int:
    """Bytes of the weights that compute, those that are updated, and their two moments."""
    stored, computed = optimizer["param_dtype"], optimizer["compute_dtype"]
    updated = _updated(optimizer)
    own = 0 if updated == computed == stored else BYTES[updated]
    return student.parameters * (BYTES[computed] + own + 2 * BYTES[updated])


def _updated(optimizer: Mapping[str, Any]) -> str:
    """Dtype of the weights that take the updates, and so of their gradients and moments."""
    own = optimizer["master_weights"] == "float32"
    return "float32" if own else str(optimizer["param_dtype"])


def kept_per_token(model: Dimensions) -> int:
    """Numbers that the layers keep of a token for the backward pass."""
    attention = 2 * (model.heads + model.kv_heads) * model.head_dim
    return model.layers * (2 * model.hidden + attention + 2 * model.intermediate)


def activations(model: Dimensions, tokens: int, longest: int, size: int, budget: int) -> int:
    """Bytes that a micro-batch keeps for the backward pass.

    Args:
        model: The student.
        tokens: Of the micro-batch.
        longest: Tokens of its longest row.
        size: Bytes of a number.
        budget: Above this, layers keep only their input and one block is computed again.
    """
    everything = tokens * kept_per_token(model) * size
    if everything <= budget:
        return everything
    block = min(max(_BLOCK, longest), tokens)
    return size * (tokens * model.layers * model.hidden + 2 * block * kept_per_token(model)
                   // model.layers)  # fmt: skip


def _loss(student: Dimensions, tokens: int, size: int) -> int:
    """Bytes of one chunk, and of a second gradient of the head where there are two for a while."""
    chunk = min(_LOSS_CHUNK, 2 * BYTES["float32"] * tokens * student.vocabulary)
    beside = size if student.tied else 0  # tied: one gradient as embedding, one as head
    narrow = BYTES["float32"] if size < BYTES["float32"] else 0  # added up in float32
    return chunk + student.head_parameters * max(beside, narrow)
