"""Reading study files: YAML in, a validated Study out, one clear error in between."""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fractionate.config.extends import extended
from fractionate.config.study import Study
from fractionate.config.vary import Plain, dotted_get, dotted_set, resolve

_CHOICE = re.compile(r"(literal|tuple|dict|list|constrained-\w+)(\[.*\])?|int|float|str|bool|none")


_SOURCES = tuple(
    f"{task}.{field}"
    for task in ("task", "rlvr.task")
    for field in ("source", "test_source", "exclude")
)


class StudyFileError(ValueError):
    """A study file that cannot be used; the message names the field and the mend."""


def read_study(path: str | Path, overrides: Sequence[str] = ()) -> Study:
    """Read and validate a study file.

    Args:
        path: YAML file. Relative paths inside it are taken from its folder. It may be the
            difference from another study: `extends: other.yaml`.
        overrides: `dotted.path=value` with the value in YAML, applied before validation; the
            aliases `rollout`, `kl` and `lr` work. `vary.method.rollout` is the factor
            `method.rollout` of `vary`, however the file writes it.

    Raises:
        StudyFileError: The file is missing, is not YAML, or says something impossible.
    """
    path = Path(path)
    tree = _read_tree(path)
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals:
            raise StudyFileError(f"override '{override}': write it as field=value")
        tree = _overridden(tree, name.strip(), _parse_yaml(text, f"override '{override}'"))
    return parse_study(_anchor_paths(tree, path.parent), source=str(path))


def _read_tree(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The file with what it extends underneath."""
    if path.resolve() in above:
        raise StudyFileError(f"{path}: extends: this file extends itself over others")

    def other(below: Path) -> dict[str, Any]:
        tree = _read_tree(below, (*above, path.resolve()))
        return _anchor_paths(tree, below.parent.resolve())

    try:
        return extended(_read_yaml(path), path, other)
    except StudyFileError:
        raise
    except ValueError as error:
        raise StudyFileError(str(error)) from None


def parse_study(tree: Mapping[str, Any], *, source: str = "study") -> Study:
    """Validate a tree of plain values as a Study.

    Raises:
        StudyFileError: With one line per fault, each naming its field.
    """
    try:
        return Study.model_validate(tree)
    except ValidationError as error:
        lines = _explained(error.errors(include_url=False))
        raise StudyFileError("\n".join(f"{source}: {line}" for line in lines)) from None


def _overridden(tree: dict[str, Any], name: str, value: Plain) -> dict[str, Any]:
    head, _, factor = name.partition(".")
    if head != "vary" or not factor:
        return dotted_set(tree, resolve(name), value)
    given: Plain = tree.get("vary")
    levels = cast(dict[str, Any], given) if isinstance(given, dict) else {}
    written = (key for key in levels if resolve(str(key)) == resolve(factor))
    return {**tree, "vary": {**levels, next(written, factor): value}}


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StudyFileError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise StudyFileError(f"{path}: cannot be read ({error})") from None
    tree = _parse_yaml(text, str(path))
    if not isinstance(tree, dict):
        raise StudyFileError(f"{path}: a study file is a mapping of fields, e.g. 'name: demo'")
    return cast(dict[str, Any], tree)


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, where YAML would keep the last one."""

    def construct_mapping(  # the base class has `deep` positional
        self,
        node: yaml.MappingNode,
        deep: bool = False,  # noqa: FBT001
    ) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key: object = cast(Any, self).construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key}' stands twice", key_node.start_mark
                )
            seen.add(key if isinstance(key, str) else id(key_node))
        return super().construct_mapping(node, deep)


def _parse_yaml(text: str, source: str) -> Plain:
    try:
        return yaml.load(text, Loader=_StrictLoader)  # a SafeLoader underneath
    except yaml.YAMLError as error:
        raise StudyFileError(f"{source}: not valid YAML: {_yaml_fault(error)}") from None
    except ValueError as error:  # of a scalar, e.g. the date 2024-13-01
        raise StudyFileError(f"{source}: not valid YAML: {error}") from None


def _yaml_fault(error: yaml.YAMLError) -> str:
    """What is wrong and where, in one line."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        begun = error.context_mark
        context = f" ({error.context}" if error.context else ""
        if context and begun is not None:
            context += f" that begins in line {begun.line + 1}"
        return f"{where}{error.problem or 'unreadable'}{context + ')' if context else ''}"
    if isinstance(error, yaml.reader.ReaderError):
        return f"position {error.position}: {error.reason}"
    return " ".join(str(error).split())


def _anchor_paths(tree: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Relative file names in a study mean files beside it."""
    for path in ("task.path", "world.checkpoints", "rlvr.task.path", "evaluate.forgetting.include"):
        try:
            value = dotted_get(tree, path, where=path)
        except ValueError:
            continue
        if isinstance(value, str) and not Path(value).is_absolute():
            tree = dotted_set(tree, path, str(folder / value))
    for path in ("models.student", "models.teacher"):
        try:
            value = dotted_get(tree, path, where=path)
        except ValueError:
            continue
        if isinstance(value, str) and (folder / value).exists():
            tree = dotted_set(tree, path, str(folder / value))
    for path in _SOURCES:
        try:
            value = dotted_get(tree, path, where=path)
        except ValueError:
            continue
        tree = dotted_set(tree, path, _anchored_source(value, folder))
    return tree


