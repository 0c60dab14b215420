"""When two chains are the same solution: the canonical form of their expression tree.

A difference is a sum with a sign of −1, a quotient a product with an exponent of −1; nested sums
and nested products are flattened and their terms sorted. What differs only by commuting or
re-associating becomes equal, what uses other intermediate results does not.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from fractionate.tasks.countdown.verifier import Step, reduce_chain

_FAMILY = {"+": ("+", 1), "-": ("+", -1), "*": ("*", 1), "/": ("*", -1)}
_NEUTRAL = {"+": 0, "*": 1}


@dataclass(frozen=True)
class Node:
    """An expression: a given number (no terms), or a flat sum or product of signed nodes.

    Attributes:
        value: The exact integer it amounts to.
        family: "n" for a given number, "+" for a sum, "*" for a product.
        terms: Signs (exponents in a product) and nodes, unsorted.
    """

    value: int
    family: str = "n"
    terms: "tuple[tuple[int, Node], ...]" = ()


def join(left: Node, right: Node, step: Step) -> Node:
    """The expression that a step makes of its two operands."""
    family, sign = _FAMILY[step.operator]
    terms = _as_terms(left, family, 1) + _as_terms(right, family, sign)
    return Node(step.value, family, terms)


def _as_terms(node: Node, family: str, sign: int) -> tuple[tuple[int, Node], ...]:
    if node.family != family:
        return ((sign, node),)
    return tuple((sign * inner, child) for inner, child in node.terms)


def freeze(node: Node, *, merge_identity: bool = False) -> tuple[Any, ...]:
    """The canonical form of an expression, as `canonical_form` returns it."""
    if node.family == "n":
        return ("n", node.value)
    neutral = _NEUTRAL[node.family] if merge_identity else None
    terms = [
        (1 if child.value == neutral else sign, freeze(child, merge_identity=merge_identity))
        for sign, child in node.terms
    ]
    return (node.family, tuple(sorted(terms)))


def canonical_form(
    answer: str | None, operands: Sequence[int], *, merge_identity: bool = False
) -> Hashable:
    """The canonical form of a chain: equal for two chains iff they are the same solution.

    Where a value is there twice, a given number and an intermediate, the earliest created one is
    meant, given numbers first.

    Args:
        answer: A chain of equations that uses every operand; the target plays no part.
        operands: The given numbers.
        merge_identity: Also take multiplying and dividing by one for the same, and adding and
            subtracting zero.

    Returns:
        Nested tuples: `("n", value)`, or `("+" | "*", ((sign, form), ...))` with sorted terms.

    Raises:
        ValueError: There is no answer, or it is not a valid chain over these operands.
    """
    if answer is None:
        msg = "answer is None: an output without an answer block has no canonical form"
        raise ValueError(msg)
    reduction = reduce_chain(answer, operands)
    if reduction.reason != "ok":
        msg = f"answer {answer[:80]!r} is no valid chain over {list(operands)}: {reduction.reason}"
        raise ValueError(msg)
    return form_of_steps(reduction.steps, operands, merge_identity=merge_identity)


def form_of_steps(
    steps: Sequence[Step], operands: Sequence[int], *, merge_identity: bool = False
) -> Hashable:
    """As `canonical_form`, of steps that are known to be a valid chain over the operands."""
    pool = [Node(value) for value in operands]
    for step in steps:
        left, right = _take(pool, step.left), _take(pool, step.right)
        pool.append(join(left, right, step))
    return freeze(pool[0], merge_identity=merge_identity)


def _take(pool: list[Node], value: int) -> Node:
    """Remove the earliest created node of this value; the pool is in the order of creation."""
    return pool.pop(next(index for index, node in enumerate(pool) if node.value == value))
