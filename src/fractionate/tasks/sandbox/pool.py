"""All Countdown problems of the sandbox, enumerated: weights, splits and the solver's table."""

import functools
import hashlib
import itertools
import math
from dataclasses import dataclass

import numpy as np

from fractionate.tasks.base import Split
from fractionate.tasks.sandbox.arithmetic import UNDO_ORDER, operator_between, undo
from fractionate.tasks.sandbox.vocabulary import LARGEST, NO_OPERATOR

LARGEST_OPERAND = 15
LARGEST_TARGET = 60
TEST_SHARE = 0.1
SELECTION_SHARE = 0.1
SPLITS: tuple[Split, ...] = ("train", "selection", "test")
OPERANDS = (3, 4)


@dataclass(frozen=True)
class Pool:
    """The problems of one size: `K` rows, one per key.

    Attributes:
        numbers: Sorted operands, [K, operands].
        targets: [K].
        weights: Number of solution paths times orderings of the operands, [K]: a problem drawn by
            a random reduction path has probability in proportion to it.
        splits: Index into `SPLITS`, [K].
    """

    numbers: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    splits: np.ndarray

    def rows(self, split: Split) -> np.ndarray:
        """Indices of the problems of a split."""
        return np.flatnonzero(self.splits == SPLITS.index(split))


def key_of(numbers: tuple[int, ...] | list[int], target: int) -> str:
    """Identity of a problem: sorted numbers and target, e.g. `1 7 7 : 56`."""
    return f"{' '.join(map(str, sorted(numbers)))} : {target}"


def split_of(key: str) -> Split:
    """The split a key belongs to: a hash of the key, 80 % train, 10 % selection, 10 % test."""
    place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
    if place < TEST_SHARE:
        return "test"
    return "selection" if place < TEST_SHARE + SELECTION_SHARE else "train"


@functools.cache
def _last_step_paths() -> np.ndarray:
    """[number, sub-goal, goal] counts of operations that lead from a sub-goal to a goal."""
    paths = np.zeros((LARGEST_OPERAND + 1, LARGEST + 1, LARGEST + 1))
    for number in range(1, LARGEST_OPERAND + 1):
        for goal, operator in itertools.product(range(LARGEST + 1), UNDO_ORDER):
            step = undo(goal, operator, number)
            if step is not None:
                paths[number, step.sub_goal, goal] += 1
    return paths


@functools.cache
def solution_paths(numbers: tuple[int, ...]) -> np.ndarray:
    """[goal] count of chains that make each goal 0 ... 89 of sorted numbers, one at a time.

    A chain starts from two given numbers and takes in one more with each operation.
    """
    if len(numbers) == 2:
        found = [operator_between(goal, *numbers) != NO_OPERATOR for goal in range(LARGEST + 1)]
        return np.array(found, dtype=float)
    last = _last_step_paths()
    total = np.zeros(LARGEST + 1)
    for place, number in enumerate(numbers):
        total += solution_paths(numbers[:place] + numbers[place + 1 :]) @ last[number]
    return total


@functools.cache
def solvable(numbers: tuple[int, ...]) -> frozenset[int]:
    """The goals that a chain over sorted numbers reaches."""
    return frozenset(np.flatnonzero(solution_paths(numbers)).tolist())


@functools.cache
def pool(operands: int) -> Pool:
    """All solvable problems with `operands` numbers of 1 ... 15 and a target of 1 ... 60.

    The target is not among the numbers. Solvable means by a chain: no problem needs two
    sub-results at once.

    Raises:
        ValueError: The size is not one of the world's.
    """
    if operands not in OPERANDS:
        message = f"operands must be one of {OPERANDS} in the sandbox, got {operands}"
        raise ValueError(message)
    numbers, targets, weights, splits = [], [], [], []
    sets = itertools.combinations_with_replacement(range(1, LARGEST_OPERAND + 1), operands)
    for chosen in sets:
        paths = solution_paths(chosen) * _orderings(chosen)
        for target in range(1, LARGEST_TARGET + 1):
            if paths[target] and target not in chosen:
                numbers.append(chosen)
                targets.append(target)
                weights.append(paths[target])
                splits.append(SPLITS.index(split_of(key_of(chosen, target))))
    return Pool(np.array(numbers), np.array(targets), np.array(weights), np.array(splits))


def _orderings(numbers: tuple[int, ...]) -> int:
    repeats = [math.factorial(numbers.count(number)) for number in set(numbers)]
    return math.factorial(len(numbers)) // math.prod(repeats)
