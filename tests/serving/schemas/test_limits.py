"""Limits on clients' schemas. Others are rejected quickly, with their place."""

import time
from typing import Any

import pytest

from conductor.errors import BadTask
from serving.api.answer_format import read_schema

Json = dict[str, Any]
OBJECT: Json = {"type": "object"}


def of(part: Json) -> Json:
    return {"type": "object", "properties": {"a": part}}


def nested(levels: int) -> Json:
    schema: Json = {}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return schema


def doubling(levels: int) -> Json:
    """Return definitions that each refer twice to the next. The last is checked 2**levels times."""
    twice = {
        f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]}
        for n in range(levels)
    }
    return of({"$ref": "#/$defs/d0"}) | {"$defs": twice | {f"d{levels}": {"type": "string"}}}


def widening(levels: int) -> Json:
    """Return a schema that refers three times to the next level through properties. No value is checked twice, but
    there are 3**levels checks in all.
    """
    thrice = {
        f"d{n}": {"anyOf": [{"properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}}} for _ in range(3)]} for n in range(levels)
    }  # fmt: skip
    return of({"$ref": "#/$defs/d0"}) | {"$defs": thrice | {f"d{levels}": {"type": "string"}}}


PATTERNS = {
    "type": "object",
    "properties": {f"p{n}": {"pattern": rf"\p{{L}}{{1,{n + 20}}}"} for n in range(60)},
}
REFUSED: dict[str, tuple[Any, str]] = {
    "no object": ([1], ""),
    "no schema": (of({"type": "strin"}), ".properties.a.type"),
    "a boolean in place of a number": (OBJECT | {"minProperties": True}, ".minProperties"),
    "another server": (of({"$ref": "http://a.example/s.json"}), ".properties.a.$ref"),
    "a file": (of({"$ref": "file:///etc/passwd"}), ".properties.a.$ref"),
    "a relative reference": (of({"$ref": "other.json#/a"}), ".properties.a.$ref"),
    "an anchor": (of({"$ref": "#there"}), ".properties.a.$ref"),
    "nothing there": (of({"$ref": "#/$defs/b"}), ".properties.a.$ref"),
    "a dynamic reference": (of({"$dynamicRef": "#a"}), ".properties.a.$dynamicRef"),
    "another base": (of({"$id": "http://a.example/"}), ".properties.a.$id"),
    "an unknown draft": (OBJECT | {"$schema": "http://a.example/draft"}, ".$schema"),
    "an endless reference": (of({"$ref": "#/$defs/b"}) | {"$defs": {"b": {"$ref": "#/$defs/b"}}}, ".$defs.b.$ref"),
    "an endless choice": (of({"anyOf": [{"$ref": "#/properties/a"}]}), ".properties.a.anyOf.0.$ref"),
    "a pattern that is none": (of({"pattern": "("}), ".properties.a.pattern"),
    "a pattern of gigabytes": (of({"pattern": "(((a{100}){100}){100}){100}"}), ".properties.a.pattern"),
    "a long pattern": (of({"pattern": "a" * 3000}), ".properties.a.pattern"),
    "half a character": (of({"description": "\ud800"}), ".properties.a.description"),
    "a number without end": (of({"maximum": float("inf")}), ".properties.a.maximum"),
    "a number too large": (of({"maximum": 10**400}), ".properties.a.maximum"),
    "a list at the root": ({"type": "array"}, ""),
    "anything at the root": ({}, ""),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "place"), REFUSED.values(), ids=REFUSED.keys())
def test_an_unsupported_schema_is_rejected_with_its_place(schema: Any, place: str):
    with pytest.raises(BadTask) as caught:
        read_schema(schema, "it", True, "response_format.json_schema")
    assert caught.value.param == f"response_format.json_schema.schema{place}"


@pytest.mark.parametrize(
    "schema",
    [
        OBJECT | nested(90),
        OBJECT | nested(5000),
        doubling(40),
        widening(30),
        OBJECT | {"enum": ["a" * 300_000]},
        PATTERNS,
    ],
    ids=["deep", "far too deep", "doubling", "widening", "long", "patterns"],
)
def test_a_schema_that_is_slow_to_check_is_rejected_quickly(schema: Json):
    began_s = time.process_time()
    with pytest.raises(BadTask):
        read_schema(schema, "it", True, "text.format")
    assert time.process_time() - began_s < 3


VALID = {
    "the root by reference": {"$ref": "#/$defs/a", "$defs": {"a": OBJECT}},
    "a tree": {"$ref": "#/$defs/n", "$defs": {"n": of({"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]})}},
    "an older draft": {"$schema": "http://json-schema.org/draft-07/schema#", **of({"type": "string"})},
    "a reference with an escape": of({"$ref": "#/$defs/a~1b"}) | {"$defs": {"a/b": {"type": "null"}}},
    "pydantic's decimals": of({"pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}),
    "names like keywords": {"type": "object", "properties": {"$ref": {"type": "string"}, "pattern": {"type": "string"}}},
    "an id": {"$id": "https://a.example/s.json", **of({"$ref": "#/$defs/x"}), "$defs": {"x": {"type": "null"}}},
}  # fmt: skip


@pytest.mark.parametrize("schema", VALID.values(), ids=VALID.keys())
def test_schemas_of_common_clients_are_accepted(schema: Json):
    assert read_schema(schema, "it", True, "text.format").schema == schema


def test_a_non_strict_schema_may_have_any_root():
    assert not read_schema({"type": "array"}, None, None, "text.format").strict
    assert read_schema({"type": "array"}, None, True, "output_config.format", any_root=True).strict


def test_a_schema_name_has_openais_form():
    with pytest.raises(BadTask) as caught:
        read_schema(OBJECT, "no good", True, "text.format")
    assert caught.value.param == "text.format.name"
