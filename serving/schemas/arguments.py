"""The JSON Schema of a tool's arguments, as OpenAI and Anthropic take it: one object with `properties`, and no union, `not` or
`$ref` at its root.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

Schema = dict[str, Any]
UNIONS = ("anyOf", "oneOf", "allOf")
CONDITIONS = ("not", "if", "then", "else", "enum", "const", "dependentSchemas", "dependentRequired")
"""What OpenAI refuses at the root beside unions."""
HOW = {
    "anyOf": "The arguments must match at least one of these JSON Schemas",
    "oneOf": "The arguments must match exactly one of these JSON Schemas",
    "allOf": "The arguments must match all of these JSON Schemas",
}
MOST_REFERENCES = 8
"""That are followed from the root, one from another."""
MOST_VARIANTS = 256
"""That are looked into, those inside others included: references may make a small schema endless."""


def object_schema(given: Mapping[str, Any] | None) -> tuple[Schema, str]:
    """Return `given` as one object that takes at least all that it took, and in words what is lost by that."""
    whole = given if given is not None else dict[str, Any]()
    root = _resolve(whole, whole)
    lost = [f"{HOW[union]}: {_text(root[union])}" for union in UNIONS if root.get(union)]
    if conditions := {name: root[name] for name in CONDITIONS if name in root}:
        lost.append(f"The arguments must also match this JSON Schema: {_text(conditions)}")
    return _flatten(root, root, iter(range(MOST_VARIANTS))), "\n".join(lost)


def _flatten(given: Schema, root: Schema, budget: Iterator[int]) -> Schema:
    """`given`, a part of `root`, as one object; `budget` has an item for each variant that may still be looked into."""
    schema = {name: value for name, value in given.items() if name not in (*UNIONS, *CONDITIONS)}
    schema["type"] = "object"
    schema["properties"] = _mapping(schema.get("properties"))
    if not isinstance(schema.get("required", []), list):
        del schema["required"]
    for union in UNIONS:
        listed = cast(list[Any], given[union]) if isinstance(given.get(union), list) else []
        resolved = [
            _resolve(cast(Schema, each), root)
            for _, each in zip(budget, listed, strict=False)
            if isinstance(each, Mapping)
        ]
        _merge(schema, union, [_flatten(each, root, budget) for each in resolved if _may_be_object(each)])
    return schema


def _merge(schema: Schema, union: str, variants: list[Schema]) -> None:
    """Add what the variants take to `schema`."""
    properties = schema["properties"] = dict(schema["properties"])
    for name in dict.fromkeys(name for variant in variants for name in variant["properties"]):
        given = [variant["properties"][name] for variant in variants if name in variant["properties"]]
        own = [properties[name]] if name in properties and union == "allOf" else []
        if name in properties and not own:
            continue  # the root's own rule for it holds in every variant
        properties[name] = _together([*own, *given], "allOf" if union == "allOf" else "anyOf")
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
    different = [each for n, each in enumerate(schemas) if each not in schemas[:n]]
    return different[0] if len(different) == 1 else {union: different}


def _resolve(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Schema:
    """`schema` with what a `$ref` at its root stands for; rules beside the reference win."""
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
