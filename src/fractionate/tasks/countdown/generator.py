"""Countdown problems: drawn by random play, or listed where few are left.

The small tasks have few problems (three operands of `V16` allow 816 multisets and 13,560 pairs of
multiset and positive target), so problems are unique by key and the caller's `exclude` keeps
splits apart. Random play is the generator of the study (arXiv 2609.35259); only when it stops
finding new keys are the remaining ones listed exhaustively.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, combinations_with_replacement
from numbers import Integral

import numpy as np

from fractionate.rng import stream
from fractionate.tasks.countdown.solver import admissible
from fractionate.tasks.countdown.verifier import OPERATORS, Step, combine

V16 = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 50, 75)
"""The numbers of the study's Countdown tasks."""

Key = tuple[tuple[int, ...], int]
"""Identity of a problem: sorted operands and target."""

_STALL = 300
"""Failed draws in a row after which the keys that are left are listed, up to four operands."""

_LISTABLE = 4
"""Operands up to which all keys are listed (seconds at most), not only as many as are needed."""


@dataclass(frozen=True)
class CountdownProblem:
    """One problem with the proof that it can be solved.

    Attributes:
        operands: The given numbers in the order in which they are shown.
        target: The number to reach.
        witness: A chain answer that reaches it.
        key: Sorted operands and target; unique among the problems of one call.
    """

    operands: tuple[int, ...]
    target: int
    witness: str
    key: Key


@dataclass(frozen=True)
class KeySpace:
    """Which problems are admitted; the fields are the arguments of `generate`.

    Attributes:
        n_operands: Given numbers per problem.
        numbers: What operands are drawn from.
        low: Lowest target.
        high: Highest target.
        replacement: Whether one number may be drawn twice.
        allow_negative: Whether results below one are admitted.
        target_may_be_given: Whether the target may be one of the operands.
    """

    n_operands: int
    numbers: tuple[int, ...]
    low: float = 1
    high: float = math.inf
    replacement: bool = True
    allow_negative: bool = False
    target_may_be_given: bool = True

    def admits(self, operands: Sequence[int], target: int) -> bool:
        """Whether this target is allowed for these operands, reachable or not."""
        given = not self.target_may_be_given and target in operands
        return self.low <= target <= self.high and not given

    def multisets(self) -> list[tuple[int, ...]]:
        """All sorted tuples of operands that can be drawn."""
        if self.replacement:
            ordered = sorted(set(self.numbers))
            return list(combinations_with_replacement(ordered, self.n_operands))
        return sorted(set(combinations(sorted(self.numbers), self.n_operands)))

    def targets(self, multiset: tuple[int, ...]) -> list[int]:
        """All allowed targets that the multiset reaches, sorted."""
        reached = reachable(multiset, allow_negative=self.allow_negative)
        return sorted(value for value in reached if self.admits(multiset, value))


def generate(  # noqa: PLR0913 - the contract of the task: one argument per field of its config
    n_operands: int,
    n_problems: int,
    *,
    seed: int,
    numbers: Sequence[int] = V16,
    targets: tuple[int | None, int | None] = (1, None),
    replacement: bool = True,
    allow_negative: bool = False,
    target_may_be_given: bool = True,
    exclude: Iterable[Key] = (),
) -> list[CountdownProblem]:
    """Draw solvable problems with unique keys; a pure function of its arguments.

    Operands are drawn from `numbers`, then random admissible equations are played until one number
    is left, which is the target if it is in range. A shorter list is a prefix of a longer one.

    Args:
        n_operands: Given numbers per problem, at least 2.
        n_problems: How many problems.
        seed: The seed; two seeds give different, possibly overlapping lists.
        numbers: What operands are drawn from, uniformly.
        targets: Lowest and highest target, both included; None for no limit.
        replacement: Whether one number may be drawn twice; if not, as often as it is in `numbers`.
        allow_negative: Whether results below one are admitted on the way (and as targets).
        target_may_be_given: Whether the target may be one of the operands.
        exclude: Keys that must not occur, e.g. those of another split.

    Returns:
        The problems, each with a witness that the verifier accepts.

    Raises:
        TypeError: n_operands or n_problems is no whole number.
        ValueError: Fewer such problems exist, or an argument makes no sense.
    """
    low, high = targets
    space = KeySpace(
        n_operands,
        tuple(int(number) for number in numbers),
        -math.inf if low is None else low,
        math.inf if high is None else high,
        replacement,
        allow_negative,
        target_may_be_given,
    )
    _check(space, n_problems)
    taken: set[Key] = {(tuple(sorted(operands)), target) for operands, target in exclude}
    problems = list(_drawn(space, n_problems, taken, seed))
    if len(problems) < n_problems:
        problems += _listed(space, n_problems - len(problems), taken, seed)
    if len(problems) < n_problems:
        msg = (
            f"only {len(problems)} Countdown problems exist with {n_operands} operands, targets "
            f"{targets} and {len(taken) - len(problems)} keys excluded, not {n_problems}: ask for "
            "fewer, widen targets or numbers, or exclude less"
        )
        raise ValueError(msg)
    return problems


def _check(space: KeySpace, n_problems: int) -> None:
    for name, value in (("n_operands", space.n_operands), ("n_problems", n_problems)):
        if not isinstance(value, Integral):
            msg = f"{name} must be a whole number, not {value!r}"
            raise TypeError(msg)
    if space.n_operands < 2:
        msg = f"n_operands must be at least 2, not {space.n_operands}"
        raise ValueError(msg)
    if n_problems < 0:
        msg = f"n_problems must not be negative, but is {n_problems}"
        raise ValueError(msg)
    if not space.numbers or (not space.replacement and len(space.numbers) < space.n_operands):
        msg = f"numbers has {len(space.numbers)} entries, too few to draw {space.n_operands}"
        raise ValueError(msg)
    if space.low > space.high:
        msg = f"targets must be (lowest, highest), but {space.low} is above {space.high}"
        raise ValueError(msg)


