"""The 128 words of the sandbox: every number is one token whose identity is its value."""

from collections.abc import Iterable
from typing import Final

LARGEST: Final = 89
"""Largest number of the world; every arithmetic value lies in 0 ... LARGEST."""

NUMBERS: Final = tuple(str(number) for number in range(LARGEST + 1))
OPERATORS: Final = ("+", "-", "*", "/")
NO_OPERATOR: Final = "x"
PUNCTUATION: Final = ("=", ",", ":", NO_OPERATOR, "<", ">")
SECTIONS: Final = ("<think>", "</think>", "<answer>", "</answer>")
BOS: Final = "<bos>"
EOS: Final = "<eos>"
PAD: Final = "<pad>"
SPECIAL: Final = (BOS, EOS, PAD)

COUNTDOWN_TAG: Final = "cd"
SKILL_TAGS: Final = (
    "add",
    "sub",
    "mul",
    "div",
    "cmp",
    "sort",
    "reverse",
    "copy",
    "parity",
    "max",
    "min",
    "successor",
    "op",
    "rest",
)
COMPONENT_TAGS: Final = ("trace", "verdict", "line", "answer", "pair", "next")
"""Tags under which a student may know parts of Countdown: whole traces, then the five parts."""

TOKENS: Final = (
    *NUMBERS,
    *OPERATORS,
    *PUNCTUATION,
    *SECTIONS,
    *SPECIAL,
    COUNTDOWN_TAG,
    *SKILL_TAGS,
    *COMPONENT_TAGS,
)
"""All tokens; the position is the id, and for a number the id is its value."""

QWEN_TOKENS: Final = (
    PAD,
    EOS,
    BOS,
    *SECTIONS,
    *COMPONENT_TAGS,
    *SKILL_TAGS,
    COUNTDOWN_TAG,
    *PUNCTUATION,
    *OPERATORS,
    *reversed(NUMBERS),
)
"""The same words in the order of the second family's ids."""

ID: Final = {token: index for index, token in enumerate(TOKENS)}
BOS_ID: Final = ID[BOS]
EOS_ID: Final = ID[EOS]
PAD_ID: Final = ID[PAD]


def encode(words: Iterable[str]) -> list[int]:
    """Token ids of words.

    Raises:
        ValueError: A word is not one of the sandbox's tokens.
    """
    try:
        return [ID[word] for word in words]
    except KeyError as error:
        message = f"{error.args[0]!r} is not a word of the sandbox; its {len(TOKENS)} words are "
        raise ValueError(message + "listed in fractionate.tasks.sandbox.vocabulary") from error


def decode(ids: Iterable[int]) -> str:
    """The text of token ids, words separated by one space, special tokens left out."""
    return " ".join(TOKENS[index] for index in ids if TOKENS[index] not in SPECIAL)
