"""Factors: dotted paths into a study, their aliases, and the labels of their levels."""

from collections.abc import Mapping
from typing import Any, cast

Plain = Any  # what YAML holds: a scalar, a list or a mapping
Level = Mapping[str, Any] | float | int | str | bool | None

ALIASES: Mapping[str, str] = {
    "rollout": "method.rollout",
    "kl": "method.divergence",
    "lr": "optimizer.lr",
}


def resolve(factor: str) -> str:
    """The dotted path that a factor name means: `rollout.kind` is `method.rollout.kind`."""
    head, dot, rest = factor.partition(".")
    return f"{ALIASES.get(head, head)}{dot}{rest}"


def dotted_get(tree: Mapping[str, Any], path: str, *, where: str) -> Plain:
    """The value at a dotted path.

    Raises:
        ValueError: The path does not exist; names the closest existing key.
    """
    node: Plain = tree
    walked: list[str] = []
    for name in path.split("."):
        branch = _branch(node)
        if name not in branch:
            known = sorted(str(key) for key in branch)
            raise ValueError(
                f"{where}: there is no field '{'.'.join([*walked, name])}'. "
                f"{'.'.join(walked) or 'A study'} has: {', '.join(known) or 'no fields'}"
            )
        node = branch[name]
        walked.append(name)
    return node


def dotted_set(tree: Mapping[str, Any], path: str, value: Plain) -> dict[str, Any]:
    """A copy of `tree` with the value at a dotted path replaced; missing branches are made."""
    head, _, rest = path.partition(".")
    if rest:
        value = dotted_set(_branch(tree.get(head)), rest, value)
    return {**tree, head: value}


def _branch(node: Plain) -> Mapping[str, Any]:
    """A mapping as it is; anything else has no fields."""
    return cast(Mapping[str, Any], node) if isinstance(node, Mapping) else {}
