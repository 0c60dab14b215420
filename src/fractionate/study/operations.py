"""Tokens, operations and bytes: the units in which a plan estimates and a run counts.

Floating-point operations count a multiplication and an addition as two. A token that goes forward
costs two operations for every parameter of the blocks and 4 * layers * heads * head_dim for every
token it attends to; where its next-token law is wanted, two more for every parameter of the head.
The backward pass costs twice the forward pass.
"""

from dataclasses import dataclass

from fractionate.study.dimensions import Dimensions

BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class TokenCounts:
    """Tokens of a stage.

    Attributes:
        generated: Decoded.
        scored: Completion tokens that the teacher scored.
        trained: Tokens in the loss.
        prompts: Prompt tokens that went forward before generating; scoring and training take as
            many again where they happen.
    """

    generated: int = 0
    scored: int = 0
    trained: int = 0
    prompts: int = 0

    def __add__(self, other: "TokenCounts") -> "TokenCounts":
        return TokenCounts(
            self.generated + other.generated,
            self.scored + other.scored,
            self.trained + other.trained,
            self.prompts + other.prompts,
        )


def forward_flops(model: Dimensions, tokens: float, *, context: float, laws: float) -> float:
    """Operations of a forward pass.

    Args:
        model: The model.
        tokens: Tokens that go through the blocks.
        context: Tokens that each of them attends to, on average.
        laws: How many of them get a next-token law.
    """
    attention = 4.0 * model.layers * model.heads * model.head_dim * context
    return tokens * (2.0 * model.block_parameters + attention) + laws * 2.0 * model.head_parameters


def flops_of(
    tokens: TokenCounts,
    *,
    student: Dimensions,
    teacher: Dimensions,
    writer: Dimensions,
    context: float,
    recomputed: bool = False,
) -> float:
    """Operations of distillation steps, from their token counts.

    Args:
        tokens: What was generated, scored and trained.
        student: Trained: forward and backward, three times the forward pass.
        teacher: Scores.
        writer: Generates.
        context: Tokens that a completion token attends to, on average.
        recomputed: Whether the student's layers run again in the backward pass.
    """

    def one_pass(model: Dimensions, completion: int) -> float:
        prompts = tokens.prompts if completion else 0
        return forward_flops(model, completion + prompts, context=context, laws=completion)

    laws = tokens.trained * 2.0 * student.head_parameters
    return (
        one_pass(writer, tokens.generated)
        + one_pass(teacher, tokens.scored)
        + 3.0 * one_pass(student, tokens.trained)
        + recomputed * (one_pass(student, tokens.trained) - laws)
    )


@dataclass(frozen=True)
class StageCost:
    """An estimate for one stage.

    Attributes:
        key: Key of the stage.
        kind: Its kind.
        tokens: At most.
        flops: Floating-point operations, at most; 0 where a model's size is unknown.
        memory: Peak bytes of weights, gradients, optimizer, cache and activations.
        disk: Bytes that stay, at most.
        scratch: Bytes of disk needed while it runs, at most.
    """

    key: str
    kind: str
    tokens: TokenCounts = TokenCounts()
    flops: float = 0.0
    memory: float = 0.0
    disk: float = 0.0
    scratch: float = 0.0


@dataclass(frozen=True)
class Models:
    """The models behind a stage; one whose size is unknown has none.

    Attributes:
        student: Sizes of the student.
        teacher: Sizes of the teacher.
        teacher_bytes: Bytes of one of the teacher's weights.
        states_stored: Whether the stage reads the teacher's hidden states instead of scoring.
    """

    student: Dimensions | None
    teacher: Dimensions | None
    teacher_bytes: int
    states_stored: bool = False
