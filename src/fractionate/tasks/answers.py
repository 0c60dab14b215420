"""Where the answer stands in a completion: tags, not guesses.

Most tasks ask for the working in `<think>` and the answer in `<answer>` tags, mathematics for the
answer in a box. What is inside an unfinished thought is not an answer, however right it looks.
"""

import re

_THINK, _THINK_END = "<think>", "</think>"
_ANSWER, _ANSWER_END = "<answer>", "</answer>"
_BOXED = re.compile(r"\\boxed\s*\{")


def extract_answer(text: str) -> str | None:
    """The content of the last complete answer block outside the thinking, stripped.

    If `</think>` occurs, only what follows its last occurrence counts, up to a thought that is
    opened again and never closed; `<think>` without any `</think>` means that no answer was given.
    A block is complete if both its tags are there; a tag pair with nothing inside gives "". Linear
    in the length of the text; never raises on text.

    Args:
        text: A completion.

    Returns:
        The content without outer white space, or None where there is no complete block.
    """
    _, closed, tail = text.rpartition(_THINK_END)
    visible, reopened, _ = tail.partition(_THINK)
    if reopened and not closed:
        return None
    last_end = visible.rfind(_ANSWER_END)
    start = visible.rfind(_ANSWER, 0, max(last_end, 0))
    if start < 0:
        return None
    start += len(_ANSWER)
    return visible[start : visible.index(_ANSWER_END, start)].strip()


def outside_thought(text: str) -> str | None:
    """What follows the last finished thought, up to one that is opened again and never closed.

    None where a thought was opened and none was ever closed.
    """
    _, closed, visible = text.rpartition(_THINK_END)
    before, opened, _ = visible.partition(_THINK)
    return None if opened and not closed else before


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{}` whose braces close, in one pass."""
    starts = {match.end() for match in _BOXED.finditer(text)}
    opened: list[int] = []
    last: tuple[int, int] | None = None
    for index, letter in enumerate(text if starts else ""):
        if letter == "{":
            opened.append(index + 1)
        elif letter == "}" and opened:
            start = opened.pop()
            if start in starts and (last is None or start > last[0]):
                last = (start, index)
    return text[slice(*last)] if last else None
