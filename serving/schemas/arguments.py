"""Schemas of tool arguments in the form that OpenAI and Anthropic accept.

The root must be one object with `properties`, without `not`, `$ref` or a union (`anyOf`, `oneOf`, `allOf`).
Each branch of a union is called a variant here.
"""

import json
from collections.abc import Mapping
from typing import Any, cast

Schema = dict[str, Any]
UNIONS = ("anyOf", "oneOf", "allOf")
CONDITIONS = ("not", "if", "then", "else", "enum", "const", "dependentSchemas", "dependentRequired")
"""Keywords that OpenAI rejects at the root, in addition to unions."""
HOW = {
    "anyOf": "The arguments must match at least one of these JSON Schemas",
    "oneOf": "The arguments must match exactly one of these JSON Schemas",
    "allOf": "The arguments must match all of these JSON Schemas",
}
MOST_REFERENCES = 8
"""Maximum number of references that are followed, one after the other."""
MOST_VARIANTS = 256
"""Maximum number of variants that are read, including nested ones. Without a limit, references could make a
small schema expand without end."""
GROWTH, LEAST_BYTES = 4, 32_768
"""Maximum total size of the variants that are read: `GROWTH` times the size of the schema, but at least
`LEAST_BYTES` bytes. A reference can add a megabyte to each variant. A nested variant is counted at each
level."""


class _Budget:
    """Number of variants and bytes that may still be read."""

    def __init__(self, n_bytes: int) -> None:
        self._variants, self._bytes = MOST_VARIANTS, n_bytes

    def spend(self, variant: Schema) -> bool:
        self._variants -= 1
        if self._variants >= 0 and self._bytes > 0:
            self._bytes -= len(_text(variant))
        return self._variants >= 0 and self._bytes >= 0


def object_schema(parameters: Mapping[str, Any] | None) -> tuple[Schema, str]:
    """Convert `parameters` to an object without a union, which may accept more. The second value describes
    lost rules.
    """
    whole = parameters if parameters is not None else dict[str, Any]()
    root = _resolve(whole, whole)
    lost_rules = [f"{HOW[union]}: {_text(root[union])}" for union in UNIONS if root.get(union)]
    if conditions := {name: root[name] for name in CONDITIONS if name in root}:
        lost_rules.append(f"The arguments must also match this JSON Schema: {_text(conditions)}")
    budget = _Budget(max(LEAST_BYTES, GROWTH * len(_text(whole))) if lost_rules else 0)
    return _flatten(root, root, budget), "\n".join(lost_rules)


def _flatten(part: Schema, root: Schema, budget: _Budget) -> Schema:
    """Return `part`, a subschema of `root`, as the schema of one object."""
    schema = {name: value for name, value in part.items() if name not in (*UNIONS, *CONDITIONS)}
    schema["type"] = "object"
    schema["properties"] = _mapping(schema.get("properties"))
    names = schema.pop("required", None)
    if isinstance(names, list):
        schema["required"] = [name for name in cast(list[Any], names) if isinstance(name, str)]
    for union in UNIONS:
        branches = cast(list[Any], part[union]) if isinstance(part.get(union), list) else []
        variants: list[Schema] = []
        is_whole = True
        for each in branches:
            variant = _resolve(cast(Schema, each), root) if isinstance(each, Mapping) else {"type": "null"}
            if not _may_be_object(variant):
                continue
            if not (is_whole := budget.spend(variant)):
                break
            variants.append(_flatten(variant, root, budget))
        _merge(schema, union, variants, is_whole=is_whole)
    return schema


def _merge(schema: Schema, union: str, variants: list[Schema], *, is_whole: bool) -> None:
    """Add the variants' properties. If not all were read, a union makes none required or forbidden."""
    properties = schema["properties"] = dict(schema["properties"])
    for name in dict.fromkeys(name for variant in variants for name in variant["properties"]):
        schemas = [variant["properties"][name] for variant in variants if name in variant["properties"]]
        own = [properties[name]] if name in properties and union == "allOf" else []
        if name in properties and not own:
            continue  # the root's own rule applies to every variant
        properties[name] = _together([*own, *schemas], "allOf" if union == "allOf" else "anyOf")
    if not is_whole and union != "allOf":
        return
    needed = [set[str](variant.get("required", ())) for variant in variants]
    common = (
        (set[str].union if union == "allOf" else set[str].intersection)(*needed) if needed else set[str]()
    )
    if required := [name for name in properties if name in {*schema.get("required", ()), *common}]:
        schema["required"] = required
    is_closed = (any if union == "allOf" else all)(
        variant.get("additionalProperties") is False for variant in variants
    )
    if variants and is_closed and "additionalProperties" not in schema:
        schema["additionalProperties"] = False
    for words in ("$defs", "definitions"):
        for variant in variants:
            if words in variant:
                schema[words] = {**_mapping(variant[words]), **_mapping(schema.get(words))}


def _together(schemas: list[Any], union: str) -> Any:
    different = list({_text(each): each for each in reversed(schemas)}.values())[::-1]
    return different[0] if len(different) == 1 else {union: different}


def _resolve(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Schema:
    """Replace the `$ref` at the root of `schema` by what it refers to. Keywords next to it take precedence."""
    resolved = dict(schema)
    for _ in range(MOST_REFERENCES):
        reference = resolved.pop("$ref", None)
        if not isinstance(reference, str):
            break
        target: Any = root
        for name in reference.removeprefix("#").strip("/").split("/"):
            key = name.replace("~1", "/").replace("~0", "~")
            target = cast(Mapping[str, Any], target).get(key) if isinstance(target, Mapping) else None
        resolved = {**_mapping(target), **resolved}
    resolved.pop("$ref", None)
    return resolved


def _may_be_object(schema: Schema) -> bool:
    kind = schema.get("type", "object")
    return kind == "object" or (isinstance(kind, list) and "object" in kind)


def _mapping(value: object) -> Schema:
    return dict(cast(Mapping[str, Any], value)) if isinstance(value, Mapping) else {}


def _text(schema: object) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
