"""All solutions of a Countdown problem: the ground truth of coverage and diversity.

Exhaustive over pairs and operators, about four thousand chains for four operands (milliseconds)
and a hundred times more for five. Division must be exact, as in the verifier.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fractionate.tasks.countdown.canonical import Node, form_of_steps, freeze, join
from fractionate.tasks.countdown.verifier import Step, combine


@dataclass(frozen=True)
class Solutions:
    """The solutions of one problem.

    Attributes:
        by_form: The distinct solutions: canonical form to the chain answers that express it.
        n_chains: Chains up to the order of the two operands of an equation; equal operands at
            different places of the pool count apart, so it can exceed the distinct texts.
        readable_forms: The forms that `canonical_form` can read off some chain. An intermediate
            that equals a given number hides the others: (6-2)*7-4 over 2, 4, 6, 7 is written
            `6-2=4,4*7=28,28-4=24`, which reads as 4*7-(6-2). Recall over samples can reach one
            over these forms only.
    """

    by_form: Mapping[Hashable, tuple[str, ...]]
    n_chains: int
    readable_forms: frozenset[Hashable]

    @property
    def forms(self) -> frozenset[Hashable]:
        """The distinct solutions as canonical forms of their expression trees."""
        return frozenset(self.by_form)

    @property
    def chains(self) -> tuple[str, ...]:
        """The distinct chain answers, sorted."""
        return tuple(sorted({chain for chains in self.by_form.values() for chain in chains}))


def solve(
    operands: Sequence[int],
    target: int,
    *,
    allow_negative: bool = True,
    merge_identity: bool = False,
) -> Solutions:
    """Find every solution of a problem.

    Args:
        operands: The given numbers.
        target: The number to reach.
        allow_negative: Whether results below one are admitted on the way, as the verifier does.
        merge_identity: As in `canonical_form`.

    Returns:
        The solutions; none at all where the target cannot be reached.
    """
    by_form: dict[Hashable, set[str]] = {}
    readable: set[Hashable] = set()
    n_chains = 0
    pool = tuple(Node(value) for value in operands)
    for steps, root in _chains(pool, target, allow_negative=allow_negative):
        n_chains += 1
        form = freeze(root, merge_identity=merge_identity)
        by_form.setdefault(form, set()).add(",".join(map(str, steps)))
        readable.add(form_of_steps(steps, operands, merge_identity=merge_identity))
    chains = {form: tuple(sorted(texts)) for form, texts in by_form.items()}
    return Solutions(chains, n_chains, frozenset(readable))


def admissible(left: int, right: int, *, allow_negative: bool) -> Iterator[Step]:
    """The equations that this ordered pair admits; results below one only if allowed."""
    for operator in "+-*/":
        value = combine(left, operator, right)
        if value is not None and (allow_negative or value >= 1):
            yield Step(left, operator, right, value)


def _joined(left: Node, right: Node, *, allow_negative: bool) -> Iterator[tuple[Step, Node]]:
    """The results of a pair in either order, the commuting operators once."""
    for step in admissible(left.value, right.value, allow_negative=allow_negative):
        yield step, join(left, right, step)
    for step in admissible(right.value, left.value, allow_negative=allow_negative):
        if step.operator in "-/":
            yield step, join(right, left, step)


def _chains(
    pool: tuple[Node, ...], target: int, *, allow_negative: bool
) -> Iterator[tuple[list[Step], Node]]:
    """Chains from the pool to the target, with the expression that each one builds."""
    if len(pool) == 1:
        if pool[0].value == target:
            yield [], pool[0]
        return
    for i, left in enumerate(pool):
        for j in range(i + 1, len(pool)):
            rest = pool[:i] + pool[i + 1 : j] + pool[j + 1 :]
            for step, node in _joined(left, pool[j], allow_negative=allow_negative):
                for later, root in _chains((*rest, node), target, allow_negative=allow_negative):
                    yield [step, *later], root
