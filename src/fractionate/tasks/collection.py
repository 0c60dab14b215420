"""Problems read from rows: read once, without repeats, in three disjoint splits.

Which split a problem is in is decided by a seeded hash of its key, so neither the order of the
rows nor rows added later for training move a problem between the reported split and the others,
except at their edge.
"""

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from fractionate.config.source import Source
from fractionate.config.task import DataTask
from fractionate.rng import derive_seed
from fractionate.tasks.base import Grade, Problem, Split
from fractionate.tasks.sources import no_column, source_rows
from fractionate.tasks.table_files import Row, TableError


@dataclass(frozen=True)
class Where:
    """The row that is being read, as messages name it.

    Attributes:
        row: The row.
        source: Where it is from.
        field: The field of the study that names the source, e.g. "task.source".
    """

    row: Row
    source: Source
    field: str

    def value(self, column: str, *, field: str | None = None) -> Any:
        """The value of a column.

        Args:
            column: Its name; a dotted name reaches into nested columns.
            field: What names the column in the study; none for columns that the kind of task
                knows.

        Raises:
            TableError: The row has no such column.
        """
        there, value = self.row.find(column)
        if not there:
            raise no_column(self.row, column, self.source, field or self.field)
        return value

    def fault(self, column: str, fault: str, *, field: str) -> TableError:
        """What is wrong with the value of a column, with the value."""
        shown = repr(self.row.find(column)[1])
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        return TableError(
            f"{field}: {self.source.location}, {self.row.place}, column '{column}' {fault} "
            f"(given: {shown})"
        )


@dataclass(frozen=True)
class Layout:
    """How one kind of data is read and judged.

    Attributes:
        name: Name of the task in records.
        read: A row as a problem, whose reference holds the demonstration as "completion" if there
            is one; or the reason, in a word or two, for leaving the row out.
        grade: The verdict on a completion.
        duplicates: What a key that was read before means.
        no_demonstrations: What to say where one is asked for and the row has none.
    """

    name: str
    read: Callable[[Where], Problem | str]
    grade: Callable[[Problem, str], Grade]
    duplicates: Literal["error", "drop"]
    no_demonstrations: str


@final
class Collection:
    """A task with data.

    Attributes:
        name: The name of the task in records.
        rows: Rows that were read, those of other tasks not counted.
        left_out: How many of them are no problem of the task, by reason.

    Raises:
        TableError: The data cannot be used; names the field of the task, the row, and the mend.
    """

    def __init__(self, config: DataTask, layout: Layout) -> None:
        self.name = layout.name
        self._layout = layout
        reader = _Reader(config, layout)
        self._splits = reader.splits()
        self.left_out: Mapping[str, int] = dict(sorted(reader.left_out.items()))
        self.rows = reader.rows

    def problems(self, split: Split, n: int | None = None) -> Sequence[Problem]:
        """The first `n` problems of a split in its fixed order; None: all of them.

        Raises:
            ValueError: The split holds fewer than `n` problems.
        """
        items = self._splits[split]
        if n is not None and not 0 <= n <= len(items):
            mend = "add rows" if split == "train" else f"change task.{split}"
            raise ValueError(f"{self.name}: {split} holds {len(items)} problems, not {n}: {mend}")
        return items[:n]

    def grade(self, problem: Problem, completion: str) -> Grade:
        """Judge the text of a completion by the task's rule; never raises on text."""
        return self._layout.grade(problem, completion)

    def demonstration(self, problem: Problem, *, seed: int) -> str:  # noqa: ARG002 - the row has one
        """The completion of the row.

        Raises:
            TableError: It has none.
        """
        completion = problem.reference["completion"]
        if completion is None:
            raise TableError(f"{self._layout.no_demonstrations} (problem '{problem.key}')")
        return str(completion)

    def summary(self) -> str:
        """How many rows became problems, and why the others did not."""
        sizes = ", ".join(f"{len(items)} {split}" for split, items in self._splits.items())
        reasons = ", ".join(f"{n} {reason}" for reason, n in self.left_out.items())
        left_out = f"; left out: {reasons}" if reasons else ""
        return f"{self.name}: {self.rows} rows, {sizes}{left_out}"


def content_key(*parts: Any) -> str:
    """The identity of a problem by what it says: 16 hex digits."""
    spelled = json.dumps(parts if len(parts) != 1 else parts[0], sort_keys=True)
    return hashlib.sha256(spelled.encode()).hexdigest()[:16]


def folded(text: str) -> str:
    """A text in lower case with white space collapsed, for telling repeats."""
    return " ".join(text.lower().split())


