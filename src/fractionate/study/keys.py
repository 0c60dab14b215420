"""Stages and their keys: a key is what a result depends on, hashed."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fractionate.study.identity import Source

STAGE_VERSIONS: Mapping[str, int] = {
    "student_base": 1,
    "teacher": 1,
    "teacher_training": 1,
    "preflight": 1,
    "base_evaluation": 2,
    "teacher_evaluation": 2,
    "corpus": 2,
    "cell": 3,
    "cell_evaluation": 2,
    "rlvr": 1,
    "rlvr_evaluation": 1,
}
"""Kinds of stage, shared ones first. A version goes up whenever the numbers of its kind change."""


@dataclass(frozen=True)
class Stage:
    """One unit of work with one result in the store.

    Attributes:
        kind: One of `STAGE_VERSIONS`.
        key: SHA-256 of `identity()`, in hex.
        name: For people; no part of the key.
        config: The complete configuration that the stage reads, defaults included.
        parents: Keys of the stages whose results it reads.
        version: Version of the kind's code.
        inputs: What it reads from outside the store, by role: "model", "data".
        execution: Device type, threads and the kernel: they can change a number, so
            they are in the key.
        after: Keys of stages that must have succeeded although their result is not read.
        runtime: Settings that change no number, such as how often to checkpoint; outside the key.
    """

    kind: str
    key: str
    name: str
    config: Mapping[str, Any]
    parents: tuple[str, ...]
    version: int
    inputs: Mapping[str, Source]
    execution: Mapping[str, str | int]
    after: tuple[str, ...] = ()
    runtime: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def short(self) -> str:
        """The first 16 hex digits of the key: its folder in the store."""
        return self.key[:16]

    @property
    def needs(self) -> tuple[str, ...]:
        """Keys of all stages that must be done before this one starts."""
        return (*self.parents, *self.after)

    def identity(self) -> dict[str, Any]:
        """Everything that the key hashes."""
        return _identity(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            **_identity(self),
            "key": self.key,
            "name": self.name,
            "after": list(self.after),
            "runtime": dict(self.runtime),
            "locations": {role: source.location for role, source in self.inputs.items()},
        }


@dataclass(frozen=True)
class Draft:
    """A stage before it has its key; the fields are those of `Stage`."""

    kind: str
    name: str
    config: Mapping[str, Any]
    parents: tuple[str, ...]
    execution: Mapping[str, str | int]
    inputs: Mapping[str, Source] = field(default_factory=dict[str, Source])
    after: tuple[str, ...] = ()
    runtime: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def version(self) -> int:
        """Version of the kind's code."""
        return STAGE_VERSIONS[self.kind]

    def stage(self) -> Stage:
        """The stage, keyed."""
        return Stage(
            kind=self.kind,
            key=digest(_identity(self)),
            name=self.name,
            config=self.config,
            parents=self.parents,
            version=self.version,
            inputs=self.inputs,
            execution=self.execution,
            after=self.after,
            runtime=self.runtime,
        )


def _identity(stage: Stage | Draft) -> dict[str, Any]:
    return {
        "kind": stage.kind,
        "version": stage.version,
        "config": dict(stage.config),
        "inputs": {role: dict(source.identity) for role, source in stage.inputs.items()},
        "execution": dict(stage.execution),
        "parents": list(stage.parents),
    }


def canonical_json(value: object) -> str:
    """JSON in one form only: sorted keys, no spaces, ASCII.

    Raises:
        ValueError: The value holds an infinity or NaN.
        TypeError: The value holds something that JSON does not have.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: object) -> str:
    """SHA-256 of the canonical JSON, in hex."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
