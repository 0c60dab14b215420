"""Conditioning of the teacher: what it sees besides the prompt, in its own context only.

The student never sees it; completion tokens are appended to each model's own prompt, so both laws
are compared at the same completion position (methods: arXiv 2609.35259, the style-transfer arm).
"""

from collections.abc import Mapping, Sequence

from fractionate.config import TeacherContext

Message = Mapping[str, str]


def teacher_messages(
    messages: Sequence[Message], context: TeacherContext | None, *, demonstration: str | None = None
) -> tuple[Message, ...]:
    """The messages that the teacher sees: a worked example and an instruction, where asked for.

    Both go into the last user message, the instruction at its very end; the system turn stays.

    Args:
        messages: The plain prompt.
        context: What to add; none adds nothing.
        demonstration: A correct solution of this very problem.

    Raises:
        ValueError: There is no user message, or the context wants a demonstration and none is
            given.
    """
    if context is None or not (context.demonstration or context.instruction):
        return tuple(messages)
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    if not users:
        raise ValueError("models.teacher_context needs a user message to extend; there is none")
    parts = [messages[users[-1]]["content"]]
    if context.demonstration:
        if demonstration is None:
            raise ValueError(
                "models.teacher_context.demonstration is true, but the task gives no worked "
                "solution for a problem. Set it to false, or name task.completion"
            )
        parts.append(f"Here is an example of a good response to this problem:\n{demonstration}")
        parts.append(
            "Now give your own complete response to the problem, with all of your reasoning."
        )
    if context.instruction:
        parts.append(context.instruction)
    extended = {**messages[users[-1]], "content": "\n\n".join(parts)}
    return (*messages[: users[-1]], extended, *messages[users[-1] + 1 :])