def play(
    operands: Sequence[int], generator: np.random.Generator, *, allow_negative: bool
) -> tuple[Step, ...] | None:
    """Play random equations until one number is left.

    Each equation is uniform among the admissible ones over ordered pairs and operators (by
    rejection). None where 64 equations in a row are not admissible: with positive numbers a sum
    always is, so that this means numbers below one that leave no way.
    """
    pool = list(operands)
    steps: list[Step] = []
    refusals = 0
    while len(pool) > 1 and refusals < 64:
        n = len(pool)
        pair, operator = divmod(int(generator.integers(n * (n - 1) * 4)), 4)
        i, j = divmod(pair, n - 1)
        j += j >= i
        value = combine(pool[i], OPERATORS[operator], pool[j])
        if value is None or (value < 1 and not allow_negative):
            refusals += 1
            continue
        refusals = 0
        steps.append(Step(pool[i], OPERATORS[operator], pool[j], value))
        pool = [number for index, number in enumerate(pool) if index not in (i, j)] + [value]
    return tuple(steps) if len(pool) == 1 else None


def _drawn(space: KeySpace, n: int, taken: set[Key], seed: int) -> Iterator[CountdownProblem]:
    """Up to `n` new problems by random play; ends early when draws stop finding new keys."""
    generator = stream(seed, "countdown", "play")
    patience = _STALL * 4 ** max(0, space.n_operands - 4)
    found, misses = 0, 0
    while found < n and misses < patience:
        misses += 1
        operands = _operands(space, generator)
        steps = play(operands, generator, allow_negative=space.allow_negative)
        if steps is None or not space.admits(operands, steps[-1].value):
            continue
        key = (tuple(sorted(operands)), steps[-1].value)
        if key not in taken:
            taken.add(key)
            found, misses = found + 1, 0
            yield CountdownProblem(operands, key[1], ",".join(map(str, steps)), key)


def _operands(space: KeySpace, generator: np.random.Generator) -> tuple[int, ...]:
    n = len(space.numbers)
    if space.replacement:
        indices = generator.integers(n, size=space.n_operands)
    else:
        indices = generator.permutation(n)[: space.n_operands]
    return tuple(space.numbers[index] for index in indices)


def _listed(space: KeySpace, n: int, taken: set[Key], seed: int) -> Iterator[CountdownProblem]:
    """Up to `n` of the problems that are left, in random order.

    Beyond `_LISTABLE` operands only as many multisets are looked at as are needed, in random order.
    """
    generator = stream(seed, "countdown", "list")
    multisets = space.multisets()
    left: list[Key] = []
    for index in generator.permutation(len(multisets)):
        multiset = multisets[index]
        left += [(multiset, t) for t in space.targets(multiset) if (multiset, t) not in taken]
        if len(left) >= n and space.n_operands > _LISTABLE:
            break
    for index in generator.permutation(len(left))[:n]:
        multiset, target = key = left[index]
        taken.add(key)
        steps = _witness(multiset, target, space.allow_negative)
        shown = tuple(multiset[i] for i in generator.permutation(len(multiset)))
        yield CountdownProblem(shown, target, ",".join(map(str, steps)), key)


def reachable(multiset: tuple[int, ...], *, allow_negative: bool) -> frozenset[int]:
    """All values that the sorted numbers can be combined to, each used exactly once."""
    if len(multiset) <= 3:
        return _reachable_cached(multiset, allow_negative)
    return _reachable(multiset, allow_negative)


def _reachable(multiset: tuple[int, ...], allow_negative: bool) -> frozenset[int]:  # noqa: FBT001 - cached below
    if len(multiset) == 1:
        return frozenset(multiset)
    return frozenset(step.value for _, _, step in _last_steps(multiset, allow_negative))


# Four operands and more are never a part of what is listed often enough to be worth the memory.
_reachable_cached = lru_cache(maxsize=None)(_reachable)


def _last_steps(
    multiset: tuple[int, ...],
    allow_negative: bool,  # noqa: FBT001 - private
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], Step]]:
    """Every last equation over a multiset, with the parts that make its two operands."""
    for part, rest in _splits(multiset):
        lefts = reachable(part, allow_negative=allow_negative)
        rights = reachable(rest, allow_negative=allow_negative)
        for left in lefts:
            for right in rights:
                for step in admissible(left, right, allow_negative=allow_negative):
                    yield part, rest, step


def _splits(multiset: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The distinct ordered splits of a multiset into two parts that are not empty."""
    n = len(multiset)
    seen: set[tuple[int, ...]] = set()
    for mask in range(1, 2**n - 1):
        part = tuple(multiset[i] for i in range(n) if mask >> i & 1)
        if part not in seen:
            seen.add(part)
            yield part, tuple(multiset[i] for i in range(n) if not mask >> i & 1)


def _witness(multiset: tuple[int, ...], target: int, allow_negative: bool) -> tuple[Step, ...]:  # noqa: FBT001 - private and recursive
    if len(multiset) == 1:
        return ()
    part, rest, step = next(
        found for found in _last_steps(multiset, allow_negative) if found[2].value == target
    )
    return (
        *_witness(part, step.left, allow_negative),
        *_witness(rest, step.right, allow_negative),
        step,
    )
