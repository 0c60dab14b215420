"""Multiple choice: one letter in the answer block (Science with four options, MedReason with m)."""

import re
import string

from fractionate.tasks.answers import extract_answer

_STRICT = re.compile(r"([A-Za-z])[.):]?|\(([A-Za-z])\)")
_LENIENT = re.compile(r"(?:([A-Za-z])[.):]|\(([A-Za-z])\)[.:]?)\s+\S.*", re.DOTALL)


def extract_choice(text: str, n_options: int, *, lenient: bool = False) -> str | None:
    """The option that a completion chooses.

    The answer block is found as for Countdown; asterisks and outer white space are dropped. What
    is left must be exactly one letter of any case, optionally in parentheses or followed by one of
    `. ) :`, and among the first `n_options` letters. Never raises on text.

    Args:
        text: A completion.
        n_options: Number of options, 1 to 26.
        lenient: Also accept the letter followed by the option's text, "B. text"; a diagnostic,
            accuracy and rewards take the strict reading.

    Returns:
        The upper-case letter, or None where the answer cannot be read and so counts as wrong.

    Raises:
        ValueError: The number of options has no letters.
    """
    if not 1 <= n_options <= len(string.ascii_uppercase):
        msg = f"n_options must be between 1 and 26, not {n_options}"
        raise ValueError(msg)
    block = extract_answer(text)
    if block is None:
        return None
    answer = block.replace("*", "").strip()
    match = _STRICT.fullmatch(answer)
    if match is None and lenient:
        match = _LENIENT.fullmatch(answer)
    if match is None:
        return None
    letter = (match[1] or match[2]).upper()
    return letter if letter in string.ascii_uppercase[:n_options] else None
