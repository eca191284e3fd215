"""Error messages for settings files: the line, the worker, the field, and what may be meant.

Uses pydantic's error types and YAML's nodes. Settings are known only through the models that callers pass in.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import yaml
from pydantic import BaseModel
from pydantic_core import ErrorDetails

from conductor.errors import PodiumError, did_you_mean
from serving.settings.workers import Kind

Loc = Sequence[int | str]
"""Path of a setting: keys and positions from the top of the file. In a list, an entry's `name` may replace
its position."""
RENAMED = {
    "to_zero_delay_s": "downscale_to_zero_delay_s",
    "look_back_s": "look_back_period_s",
    "longest_wait_s": "max_wait_s",
}
"""Settings of older versions, and their new names."""
TYPES = {
    "string": "text (put it in quotes)",
    "int": "a whole number",
    "float": "a number",
    "decimal": "a number",
    "finite": "a finite number; null means no limit",
    "bool": "true or false",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping of names to values",
    "model": "a mapping of names to values",
    "path": "a path",
}
"""Expected values, by the first word of pydantic's error type."""
BOUNDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
PATTERNS = {
    r"^[\w.]+:\w+$": "must have the form `package.module:callable`",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$": "must have at most 60 characters, begin with a letter or digit, and contain only letters, digits and . _ -",
}
NAME_WORDS = "must have at most 100 characters, begin with a letter or digit, and contain only letters, digits and . _ - / :"


PREDICATES = ("must", "is", "was")
"""First words of messages that continue a sentence whose subject is the setting."""


class SettingsError(PodiumError):
    """A settings file is invalid. The message says where, and what to write instead."""

    at: Loc = ()
    """Path of the setting, if it is known and the message does not give the line."""


class At(ValueError):
    """Fault in the settings as a whole, with the path of the setting that causes it."""

    def __init__(self, message: str, *at: int | str) -> None:
        super().__init__(message)
        self.at: Loc = at


def in_file(error: SettingsError, path: str | Path) -> SettingsError:
    """Return a copy of `error` whose message gives the file and the line, if the error names a setting."""
    if not error.at:
        return error
    try:
        line = line_of(read_yaml(Path(path).read_text(encoding="utf-8"))[1], error.at)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, SettingsError):
        line = None
    return SettingsError(f"{path}{f', line {line}' if line else ''}: {error.message}", detail=error.detail)


def describe(fault: ErrorDetails, data: object, root: yaml.Node | None, model: type[BaseModel]) -> str:
    """Return a fault as a sentence with its place, such as `line 4, worker 'gpt': workers[0].base_url must
    begin with ...`. `data` is the YAML, and `root` its node, if from a file.
    """
    cause = fault.get("ctx", {}).get("error")
    is_whole = isinstance(cause, At) and not fault["loc"]
    line = line_of(root, cause.at if isinstance(cause, At) and is_whole else fault["loc"])
    place, message = place_of(fault["loc"]), message_of(fault, fields_at(model, fault["loc"]))
    name = None if is_whole or root is None else _worker_name(data, fault["loc"])
    facts = ", ".join([*([f"line {line}"] if line else []), *([f"worker {name!r}"] if name else [])])
    if not is_whole:
        is_predicate = message.partition(" ")[0] in PREDICATES
        message = (
            f"{place or 'the settings'} {message}"
            if is_predicate
            else ": ".join(filter(None, (place, message)))
        )
    return ": ".join(filter(None, (facts, message)))


def place_of(loc: Loc) -> str:
    """Return the path of a setting, such as `workers[0].name`, without pydantic's kind of worker."""
    kinds = get_args(Kind)
    names = (f"[{part}]" if isinstance(part, int) else part for part in loc if part not in kinds)
    return ".".join(names).replace(".[", "[")


def message_of(fault: ErrorDetails, fields: Sequence[str] = ()) -> str:
    """Return the text that follows the field's name in an error. `fields` are the names to suggest."""
    kind, facts = fault["type"], cast(Mapping[str, Any], fault.get("ctx", {}))
    if kind in BOUNDS:
        fact, words = BOUNDS[kind]
        return f"must be {words} {facts[fact]}"
    special: dict[str, Callable[[], str]] = {
        "missing": lambda: "is missing",
        "extra_forbidden": lambda: _unknown_key(str(fault["loc"][-1]), fields),
        "literal_error": lambda: f"must be {facts['expected']}.{did_you_mean(fault['input'], _words(facts['expected']))}".rstrip("."),
        "union_tag_invalid": lambda: (
            f"must have one of these kinds: {facts['expected_tags']}.{did_you_mean(facts['tag'], _words(facts['expected_tags']))}".rstrip(".")
        ),
        "union_tag_not_found": lambda: "must have a `kind`, such as `kind: openai`. See docs/settings.md for all kinds",
        "string_pattern_mismatch": lambda: PATTERNS.get(str(facts.get("pattern")), NAME_WORDS),
        "string_too_short": lambda: f"must have at least {_count(facts['min_length'], 'character', 'characters')}",
        "string_too_long": lambda: f"must have at most {_count(facts['max_length'], 'character', 'characters')}",
        "too_short": lambda: f"must have at least {_count(facts['min_length'], 'entry', 'entries')}, but has {facts['actual_length']}",
        "too_long": lambda: f"must have at most {_count(facts['max_length'], 'entry', 'entries')}, but has {facts['actual_length']}",
    }  # fmt: skip
    if kind in special:
        return special[kind]()
    begins = kind.partition("_")[0]
    if begins in TYPES and fault["msg"].startswith("Input should be"):
        return f"must be {TYPES[begins]}"
    return fault["msg"].removeprefix("Value error, ").replace("Input should be", "must be")


