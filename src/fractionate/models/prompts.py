"""From chat messages to the token ids that a model sees."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

Messages = Sequence[Mapping[str, str]]
_MARK = "ANSWERMARK"
_SHOWN = 12  # tokens of a rendering in a message
_DAYS = ("26 Jul 2024", "27 Jul 2024")


class PromptTooLongError(ValueError):
    """A prompt longer than the limit; nothing is ever cut silently."""


def render_text(
    tokenizer: PreTrainedTokenizerBase,
    messages: Messages,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> str:
    """The prompt as text, generation prompt included.

    A tokenizer without a chat template gets the contents of the messages, a blank line between
    them and a line break at the end.
    """
    if not tokenizer.chat_template:
        return "\n\n".join(message["content"] for message in messages) + "\n"
    conversation = [dict(message) for message in messages]
    return str(
        tokenizer.apply_chat_template(
            conversation,
            add_generation_prompt=True,
            tokenize=False,
            **(chat_template_kwargs or {}),
        )
    )


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Messages,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """The prompt as token ids, with one BOS at most.

    A chat template decides itself whether there is a BOS; without one, the tokenizer's own special
    tokens are added, an EOS at the end left out. A doubled BOS at the start becomes one.

    Raises:
        ValueError: The prompt has no token.
    """
    text = render_text(tokenizer, messages, chat_template_kwargs)
    special = not tokenizer.chat_template
    ids = [int(index) for index in tokenizer(text, add_special_tokens=special)["input_ids"]]
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    while special and len(ids) > 1 and ids[-1] == eos:
        ids.pop()
    while bos is not None and ids[:2] == [bos, bos]:
        ids.pop(0)
    if not ids:
        raise ValueError("a prompt has no token: give its messages some content")
    return ids


def check_same_prompts(
    student: PreTrainedTokenizerBase,
    teacher: PreTrainedTokenizerBase,
    prompts: Sequence[Messages],
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Refuse a pair whose chat templates turn one of some prompts into different tokens.

    Raises:
        ValueError: Both models get the student's rendering, so the teacher would be asked in a form
            that it was not trained on; shows where the renderings part.
    """
    for messages in prompts:
        ours = render(student, messages, chat_template_kwargs)
        theirs = render(teacher, messages, chat_template_kwargs)
        if ours == theirs:
            continue
        shorter = min(len(ours), len(theirs))
        at = next((i for i in range(shorter) if ours[i] != theirs[i]), shorter)
        seen = [
            repr(str(tokenizer.decode(ids[at : at + _SHOWN])))
            for tokenizer, ids in ((student, ours), (teacher, theirs))
        ]
        raise ValueError(
            f"the chat templates of student and teacher differ from token {at} of a prompt on: "
            f"{seen[0]} for the student, {seen[1]} for the teacher. Pin what differs with "
            "models.chat_template_kwargs (e.g. date_string, enable_thinking), or copy one chat "
            "template to both tokenizers"
        )


def template_warnings(
    tokenizer: PreTrainedTokenizerBase,
    messages: Messages,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> tuple[str, ...]:
    """What a user should know of a chat template, one sentence each.

    Args:
        tokenizer: Whose template.
        messages: A prompt of the task.
        chat_template_kwargs: Passed to the template.
    """
    kwargs = dict(chat_template_kwargs or {})
    template = str(kwargs.pop("chat_template", None) or tokenizer.chat_template or "")
    if not template:
        return ()
    lines = [
        f"models.chat_template_kwargs.{name} is not read by the chat template: correct its name, "
        "or remove it"
        for name in kwargs
        if not re.search(rf"\b{re.escape(name)}\b", template)
    ]
    days = [
        render_text(
            tokenizer,
            messages,
            {**kwargs, "chat_template": re.sub(r"strftime_now\([^)]*\)", f"'{day}'", template)},
        )
        for day in _DAYS
    ]
    if days[0] != days[1]:
        lines.append(
            "the chat template writes today's date into the prompt, so that the same study asks "
            "something else tomorrow: pin it, e.g. models.chat_template_kwargs: "
            f"{{date_string: {_DAYS[0]}}}"
        )
    return tuple(lines)


def check_length(ids: Sequence[int], limit: int, *, field: str, key: str) -> None:
    """Refuse a prompt over the limit, before anything is generated.

    Args:
        ids: The prompt.
        limit: Tokens allowed.
        field: Configuration field that holds the limit, e.g. "lengths.prompt".
        key: Identity of the problem.

    Raises:
        PromptTooLongError: Naming the problem, its length and the field.
    """
    if len(ids) > limit:
        raise PromptTooLongError(
            f"problem '{key}' has a prompt of {len(ids)} tokens, {field} allows {limit}. "
            f"Raise {field}, or leave the problem out"
        )


def terminator(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The token that ends an answer: the chat template's, else the tokenizer's EOS, else none.

    Base and instruct models of one family may stop at different tokens; the template shows which
    one follows an answer.
    """
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _MARK}]
        text = str(tokenizer.apply_chat_template(turns, tokenize=False))
        _, found, tail = text.rpartition(_MARK)
        ids = tokenizer(tail, add_special_tokens=False)["input_ids"] if found and tail else []
        special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
        if len(ids) and ids[0] in special:
            return int(ids[0])
    eos: Any = tokenizer.eos_token_id
    return None if eos is None else int(eos)
