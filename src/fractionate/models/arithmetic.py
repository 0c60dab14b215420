"""Whether a model's arithmetic is that of a plain Llama, which our own forward passes compute."""

from typing import Final

from transformers import PreTrainedConfig

STATIC_ROPE: Final = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary positions that do not depend on the length of the text."""


def is_plain_llama(config: PreTrainedConfig) -> bool:
    """Static and whole rotary positions, SiLU, and full attention in every layer."""
    rope = config.rope_parameters or {}
    layer_types = config.to_dict().get("layer_types") or []
    return (
        rope.get("rope_type", "default") in STATIC_ROPE
        and rope.get("partial_rotary_factor", 1.0) == 1.0
        and config.hidden_act == "silu"
        and all(kind == "full_attention" for kind in layer_types)
    )
