"""The parts of a JSON Schema: which keywords hold schemas, and which of those look at the same value.

Knows every draft's words at once; does not know what any of them means.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]

ONE = frozenset(
    [
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
)
LISTS = frozenset(["allOf", "anyOf", "items", "oneOf", "prefixItems"])
MAPS = frozenset(
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"]
)
SAME_VALUE = frozenset(
    ["allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "then"]
)
"""Their schemas are checked against the value itself, not against a part of it."""


def children(schema: Schema) -> Iterator[tuple[Path, Schema]]:
    """The schemas directly inside `schema`, with their paths from it."""
    for keyword, value in schema.items():
        if keyword in ONE and isinstance(value, Mapping):
            yield (keyword,), cast(Schema, value)
        elif keyword in LISTS and isinstance(value, Sequence) and not isinstance(value, str):
            for index, each in enumerate(cast(Sequence[object], value)):
                if isinstance(each, Mapping):
                    yield (keyword, index), cast(Schema, each)
        elif keyword in MAPS and isinstance(value, Mapping):
            for name, each in cast(Mapping[str, object], value).items():
                if isinstance(each, Mapping):
                    yield (keyword, name), cast(Schema, each)


def subschemas(root: Schema) -> Iterator[tuple[Path, Schema]]:
    """`root` and every schema inside it, with their paths."""
    waiting: list[tuple[Path, Schema]] = [((), root)]
    while waiting:
        path, schema = waiting.pop()
        yield path, schema
        waiting += [((*path, *below), each) for below, each in children(schema)]


def target(root: Schema, ref: str) -> Schema | None:
    """What a `$ref` such as `#/$defs/name` names in `root`; None where there is nothing."""
    found: object = root
    for part in ref.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = cast(Mapping[str, object], found).get(name)
        elif isinstance(found, Sequence) and not isinstance(found, str) and name.isdecimal():
            items = cast(Sequence[object], found)
            found = items[int(name)] if len(name) < 7 and int(name) < len(items) else None
        else:
            return None
    return cast(Schema, found) if isinstance(found, Mapping) else None


def follow(root: Schema, schema: Schema) -> Schema:
    """`schema`, or what it stands for where it is a `$ref`."""
    for _ in range(100):
        ref = schema.get("$ref")
        if not isinstance(ref, str) or (found := target(root, ref)) is None:
            break
        schema = found
    return schema


def written(path: Path) -> str:
    """A path as a caller writes it: `properties.tags.items`."""
    return ".".join(str(part) for part in path)
