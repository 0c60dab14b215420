"""Countdown as a `Task`: splits, prompts, grades, demonstrations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

from fractionate.rng import stream
from fractionate.tasks.answers import extract_answer
from fractionate.tasks.base import Grade, Problem, Split
from fractionate.tasks.countdown.canonical import canonical_form
from fractionate.tasks.countdown.demonstrations import demonstrate
from fractionate.tasks.countdown.generator import V16, CountdownProblem, generate
from fractionate.tasks.countdown.verifier import verify

SYSTEM_PROMPT = (
    "You are a careful arithmetic solver. You think before you answer and check every calculation."
)
"""The system turn; the substance is the study's, the wording is ours."""

USER_PROMPT = (
    "Combine the given numbers with +, -, * and / so that the result is the target. Use each "
    "number exactly once. A division must give a whole number. Write your working inside "
    "<think> </think> tags. Then write the answer inside <answer> </answer> tags as equations "
    "separated by commas, one operation in each; a result may be used in a later equation.\n"
    "Example: for the numbers [2, 3, 4] and the target 20 an answer is "
    "<answer>2+3=5,5*4=20</answer>\n"
    "Numbers: {numbers}\n"
    "Target: {target}"
)
"""The user turn, with the numbers as a list and the target as a value."""

_UNREADABLE = ("no_answer", "empty", "syntax")


@dataclass(frozen=True)
class MultisetOverlap:
    """How many problems share their operands, at another target, with the training split.

    Attributes:
        selection: Problems of the selection split whose operand multiset occurs in training.
        test: The same of the test split.
        n_selection: Problems of the selection split.
        n_test: Problems of the test split.
    """

    selection: int
    test: int
    n_selection: int
    n_test: int


@final
@dataclass(kw_only=True)
class Countdown:
    """Countdown problems in three splits that share no (sorted operands, target).

    One list is generated and cut after a seeded shuffle, so the splits have the same law.

    Attributes:
        operands: Given numbers per problem.
        numbers: What operands are drawn from.
        targets: Lowest and highest target; None for no limit.
        replacement: Whether a number may be drawn twice.
        allow_negative: Whether problems may need results below one on the way; the verifier always
            admits them.
        target_may_be_given: Whether the target may be one of the operands.
        n_train: Problems of the training split.
        n_selection: Problems of the split on which checkpoints and rates are selected.
        n_test: Problems of the test split.
        seed: Seed of the problems.
        name: The name of the task in records.
    """

    operands: int = 3
    numbers: Sequence[int] = V16
    targets: tuple[int | None, int | None] = (1, None)
    replacement: bool = True
    allow_negative: bool = False
    target_may_be_given: bool = True
    n_train: int = 4000
    n_selection: int = 200
    n_test: int = 200
    seed: int = 42
    name: str = field(default="countdown")

    def problems(self, split: Split, n: int | None = None) -> Sequence[Problem]:
        """The first `n` problems of a split in its fixed order; None: all of them.

        Raises:
            ValueError: The split holds fewer than `n` problems, or so many problems do not exist.
        """
        items = self._splits[split]
        if n is not None and not 0 <= n <= len(items):
            msg = f"{split} holds {len(items)} problems, not {n}: change n_{split} of the task"
            raise ValueError(msg)
        return [_problem(item) for item in items[:n]]

    def grade(self, problem: Problem, completion: str) -> Grade:
        """Judge the text of a completion; never raises on text.

        `answered` is False for the reasons "no_answer", "empty" and "syntax".
        """
        operands, target = problem.reference["operands"], problem.reference["target"]
        answer = extract_answer(completion)
        verdict = verify(answer, operands, target)
        solution = None
        if verdict.ok and answer is not None:
            solution = repr(canonical_form(answer, operands))
        return Grade(
            correct=verdict.ok,
            reason=verdict.reason,
            answered=verdict.reason not in _UNREADABLE,
            solution=solution,
        )

    def demonstration(self, problem: Problem, *, seed: int) -> str:
        """A correct completion: failed tries drawn by the seed, then the problem's witness."""
        reference = problem.reference
        return demonstrate(
            reference["operands"], reference["target"], reference["witness"], seed=seed
        )

    def multiset_overlap(self) -> MultisetOverlap:
        """Count evaluation problems that reuse a training multiset; keys are disjoint anyway."""
        seen = {item.key[0] for item in self._splits["train"]}
        selection, test = self._splits["selection"], self._splits["test"]
        return MultisetOverlap(
            selection=sum(item.key[0] in seen for item in selection),
            test=sum(item.key[0] in seen for item in test),
            n_selection=len(selection),
            n_test=len(test),
        )

    @cached_property
    def _splits(self) -> Mapping[Split, list[CountdownProblem]]:
        n = self.n_train + self.n_selection + self.n_test
        items = generate(
            self.operands,
            n,
            seed=self.seed,
            numbers=self.numbers,
            targets=self.targets,
            replacement=self.replacement,
            allow_negative=self.allow_negative,
            target_may_be_given=self.target_may_be_given,
        )
        # Later draws avoid the keys of earlier ones: only a shuffle gives the splits one law.
        order = stream(self.seed, "countdown", "splits").permutation(n)
        shuffled = [items[index] for index in order]
        selection = self.n_train + self.n_selection
        return {
            "train": shuffled[: self.n_train],
            "selection": shuffled[self.n_train : selection],
            "test": shuffled[selection:],
        }


def _problem(item: CountdownProblem) -> Problem:
    prompt = USER_PROMPT.format(numbers=list(item.operands), target=item.target)
    multiset, target = item.key
    return Problem(
        key=f"{','.join(map(str, multiset))}={target}",
        messages=(
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": prompt},
        ),
        reference={"operands": item.operands, "target": item.target, "witness": item.witness},
    )
