"""Batches for pre-training in the sandbox: examples drawn from a stream and packed into rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import numpy as np
import torch

from fractionate.tasks.sandbox import skills
from fractionate.tasks.sandbox.components import component, countdown_prompt, whole_trace
from fractionate.tasks.sandbox.pool import pool
from fractionate.tasks.sandbox.traces import (
    DIALECT_INSTRUCTION,
    Order,
    Response,
    in_dialect,
    trace,
    weak_trace,
)
from fractionate.tasks.sandbox.vocabulary import BOS_ID, EOS, ID, PAD_ID, SKILL_TAGS
from fractionate.teachers.sandbox_recipes import Mix

SKILL_WEIGHT = 2.0
OP_WEIGHT = 3.0
OP_END_WEIGHT = 0.3
_SKILLS = tuple(tag for tag in SKILL_TAGS if tag != "op")
_MASKED = -1e30

Example = tuple[list[str], Response]


@dataclass(frozen=True)
class Packed:
    """A batch of packed rows.

    Attributes:
        tokens: [rows, length].
        positions: [rows, length], from 0 in every example.
        weights: [rows, length], weight of each token as a target; 0 for prompts and padding.
        mask: [rows, 1, length, length], additive: causal and within one example.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    weights: torch.Tensor
    mask: torch.Tensor


class _Draws:
    """Training problems of one size, drawn as a random reduction path would."""

    def __init__(self, operands: int) -> None:
        problems = pool(operands)
        rows = problems.rows("train")
        self.numbers = problems.numbers[rows]
        self.targets = problems.targets[rows]
        self.cumulated = np.cumsum(problems.weights[rows])

    def draw(self, generator: np.random.Generator) -> tuple[tuple[int, ...], int]:
        place = generator.random() * self.cumulated[-1]
        row = int(np.searchsorted(self.cumulated, place, side="right"))
        numbers = generator.permutation(self.numbers[row]).tolist()
        return tuple(numbers), int(self.targets[row])


_DRAWS: dict[int, _Draws] = {}


def _problem(operands: int, generator: np.random.Generator) -> tuple[tuple[int, ...], int]:
    if operands not in _DRAWS:
        _DRAWS[operands] = _Draws(operands)
    return _DRAWS[operands].draw(generator)


def _skill(name: str, generator: np.random.Generator) -> Example:
    question, answer = skills.draw(name, generator)
    weight, end = (OP_WEIGHT, OP_END_WEIGHT) if name == "op" else (SKILL_WEIGHT, 1.0)
    return question, Response([*answer, EOS], [weight] * len(answer) + [end])


def _any_skill(generator: np.random.Generator, order: Order) -> Example:  # noqa: ARG001 - one family
    return _skill(_SKILLS[int(generator.random() * len(_SKILLS))], generator)


def _op(generator: np.random.Generator, order: Order) -> Example:  # noqa: ARG001 - one family
    return _skill("op", generator)


def _three(generator: np.random.Generator, order: Order) -> Example:
    problem = _problem(3, generator)
    return countdown_prompt(*problem), trace(*problem, order, generator)


def _four(generator: np.random.Generator, order: Order) -> Example:
    problem = _problem(4, generator)
    return countdown_prompt(*problem), trace(*problem, order, generator)


def _weak(generator: np.random.Generator, order: Order) -> Example:  # noqa: ARG001 - one family
    problem = _problem(3, generator)
    return countdown_prompt(*problem), weak_trace(*problem, generator)


def _whole(generator: np.random.Generator, order: Order) -> Example:  # noqa: ARG001 - one family
    return whole_trace(*_problem(3, generator), generator)


def _part(generator: np.random.Generator, order: Order) -> Example:  # noqa: ARG001 - one family
    return component(*_problem(3, generator), generator)


def _dialect(generator: np.random.Generator, order: Order) -> Example:
    problem = _problem(3, generator)
    asked = [*countdown_prompt(*problem), *DIALECT_INSTRUCTION.split()]
    return asked, in_dialect(trace(*problem, order, generator))


SOURCES: Mapping[str, Callable[[np.random.Generator, Order], Example]] = {
    "skills": _any_skill,
    "op": _op,
    "three": _three,
    "four": _four,
    "weak": _weak,
    "whole": _whole,
    "parts": _part,
    "dialect": _dialect,
}
"""One source of examples per field of `Mix`."""


def example(mix: Mix, order: Order, generator: np.random.Generator) -> Example:
    """One example: the words of a prompt and a weighted response."""
    place = generator.random()
    for share in fields(mix):
        place -= getattr(mix, share.name)
        if place < 0:
            return SOURCES[share.name](generator, order)
    return SOURCES["skills"](generator, order)


def packed_batch(
    mix: Mix, order: Order, rows: int, length: int, generator: np.random.Generator
) -> Packed:
    """Rows filled with whole examples, drawn in turn until the next one does not fit in the last.

    An example longer than a row is cut to it.
    """
    tokens = np.full((rows, length), PAD_ID, dtype=np.int64)
    positions = np.zeros((rows, length), dtype=np.int64)
    weights = np.zeros((rows, length), dtype=np.float32)
    segments = np.zeros((rows, length), dtype=np.int64)
    row, filled, segment = 0, 0, 0
    while True:
        prompt, response = example(mix, order, generator)
        ids = [BOS_ID, *(ID[word] for word in (*prompt, *response.words))][:length]
        if filled + len(ids) > length:
            row, filled, segment = row + 1, 0, 0
            if row == rows:
                break
        place = slice(filled, filled + len(ids))
        segment += 1
        tokens[row, place] = ids
        positions[row, place] = np.arange(len(ids))
        weights[row, place] = ([0.0] * (1 + len(prompt)) + response.weights)[:length]
        segments[row, place] = segment
        filled += len(ids)
    mask = _mask(torch.from_numpy(segments))
    return Packed(
        torch.from_numpy(tokens), torch.from_numpy(positions), torch.from_numpy(weights), mask
    )


def _mask(segments: torch.Tensor) -> torch.Tensor:
    same = segments[:, :, None] == segments[:, None, :]
    allowed = torch.tril(same)
    return torch.zeros(allowed.shape).masked_fill_(~allowed, _MASKED)[:, None]
