"""One vocabulary for teacher and student: same strings, same stop set, same chat template.

Models of one family pad their logits to different widths (Qwen2.5: 151,665 tokenizer ids, 151,936
or 152,064 logits). Both laws are cut to the ids that mean something before the softmax, in the
sampler as in the loss, and the mass that the cut drops is measured.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from fractionate.models.hidden import backbone, evaluating, head_weight
from fractionate.models.load import LanguageModel
from fractionate.models.prompts import render_text

Slice = Literal["tokenizer", "min"]
DROPPED_WARN: Final = 1e-6
DROPPED_FAIL: Final = 1e-2
_PROBE: Final = ({"role": "user", "content": "How many legs has a spider?"},)


class VocabularyMismatchError(ValueError):
    """Teacher and student do not speak about the same tokens; names the first difference."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens on which two models are compared.

    Attributes:
        size: Effective vocabulary: both laws are cut to ids below it, then renormalised.
        stop_ids: Union of both models' terminators.
        dropped_rows: Rows of logits that the cut leaves out, by role.
        warnings: What a user should know, one sentence each.
    """

    size: int
    stop_ids: tuple[int, ...]
    dropped_rows: Mapping[str, int]
    warnings: tuple[str, ...] = ()

    def of(self, model: LanguageModel) -> LanguageModel:
        """The model with this vocabulary and this stop set, for sampling and scoring."""
        return dataclasses.replace(model, vocab_size=self.size, stop_ids=self.stop_ids)


def align(
    student: LanguageModel,
    teacher: LanguageModel,
    *,
    slice: Slice = "tokenizer",  # noqa: A002 - the field's own name
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Vocabulary:
    """Check that both models mean the same by every token, and say where to cut the logits.

    Args:
        student: The model to train.
        teacher: The model to learn from.
        slice: "tokenizer" cuts at the tokenizer's length; "min" at the smaller number of logits,
            which keeps rows that were never trained.
        chat_template_kwargs: Passed to both chat templates.

    Raises:
        VocabularyMismatchError: An id stands for different strings, one tokenizer has more ids, or
            the chat templates render a prompt differently.
    """
    _same_tokens(student, teacher)
    _same_rendering(student, teacher, chat_template_kwargs)
    rows = {"student": _rows(student), "teacher": _rows(teacher)}
    size = len(student.tokenizer) if slice == "tokenizer" else min(rows.values())
    return Vocabulary(
        size=size,
        stop_ids=tuple(sorted({*student.stop_ids, *teacher.stop_ids})),
        dropped_rows={role: count - size for role, count in rows.items()},
        warnings=_stop_warnings(student, teacher),
    )


def _rows(model: LanguageModel) -> int:
    return head_weight(model.module).shape[0]


def _same_tokens(student: LanguageModel, teacher: LanguageModel) -> None:
    ours, theirs = _strings(student.tokenizer), _strings(teacher.tokenizer)
    if ours == theirs:
        return
    first = next(
        index
        for index in range(max(len(ours), len(theirs)))
        if ours[index : index + 1] != theirs[index : index + 1]
    )
    raise VocabularyMismatchError(
        f"the tokenizers differ at id {first}: it is {_shown(ours, first)} for the student "
        f"({student.source}) and {_shown(theirs, first)} for the teacher ({teacher.source}). "
        "Token divergences need one tokenizer: take student and teacher from the same family"
    )


def _strings(tokenizer: PreTrainedTokenizerBase) -> list[str | None]:
    return list(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))))


def _shown(strings: Sequence[str | None], index: int) -> str:
    return repr(strings[index]) if index < len(strings) else "no token"


def _same_rendering(
    student: LanguageModel, teacher: LanguageModel, kwargs: Mapping[str, Any] | None
) -> None:
    ours = render_text(student.tokenizer, _PROBE, kwargs)
    theirs = render_text(teacher.tokenizer, _PROBE, kwargs)
    if ours == theirs:
        return
    raise VocabularyMismatchError(
        f"the chat templates differ: one prompt becomes {ours!r} for the student "
        f"({student.source}) and {theirs!r} for the teacher ({teacher.source}). Copy one chat "
        "template to both tokenizers, or pin its options with models.chat_template_kwargs"
    )


def _stop_warnings(student: LanguageModel, teacher: LanguageModel) -> tuple[str, ...]:
    names = {"student": student, "teacher": teacher}
    pairs = (("teacher", "student"), ("student", "teacher"))
    lines: list[str] = []
    for role, other in pairs:
        foreign = sorted(set(names[role].stop_ids) - set(names[other].stop_ids))
        if foreign:
            lines.append(
                f"the {role} stops at {foreign}, which the {other}'s own configuration does not "
                "name: completions stop at the tokens of both"
            )
    return tuple(lines)


# ---------------------------------------------------------------- mass that the cut drops


def dropped_mass(logits: Float[Tensor, "*batch vocab"], vocab_size: int) -> Float[Tensor, "*batch"]:
    """Probability beyond the effective vocabulary, at temperature 1, before renormalisation."""
    laws = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
    return laws[..., vocab_size:].sum(-1)


def measure_dropped_mass(model: LanguageModel, prompts: Sequence[Sequence[int]]) -> float:
    """Mean mass beyond the effective vocabulary over all positions of some prompts."""
    head = head_weight(model.module)
    if head.shape[0] <= model.vocab_size:
        return 0.0
    masses: list[Tensor] = []
    with torch.inference_mode(), evaluating(model.module):
        for prompt in prompts:
            ids = torch.tensor([list(prompt)], device=model.device)
            hidden = backbone(model.module)(input_ids=ids, use_cache=False).last_hidden_state[0]
            masses.append(dropped_mass(nn.functional.linear(hidden, head), model.vocab_size))
    return float(torch.cat(masses).double().mean())


def check_dropped_mass(mass: float, *, source: str) -> str | None:
    """A warning above 1e-6, an error above 1e-2.

    Args:
        mass: Mean probability beyond the effective vocabulary.
        source: Which model, for the message.

    Raises:
        VocabularyMismatchError: So much mass is cut off that the law becomes another one.
    """
    if mass > DROPPED_FAIL:
        raise VocabularyMismatchError(
            f"{source} puts {mass:.3g} of its probability on ids beyond the tokenizer, more than "
            f"{DROPPED_FAIL:g}. Use the tokenizer it was trained with, or models.vocabulary: min"
        )
    if mass > DROPPED_WARN:
        return f"{source} loses {mass:.3g} of its probability by the cut to the tokenizer's ids"
    return None