class _Reader:
    """Reads every source of a task once, and keeps what may be used."""

    def __init__(self, config: DataTask, layout: Layout) -> None:
        self._config = config
        self._layout = layout
        self._kind = str(dict(config)["kind"])
        self.left_out: Counter[str] = Counter()
        self.rows = 0

    def splits(self) -> Mapping[Split, Sequence[Problem]]:
        config = self._config
        held = self._problems("test_source", forbidden={})
        barred = {problem.key: "excluded" for problem in self._barred()}
        barred |= {problem.key: "in_the_test" for problem in held}
        own = self._problems("source", forbidden=barred)
        in_source = config.selection if config.test_source else config.test + config.selection
        self._check_size(own, held, in_source)
        test, rest = (held, own) if config.test_source else (own, own[config.test :])
        selection, rest = rest[: config.selection], rest[config.selection :]
        unused = len(rest) - len(rest[: config.train])
        unused += max(len(held) - config.test, 0)
        self.left_out["not_needed"] += unused
        self.left_out += Counter()  # drops the reasons that never occurred
        return {
            "train": rest[: config.train],
            "selection": selection,
            "test": test[: config.test],
        }

    def _check_size(self, own: Sequence[Problem], held: Sequence[Problem], in_source: int) -> None:
        config = self._config
        if config.test_source and len(held) < config.test:
            raise TableError(
                f"task.test is {config.test}, but task.test_source holds {len(held)} problems. "
                "Lower task.test, or add rows"
            )
        needed = in_source + (config.train or 1)
        if len(own) >= needed:
            return
        sizes = {"test": 0 if config.test_source else config.test, "selection": config.selection}
        asked = {f"task.{name}": n for name, n in (*sizes.items(), ("train", config.train)) if n}
        fault, mend = "training needs one", "Add rows"
        if asked:
            verb = f"leave none to train on below {needed}" if config.train is None else "need more"
            fault = f"{' and '.join(f'{name} {n}' for name, n in asked.items())} {verb}"
            mend = f"Lower {' or '.join(asked)}, or add rows"
        reasons = ", ".join(f"{n} {reason}" for reason, n in sorted((+self.left_out).items()))
        usable = f" that can be used (left out: {reasons})" if reasons else ""
        raise TableError(
            f"task.{self._named('source')[0][0]}: {self._places('source')} holds {len(own)} rows"
            f"{usable}, but {fault}. {mend}"
        )

    def _named(self, field: str) -> list[tuple[str, Source]]:
        """The sources of a field, `path` being one name of `source`."""
        names = ("source", "path") if field == "source" else (field,)
        return [
            (name, source)
            for name, source in self._config.inputs.items()
            if name.partition(".")[0] in names
        ]

    def _places(self, field: str) -> str:
        return " and ".join(dict.fromkeys(source.location for _, source in self._named(field)))

    def _barred(self) -> list[Problem]:
        """The problems that may not be trained on; what else is in those rows is of no account."""
        other = _Reader(self._config, dataclasses.replace(self._layout, duplicates="drop"))
        return other._problems("exclude", forbidden={})

    def _problems(self, field: str, *, forbidden: Mapping[str, str]) -> list[Problem]:
        """The problems of all sources of a field, in the order of the split."""
        seen: dict[str, Row] = {}
        found: list[Problem] = []
        for name, source in self._named(field):
            usable: list[Problem] = []
            conditions: Counter[str] = Counter()
            for row in source_rows(source, field=f"task.{name}", left_out=conditions):
                self.rows += 1
                read = self._layout.read(Where(row, source, f"task.{name}"))
                problem = self._new(read, row, seen, forbidden)
                if problem is not None:
                    seen[problem.key] = row
                    usable.append(problem)
            self.rows += conditions["too_long"]
            self.left_out["too_long"] += conditions["too_long"]
            found += self._limited(usable, source)
        return sorted(found, key=lambda problem: self._order(self._kind, problem.key))

    def _new(
        self,
        read: Problem | str,
        row: Row,
        seen: Mapping[str, Row],
        forbidden: Mapping[str, str],
    ) -> Problem | None:
        """The problem of a row, unless there is a reason to leave it out."""
        if isinstance(read, str):
            self.left_out[read] += 1
            return None
        other = seen.get(read.key)
        if other is not None and self._layout.duplicates == "error":
            raise TableError(
                f"task.key: {other.place} and {row.place} are the same problem ('{read.key}'), so "
                "one could be trained on and the other reported. Remove one, name a column that "
                "tells them apart in task.key, or set task.duplicates: drop"
            )
        reason = "duplicate" if other is not None else forbidden.get(read.key)
        if reason is None:
            return read
        self.left_out[reason] += 1
        return None

    def _limited(self, problems: Sequence[Problem], source: Source) -> Sequence[Problem]:
        if source.limit is None or len(problems) <= source.limit:
            return problems
        self.left_out["beyond_limit"] += len(problems) - source.limit
        return sorted(problems, key=lambda p: self._order("limit", p.key))[: source.limit]

    def _order(self, purpose: str, key: str) -> int:
        return derive_seed(self._config.split_seed, purpose, key)
