"""The policy in training, and the same law as a plain model that samples and is saved."""

import copy
from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from fractionate.config import Adaptation, Lora
from fractionate.models.load import DTYPES, LanguageModel
from fractionate.rlvr.training import quiet
from fractionate.rng import borrow_global

_ADAPTER = "default"


@final
class Policy:
    """A language model with what is trained of it.

    With adapters, the plain model holds their sum with the base, W + (alpha / rank) B A, rounded to
    the model's dtype; a four-bit base is dequantised first. Without, both are one module.

    Attributes:
        trained: The module that the trainer updates.
    """

    def __init__(self, model: LanguageModel, adaptation: Adaptation, *, seed: int) -> None:
        """Take over a model.

        Args:
            model: In its full precision; its module becomes the plain model.
            adaptation: Resolved: without "auto".
            seed: Of new adapters.
        """
        self._plain = model
        self._adapted = adaptation.lora is not None
        self.trained: Any = model.module
        if adaptation.lora is not None:
            base = _frozen_base(model, adaptation)
            with quiet(), borrow_global(seed, "adapters"):
                self.trained = _with_adapters(base, adaptation.lora)
        else:
            model.module.requires_grad_(True)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Its tokenizer."""
        return self._plain.tokenizer

    @torch.no_grad()
    def plain(self) -> LanguageModel:
        """The current law as a plain model; the next call changes it in place."""
        if self._adapted:
            weights = dict(self._plain.module.named_parameters())
            for name, merged in _merged(self.trained):
                weights[name].copy_(merged)
        return self._plain


def _frozen_base(model: LanguageModel, adaptation: Adaptation) -> PreTrainedModel:
    if adaptation.quantization == "none":
        return copy.deepcopy(model.module)
    from transformers import BitsAndBytesConfig  # needs bitsandbytes as soon as it is made

    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=DTYPES[adaptation.dtype],
    )
    load: Any = AutoModelForCausalLM.from_pretrained
    return load(
        model.source,
        quantization_config=settings,
        dtype=DTYPES[adaptation.dtype],
        device_map={"": model.device},
    )


def _with_adapters(base: PreTrainedModel, lora: Lora) -> nn.Module:
    from peft import LoraConfig, get_peft_model  # an extra; see `packages`

    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        bias="none",
        target_modules=list(lora.targets),
        task_type="CAUSAL_LM",
    )
    wrap: Any = get_peft_model
    return wrap(base, settings, adapter_name=_ADAPTER)


def _merged(trained: Any) -> Iterator[tuple[str, Tensor]]:
    """Name and value of every weight that an adapter changes."""
    from peft.tuners.lora.layer import LoraLayer
    from peft.utils.integrations import dequantize_module_weight

    for name, layer in trained.get_base_model().named_modules():
        if isinstance(layer, LoraLayer):
            base: Any = layer.get_base_layer()
            delta: Tensor = getattr(layer, "get_delta_weight")(_ADAPTER)  # noqa: B009 - not in the base class
            weight = dequantize_module_weight(base)
            yield f"{name}.weight", weight.to(delta.dtype) + delta
