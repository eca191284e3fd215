"""Tool schemas as providers require them: an object with `properties` and nothing else at the root."""

import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conductor.errors import WorkerError
from conductor.model.call import Call
from conductor.model.messages import Message, Tool, Toolset
from serving.schemas.arguments import object_schema
from tests.serving.workers.test_native_turns import PROVIDERS, Provider, ask, make
from tests.wires.server import Answer, serving

Json = dict[str, Any]
ROOT_REFUSED = ("anyOf", "oneOf", "allOf", "enum", "not", "const", "if", "then", "else", "$ref")
EMPTY: Json = {"type": "object", "properties": {}}
A: Json = {
    "type": "object",
    "properties": {"kind": {"const": "a"}, "x": {"type": "string"}},
    "required": ["kind", "x"],
}
B: Json = {
    "type": "object",
    "properties": {"kind": {"const": "b"}, "y": {"type": "integer"}},
    "required": ["kind"],
}
KIND: Json = {"anyOf": [{"const": "a"}, {"const": "b"}]}
BOTH: Json = {
    "type": "object",
    "properties": {"kind": KIND, "x": {"type": "string"}, "y": {"type": "integer"}},
    "required": ["kind"],
}
ALL: Json = {
    "type": "object",
    "properties": {"kind": {"allOf": KIND["anyOf"]}, "x": {"type": "string"}, "y": {"type": "integer"}},
    "required": ["kind", "x"],
}
DEFS: Json = {"$defs": {"A": A, "B": B}}
DRAFT: Json = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
# schema, the schema that is sent, and words that the description must contain
SCHEMAS: dict[str, tuple[Any, Json, str]] = {
    "none": (None, EMPTY, ""),
    "empty": ({}, EMPTY, ""),
    "no properties": ({"type": "object"}, EMPTY, ""),
    "with a draft": ({**DRAFT, "type": "object"}, {**DRAFT, **EMPTY}, ""),
    "closed, no properties": ({"type": "object", "additionalProperties": False}, {**EMPTY, "additionalProperties": False}, ""),
    "properties alone": ({"properties": {"x": {}}}, {"type": "object", "properties": {"x": {}}}, ""),
    "nulls": ({"type": "object", "properties": None, "required": None}, EMPTY, ""),
    "or null": ({"type": ["object", "null"]}, EMPTY, ""),
    "anyOf": ({"anyOf": [A, B]}, BOTH, "at least one"),
    "oneOf": ({"type": "object", "oneOf": [A, B]}, BOTH, "exactly one"),
    "allOf": ({"allOf": [A, B]}, ALL, "all of"),
    "by reference": ({"anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], **DEFS}, {**DEFS, **BOTH}, "at least one"),
    "nested": ({"anyOf": [{"oneOf": [A, B]}]}, BOTH, "at least one"),
    "or nothing": ({"anyOf": [A, {"type": "null"}]}, {**A}, "at least one"),
    "one of several fields": (
        {"type": "object", "properties": {"x": {}, "y": {}}, "anyOf": [{"required": ["x"]}, {"required": ["y"]}]},
        {"type": "object", "properties": {"x": {}, "y": {}}},
        "at least one",
    ),
    "a reference": ({"$ref": "#/$defs/A", **DEFS}, {**DEFS, **A}, ""),
    "not": ({"type": "object", "not": {"required": ["x"]}}, EMPTY, "must also match"),
    "if": ({**A, "if": {}, "then": {}}, A, "must also match"),
    "closed variants": (
        {"anyOf": [{**A, "additionalProperties": False}, {**B, "additionalProperties": False}]},
        {**BOTH, "additionalProperties": False},
        "at least one",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "expected", "description"), SCHEMAS.values(), ids=SCHEMAS.keys())
@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=PROVIDERS.keys())
async def test_each_provider_gets_one_object_schema(
    provider: Provider, schema: Any, expected: Json, description: str
) -> None:
    tools = Toolset((Tool("find", "Finds.", schema, strict=True),))
    async with serving(provider.wire) as upstream:
        upstream.respond = lambda request: Answer(status=400)
        worker = make(provider, upstream, "sk")
        with pytest.raises(WorkerError):
            await ask(worker, (Message.of("user", "?"),), tools)
        body = upstream.body
        await worker.aclose()
    listed = body["tools"][0]
    tool = (
        listed.get("function")
        or (listed.get("functionDeclarations") or listed.get("function_declarations") or [listed])[0]
    )
    tool_schema = next(
        tool[name]
        for name in ("parameters", "input_schema", "parameters_json_schema", "parametersJsonSchema")
        if name in tool
    )
    assert tool_schema == expected
    assert tool["description"].startswith("Finds.")
    assert (description in tool["description"]) if description else tool["description"] == "Finds."
    if description:
        assert not tool.get("strict"), "a flattened union leaves properties out"


LEAF = st.sampled_from([{"type": "string"}, {"type": "object"}, {"$ref": "#"}, {"$ref": "#/$defs/A"}, {"$ref": "#/anyOf/0"}, True, None, 1])  # fmt: skip
ANY_SCHEMA = st.recursive(
    LEAF,
    lambda inner: st.dictionaries(
        st.sampled_from(
            ["anyOf", "oneOf", "allOf", "$defs", "properties", "required", "type", "not", "$ref", "enum"]
        ),
        inner | st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("Axy"), inner, max_size=2),
        max_size=4,
    ),
    max_leaves=12,
)


@example(schema={"properties": {"type": "string"}, "required": [{"type": "string"}]})
@given(schema=ANY_SCHEMA.filter(lambda each: isinstance(each, dict)))
def test_every_tool_schema_becomes_one_object(schema: Json) -> None:
    object_json, _ = object_schema(schema)
    assert object_json["type"] == "object"
    assert isinstance(object_json["properties"], dict)
    assert isinstance(object_json.get("required", []), list)
    assert not any(word in object_json for word in ROOT_REFUSED)


def test_a_recursive_schema_terminates() -> None:
    endless = {"$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}] * 20}}, "anyOf": [{"$ref": "#/$defs/A"}] * 20}
    schema, _ = object_schema(endless)
    assert schema["properties"] == {}


def test_converting_a_schema_does_not_change_it() -> None:
    schema = {"type": "object", "properties": {"x": {}}, "anyOf": [{"properties": {"y": {}}}]}
    before = repr(schema)
    Call((), tools=Toolset((Tool("f", parameters=schema),)))
    object_schema(schema)
    assert repr(schema) == before


def test_resolved_references_make_a_schema_only_a_few_times_longer() -> None:
    large: Json = {"p": {"enum": [f"value {n}" for n in range(20_000)]}}
    variants = [
        {
            "allOf": [
                {"$ref": "#/$defs/large"},
                {"properties": {"p": {"minLength": n}, f"q{n}": {}}, "required": ["p"]},
            ],
            "additionalProperties": False,
        }
        for n in range(100)
    ]
    schema = {"$defs": {"large": {"properties": large}}, "anyOf": variants}
    object_json, _ = object_schema(schema)
    assert len(json.dumps(object_json)) < 8 * len(json.dumps(schema))
    assert "required" not in object_json
    assert "additionalProperties" not in object_json


def test_a_repeated_reference_to_many_properties_is_resolved_once() -> None:
    names: Json = {f"p{n}": {} for n in range(20_000)}
    schema = {"$defs": {"a": {"properties": names}}, "anyOf": [{"$ref": "#/$defs/a"}] * 256}
    began_s = time.thread_time()
    object_json, _ = object_schema(schema)
    assert time.thread_time() - began_s < 1.5
    assert set(object_json["properties"]) == set(names)