def _anchored_source(given: Plain, folder: Path) -> Plain:
    """Sources of data with their paths beside the study file; whatever is none stays as it is."""
    if isinstance(given, list):
        return [_anchored_source(item, folder) for item in cast(list[Plain], given)]
    if isinstance(given, str):
        return str(folder / given)
    if isinstance(given, dict) and isinstance(cast(dict[str, Plain], given).get("path"), str):
        source = cast(dict[str, Any], given)
        return {**source, "path": str(folder / source["path"])}
    return cast(Plain, given)


def _explained(details: Sequence[ErrorDetails]) -> list[str]:
    """One line per fault: what the alternatives of one value say of it is one fault."""
    choices: dict[str, list[ErrorDetails]] = {}
    for detail in details:
        if any(_is_choice(part) for part in detail["loc"]):
            choices.setdefault(_field(detail), []).append(detail)
    lines: dict[str, None] = {}
    for detail in details:
        field = _field(detail)
        inner = any(other.startswith(f"{field}.") for other in choices)
        if field in choices and not inner:
            lines[_joined(choices[field])] = None
        elif field not in choices:
            lines[_explain(detail)] = None
    return list(lines)


def _joined(details: Sequence[ErrorDetails]) -> str:
    """Faults of one value under all its alternatives: `'last', or a list (given: 'first')`."""
    first, *others = dict.fromkeys(_message(detail) for detail in details)
    rest = [message.removeprefix("Input should be ") for message in others]
    return f"{_field(details[0])}: {', or '.join([first, *rest])}{_given(details[0])}"


def _field(detail: ErrorDetails) -> str:
    kept = [part for part in detail["loc"] if not (_is_union_tag(part) or _is_choice(part))]
    return ".".join(str(part) for part in kept) or "study"


def _message(detail: ErrorDetails) -> str:
    return detail["msg"].removeprefix("Value error, ").replace("valid tuple", "list")


def _given(detail: ErrorDetails) -> str:
    given = detail.get("input")
    return f" (given: {given!r})" if isinstance(given, str | int | float | bool | None) else ""


def _is_choice(part: int | str) -> bool:
    """An alternative of a union without kinds, which no file spells out: `tuple[int, ...]`."""
    return isinstance(part, str) and _CHOICE.fullmatch(part) is not None


def _explain(detail: ErrorDetails) -> str:
    field = _field(detail)
    if detail["type"] == "extra_forbidden":
        return f"{field}: unknown field.{_suggestion(detail['loc'])}"
    if detail["type"] == "missing":
        return f"{field}: this field is required"
    if detail["type"] == "union_tag_invalid":
        context = detail.get("ctx", {})
        kinds = str(context.get("expected_tags", ""))
        return f"{field}.kind: unknown kind '{context.get('tag')}'. Kinds: {kinds}"
    if detail["type"] == "union_tag_not_found":
        return f"{field}.kind: this field is required: it says which alternative is meant"
    shown = "" if detail["type"] == "value_error" else _given(detail)
    return f"{field}: {_message(detail)}{shown}"


def _is_union_tag(part: int | str) -> bool:
    """Discriminated unions put the chosen kind into the location; it is no field of the file."""
    return isinstance(part, str) and part in _KINDS


def _suggestion(location: Sequence[int | str]) -> str:
    names = sorted({name for model in _models_at(location[:-1]) for name in model.model_fields})
    others = [name for name in names if name != location[-1]]
    close = difflib.get_close_matches(str(location[-1]), others, n=1, cutoff=0.5)
    if close:
        return f" Did you mean '{close[0]}'?"
    return f" Fields here: {', '.join(names)}" if names else " Remove it"


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _models_at(location: Sequence[int | str]) -> list[type[BaseModel]]:
    """The classes that a place of the file may hold; the kind of a union narrows them."""
    found: list[type[BaseModel]] = [Study]
    for part in location:
        fields = [model.model_fields[str(part)] for model in found if part in model.model_fields]
        if fields:
            found = [model for field in fields for model in _models_in(field.annotation)]
        elif chosen := [model for model in found if _kind_of(model) == part]:
            found = chosen
    return found


def _kind_of(model: type[BaseModel]) -> object:
    field = model.model_fields.get("kind")
    return None if field is None else field.default


def _kinds(model: type[BaseModel], seen: set[type[BaseModel]]) -> set[str]:
    if model in seen:
        return set()
    seen.add(model)
    kinds: set[str] = set()
    for name, field in model.model_fields.items():
        if name == "kind" and isinstance(field.default, str):
            kinds.add(field.default)
        for nested in _models_in(field.annotation):
            kinds |= _kinds(nested, seen)
    return kinds


_KINDS = _kinds(Study, set()) - set(Study.model_fields)
