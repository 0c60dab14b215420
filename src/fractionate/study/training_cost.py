"""What RLVR and the training of a teacher cost: upper bounds, every completion at its limit."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fractionate.study.dimensions import Dimensions
from fractionate.study.keys import Stage
from fractionate.study.operations import BYTES, Models, StageCost, TokenCounts, forward_flops

_RECORD = 512
"""Bytes of one update's record, generously."""
_LOGIT_ROWS = 1024
"""Positions whose logits exist at once in TRL's fused head."""
_NF4 = 0.55
"""Bytes of a four-bit weight, its block scales included."""


def adapter_parameters(model: Dimensions, lora: Mapping[str, Any]) -> int:
    """Trained parameters of adapters: rank * (inputs + outputs) of every target in every block."""
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    sizes = {
        "q_proj": model.hidden + queries,
        "k_proj": model.hidden + keys,
        "v_proj": model.hidden + keys,
        "o_proj": queries + model.hidden,
        "gate_proj": model.hidden + model.intermediate,
        "up_proj": model.hidden + model.intermediate,
        "down_proj": model.intermediate + model.hidden,
    }
    return int(lora["rank"]) * model.layers * sum(sizes.get(name, 0) for name in lora["targets"])


def rlvr_cost(stage: Stage, models: Models) -> StageCost:
    """GRPO from a distilled student."""
    return _training(stage, models.student, stage.config["rlvr"])


def teacher_training_cost(stage: Stage, models: Models) -> StageCost:
    """One stage of a teacher's training."""
    return _training(stage, models.teacher, stage.config["training"])


def _training(stage: Stage, model: Dimensions | None, config: Mapping[str, Any]) -> StageCost:
    prompt, completion = config["prompt"], config["completion"]
    steps = config["steps"] if config.get("use", "last") == "last" else config["use"]
    samples = "group" in config
    batch = config["micro_batch"] * config["accumulation"] if samples else config["batch"]
    rows = steps * batch
    made = rows * completion if samples else 0
    asked = rows // config["group"] if samples else rows
    tokens = TokenCounts(made, 0, rows * completion, asked * prompt)
    cost = StageCost(stage.key, stage.kind, tokens, disk=float(_RECORD * steps))
    if model is None:
        return cost
    context = prompt + completion / 2
    sampling = forward_flops(model, made + asked * prompt, context=context, laws=made)
    passes = 4.0 if config["adaptation"]["recompute"] else 3.0
    learning = forward_flops(
        model, rows * (prompt + completion), context=context, laws=rows * completion
    )
    kept = len(stage.config.get("keep", ("last",)))
    weights = BYTES[config["adaptation"]["dtype"]] * model.parameters
    return replace(
        cost,
        flops=(sampling if samples else 0.0) + passes * learning,
        memory=_memory(model, config),
        disk=cost.disk + kept * weights,
        scratch=_state(model, config),
    )


def _trained(model: Dimensions, config: Mapping[str, Any]) -> int:
    lora = config["adaptation"]["lora"]
    return model.parameters if lora is None else adapter_parameters(model, lora)


def _state(model: Dimensions, config: Mapping[str, Any]) -> float:
    """Bytes of the trained parameters and their two moments."""
    moment = 1 if config["adaptation"]["optimizer"] == "adamw_8bit" else 4
    return float(_trained(model, config) * (4 + 2 * moment))


def _memory(model: Dimensions, config: Mapping[str, Any]) -> float:
    """Weights, their plain copy beside adapters, gradients, moments, cache, activations, logits."""
    adaptation = config["adaptation"]
    size = BYTES[adaptation["dtype"]]
    stored = _NF4 if adaptation["quantization"] == "nf4" else size
    copies = stored + size if adaptation["lora"] is not None else stored
    longest = config["prompt"] + config["completion"]
    per_block = 16 * model.hidden + 4 * model.intermediate
    recompute = adaptation["recompute"]
    per_token = model.layers * model.hidden + per_block if recompute else model.layers * per_block
    cache = config.get("generation_batch", 0) * longest * model.cache_per_token
    return float(
        copies * model.parameters
        + 4 * _trained(model, config)
        + _state(model, config)
        + size * (config["micro_batch"] * longest * per_token + cache)
        + 4 * 4 * _LOGIT_ROWS * model.vocabulary
    )
