"""Traversal of a JSON Schema: which keywords contain schemas, and which of these apply to the same value.

It covers the keywords of all drafts together, but does not know what they mean.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]

ONE = frozenset([
    "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
])  # fmt: skip
LISTS = frozenset(["allOf", "anyOf", "items", "oneOf", "prefixItems"])
MAPS = frozenset(
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"]
)
SAME_VALUE = frozenset(
    ["allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "then"]
)
"""Keywords whose schemas are checked against the value itself, not against a part of it."""


def children(schema: Schema) -> Iterator[tuple[Path, Schema]]:
    """Yield each schema directly inside `schema`, with its path relative to `schema`."""
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
    """Yield `root` and every schema inside it at any depth, each with its path."""
    pending: list[tuple[Path, Schema]] = [((), root)]
    while pending:
        path, schema = pending.pop()
        yield path, schema
        pending += [((*path, *below), each) for below, each in children(schema)]


def target(root: Schema, ref: str) -> Schema | None:
    """Return the schema that a `$ref` such as `#/$defs/name` refers to in `root`, or None if there is none."""
    node: object = root
    for part in ref.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = cast(Mapping[str, object], node).get(name)
        elif isinstance(node, Sequence) and not isinstance(node, str) and name.isdecimal():
            items = cast(Sequence[object], node)
            node = items[int(name)] if len(name) < 7 and int(name) < len(items) else None
        else:
            return None
    return cast(Schema, node) if isinstance(node, Mapping) else None


def follow(root: Schema, schema: Schema) -> Schema:
    for _ in range(100):
        ref = schema.get("$ref")
        if not isinstance(ref, str) or (definition := target(root, ref)) is None:
            break
        schema = definition
    return schema
