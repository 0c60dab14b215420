"""Parts of Countdown under tags of their own: what a student may know before it is distilled.

`latent` students know whole traces under another tag; `components` students know the five parts
but have never seen a complete right trace.
"""

from collections.abc import Callable, Mapping

import numpy as np

from fractionate.tasks.sandbox.arithmetic import equation_between
from fractionate.tasks.sandbox.traces import VERDICT_WEIGHT, Response, Try, trace, tries
from fractionate.tasks.sandbox.vocabulary import COUNTDOWN_TAG, EOS, NO_OPERATOR

Numbers = tuple[int, ...]
Component = Callable[[Numbers, int, np.random.Generator], tuple[list[str], Response]]

SUCCESS_SHARE = 0.4
"""Share of the parts that are about the try that succeeds, where one does."""


def prompt(tag: str, numbers: Numbers, target: int) -> list[str]:
    """The words of a problem under a tag: `cd 7 7 1 : 56 =`."""
    return [tag, *map(str, numbers), ":", str(target), "="]


def countdown_prompt(numbers: Numbers, target: int) -> list[str]:
    """The words of a Countdown problem."""
    return prompt(COUNTDOWN_TAG, numbers, target)


def whole_trace(
    numbers: Numbers, target: int, generator: np.random.Generator
) -> tuple[list[str], Response]:
    """A complete, right trace in cyclic order under the tag `trace`."""
    return prompt("trace", numbers, target), trace(numbers, target, "cyc", generator)


def _pick(found: list[Try], generator: np.random.Generator) -> Try:
    """A try at random, with probability .4 among those that succeed, if any."""
    success, place = generator.random(2).tolist()
    able = [attempt for attempt in found if attempt.verdict != NO_OPERATOR]
    candidates = able if able and success < SUCCESS_SHARE else found
    return candidates[int(place * len(candidates))]


def _line(attempt: Try) -> Response:
    words = [*attempt.line(attempt.verdict), EOS]
    return Response(words, [1.0] * 8 + [VERDICT_WEIGHT, 1.0])


def verdict_in_line(
    numbers: Numbers, target: int, generator: np.random.Generator
) -> tuple[list[str], Response]:
    """`verdict 56 - 7 = 49 : 7 1` -> `x`: the verdict where a trace has it."""
    attempt = _pick(tries(numbers, target), generator)
    *line, verdict = attempt.line(attempt.verdict)
    return ["verdict", *line], Response([verdict, EOS], [VERDICT_WEIGHT, 1.0])


def one_line(
    numbers: Numbers, target: int, generator: np.random.Generator
) -> tuple[list[str], Response]:
    """`line 7 7 1 : 56 =` -> `56 - 7 = 49 : 7 1 x`: one try, whichever."""
    attempt = _pick(tries(numbers, target), generator)
    return prompt("line", numbers, target), _line(attempt)


def answer_from_line(
    numbers: Numbers, target: int, generator: np.random.Generator
) -> tuple[list[str], Response]:
    """`answer 56 / 7 = 8 : 7 1 + =` -> the two equations between answer tags."""
    able = [attempt for attempt in tries(numbers, target) if attempt.verdict != NO_OPERATOR]
    attempt = able[int(generator.random() * len(able))]
    answer = ["<answer>", *attempt.answer(attempt.verdict), "</answer>", EOS]
    question = ["answer", *attempt.line(attempt.verdict), "="]
    return question, Response(answer, [1.0] * len(answer))


def two_numbers(
    numbers: Numbers, target: int, generator: np.random.Generator
) -> tuple[list[str], Response]:
    """`pair 7 1 : 8 =` -> `7 + 1 = 8`: Countdown with two numbers."""
    able = [attempt for attempt in tries(numbers, target) if attempt.verdict != NO_OPERATOR]
    attempt = able[int(generator.random() * len(able))]
    goal = attempt.undo.sub_goal
    a, b = attempt.left
    equation = [*equation_between(goal, a, b, attempt.verdict), EOS]
    return prompt("pair", attempt.left, goal), Response(equation, [1.0] * len(equation))


def next_line(
    numbers: Numbers, target: int, generator: np.random.Generator
) -> tuple[list[str], Response]:
    """`next 7 7 1 : 56 = 56 - 7 = 49 : 7 1 x` -> the next line in cyclic order."""
    found = tries(numbers, target)
    following = _pick(found, generator)
    before = found[found.index(following) - 1]
    question = [*prompt("next", numbers, target), *before.line(before.verdict)]
    return question, _line(following)


COMPONENTS: Mapping[str, tuple[float, Component]] = {
    "verdict": (0.30, verdict_in_line),
    "line": (0.25, one_line),
    "answer": (0.20, answer_from_line),
    "pair": (0.05, two_numbers),
    "next": (0.20, next_line),
}
"""The parts and their shares."""


def component(
    numbers: Numbers, target: int, generator: np.random.Generator
) -> tuple[list[str], Response]:
    """One part of a solvable problem with three numbers: the words of a prompt and a response."""
    place = generator.random()
    for share, make in COMPONENTS.values():
        place -= share
        if place < 0:
            return make(numbers, target, generator)
    return next_line(numbers, target, generator)