def fields_at(model: type[BaseModel], loc: Loc) -> list[str]:
    here = [model]
    for part in loc[:-1]:
        inner = [
            each
            for above in here
            if isinstance(part, str) and part in above.model_fields
            for each in _models_in(above.model_fields[part].annotation)
        ]
        of_kind = [each for each in here if part in get_args(_annotation(each, "kind"))]
        here = inner or of_kind or here
    return list(dict.fromkeys(name for each in here for name in each.model_fields))


def read_yaml_file(path: str | Path, what: str) -> tuple[object, yaml.Node | None]:
    """Return the parsed YAML of a file, and its nodes. `what` is the kind of the file for error messages.

    Raises:
        SettingsError: the file cannot be read, is not UTF-8 or YAML, or has a key twice.
    """
    try:
        return read_yaml(Path(path).read_text(encoding="utf-8"))
    except OSError as exc:
        raise SettingsError(f"The {what} {path} cannot be read: {exc.strerror}.") from exc
    except UnicodeDecodeError as exc:
        raise SettingsError(f"The {what} {path} is not UTF-8: {exc}. Save it as UTF-8.") from exc
    except yaml.YAMLError as exc:
        raise SettingsError(f"{path} is not valid YAML: {_explain_yaml(exc)}.") from exc
    except SettingsError as exc:
        raise SettingsError(f"{path} cannot be used: {exc.message}.") from exc


def read_yaml(text: str) -> tuple[object, yaml.Node | None]:
    """Return the parsed YAML and its nodes, which have lines. Raise SettingsError for a repeated key."""
    loader: Any = yaml.SafeLoader(text)
    try:
        root: yaml.Node | None = loader.get_single_node()
        _check_keys(root, set())
        return (None if root is None else loader.construct_document(root)), root
    finally:
        loader.dispose()


def _explain_yaml(error: yaml.YAMLError) -> str:
    """Return the YAML parser's message with the line and column."""
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    return f"{where}{getattr(error, 'problem', None) or getattr(error, 'reason', None) or error}"


def line_of(root: yaml.Node | None, loc: Loc) -> int | None:
    """Return the line (from 1) of the setting at `loc`, or of its nearest parent, or None if that is unknown."""
    node, line = root, None
    for part in loc:
        if isinstance(node, yaml.MappingNode):
            entry = next(((key, value) for key, value in _entries(node) if key.value == str(part)), None)
            if entry is None:
                continue  # a kind of worker, which pydantic inserts, or a missing field
            line, node = entry[0].start_mark.line + 1, entry[1]
        elif isinstance(node, yaml.SequenceNode):
            items = cast(list[yaml.Node], node.value)
            named = (each for each in items if isinstance(part, str) and _name_in(each) == part)
            item = next(named, None) if isinstance(part, str) else items[part] if part < len(items) else None
            if item is not None:
                line, node = item.start_mark.line + 1, item
    return line or (root.start_mark.line + 1 if root is not None and loc else None)


def _check_keys(node: yaml.Node | None, checked_nodes: set[int]) -> None:
    if node is None or id(node) in checked_nodes:  # an alias refers to a node that was checked already
        return
    checked_nodes.add(id(node))
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in _entries(node):
            line, name = key.start_mark.line + 1, str(key.value)
            if name in lines and name != "<<":
                message = f"line {line}: `{name}` is already set on line {lines[name]}. Remove one of the two"
                raise SettingsError(message)
            lines[name] = line
            _check_keys(value, checked_nodes)
    elif isinstance(node, yaml.SequenceNode):
        for each in cast(list[yaml.Node], node.value):
            _check_keys(each, checked_nodes)


def _entries(node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    return iter(cast(list[tuple[yaml.Node, yaml.Node]], node.value))


def _name_in(node: yaml.Node) -> str | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((str(value.value) for key, value in _entries(node) if key.value == "name"), None)


def _worker_name(data: object, loc: Loc) -> str | None:
    if len(loc) < 2 or loc[0] != "workers" or not isinstance(loc[1], int) or not isinstance(data, dict):
        return None
    workers: Any = cast(dict[str, Any], data).get("workers")
    worker: Any = cast(list[Any], workers)[loc[1]] if isinstance(workers, list) else None
    name: Any = cast(dict[str, Any], worker).get("name") if isinstance(worker, dict) else None
    return name if isinstance(name, str) else None


def _unknown_key(name: str, fields: Sequence[str]) -> str:
    if name in RENAMED:
        return f"was renamed to `{RENAMED[name]}`"
    return f"is not a known setting.{did_you_mean(name, fields)}".rstrip(".")


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _words(text: str) -> list[str]:
    """Return the values in pydantic's list of them, such as `'a', 'b' or 'c'`."""
    return re.findall(r"'([^']*)'", text)


def _annotation(model: type[BaseModel], field: str) -> object:
    return model.model_fields[field].annotation if field in model.model_fields else None


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _models_in(each)
