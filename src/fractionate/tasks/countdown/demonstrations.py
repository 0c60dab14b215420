"""Demonstrations: a short trace of a search, then the solution, as training data for a teacher.

They stand in for the study's demonstrations, which are not public; results that rest on them say
so. The failed tries are played by the generator's own random play, hence real.
"""

from collections.abc import Sequence

from fractionate.rng import stream
from fractionate.tasks.countdown.generator import play
from fractionate.tasks.countdown.verifier import Step, verify


def demonstrate(
    operands: Sequence[int], target: int, witness: str, *, seed: int, max_failures: int = 2
) -> str:
    """Write a completion that tries, fails up to `max_failures` times, and then succeeds.

    Args:
        operands: The given numbers.
        target: The number to reach.
        witness: A chain answer that reaches it.
        seed: Chooses how many and which tries fail; the same seed gives the same text.
        max_failures: Most failed tries; their number is uniform from zero.

    Returns:
        `<think>...</think><answer>witness</answer>`; `verify` accepts the answer.

    Raises:
        ValueError: The witness is not a solution of the problem.
    """
    verdict = verify(witness, operands, target)
    if not verdict.ok:
        msg = f"witness {witness!r} does not solve {list(operands)} -> {target}: {verdict.reason}"
        raise ValueError(msg)
    numbers = ", ".join(map(str, operands))
    sentences = [f"The numbers are {numbers} and the target is {target}."]
    sentences += [
        f"Try {_spaced(steps)}: {steps[-1].value} is not {target}."
        for steps in _failures(operands, target, seed, max_failures)
    ]
    sentences.append(f"Try {witness.replace(',', ', ')}: that is the target.")
    return f"<think>{' '.join(sentences)}</think><answer>{witness}</answer>"


def _spaced(steps: Sequence[Step]) -> str:
    return ", ".join(map(str, steps))


def _failures(operands: Sequence[int], target: int, seed: int, most: int) -> list[tuple[Step, ...]]:
    """Distinct random plays that miss the target; fewer than drawn where misses are rare."""
    name = f"{','.join(map(str, operands))}={target}"
    generator = stream(seed, "countdown", "demonstration", name)
    wanted = int(generator.integers(most + 1))
    found: dict[tuple[Step, ...], None] = {}
    for _ in range(8 * wanted):
        steps = play(operands, generator, allow_negative=False)
        if steps is not None and steps[-1].value != target and len(found) < wanted:
            found[steps] = None
    return list(found)
