"""Where the answer stands in a completion: tags, not guesses.

Both task families ask for the working in `<think>` and the answer in `<answer>` tags. What is
inside an unfinished thought is not an answer, however right it looks.
"""

_THINK, _THINK_END = "<think>", "</think>"
_ANSWER, _ANSWER_END = "<answer>", "</answer>"


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
