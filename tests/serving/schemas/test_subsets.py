"""Subsets of JSON Schema for each provider. They use only supported keywords, and never exclude a valid answer."""

from typing import Any

import pytest
from hypothesis import given

from conductor.model.call import AnswerFormat
from conductor.model.messages import NO_TOOLS, Tool, Toolset
from serving.schemas import anthropic, gemini, openai, vllm
from tests.serving.fuzz_schemas import check_claude, check_gemini, check_openai
from tests.serving.random_schemas import ROOTS, SchemaAndValue, is_right, whole

Json = dict[str, Any]


def closed(**properties: Json) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def native(translate: Any, schema: Json) -> Any:
    translation = translate(AnswerFormat(schema), NO_TOOLS)
    return translation.native.schema if translation.native else None


@given(ROOTS.map(whole))
def test_every_provider_gets_a_supported_schema_that_excludes_no_valid_answer(pair: SchemaAndValue):
    schema, value = pair
    answer_format = AnswerFormat(schema, "it")
    for translate in (openai.translate, gemini.translate, vllm.translate):
        native_format = translate(answer_format, NO_TOOLS).native
        assert native_format is None or is_right(dict(native_format.schema or {}), value), (
            translate.__module__
        )
    for_openai, for_claude, for_gemini = (
        each.translate(answer_format, NO_TOOLS).native for each in (openai, anthropic, gemini)
    )
    assert for_openai is not None
    check_openai({"model": "gpt-5", "response_format": openai.response_format(for_openai)})
    if for_claude:
        check_claude({"output_config": {"format": anthropic.output_format(for_claude)}})
    if for_gemini:
        check_gemini({"generationConfig": {"responseJsonSchema": for_gemini.schema}})


def test_keywords_that_a_provider_lacks_are_stated_in_the_instructions():
    schema = closed(word={"type": "string", "minLength": 2, "default": "x"}, list={"type": "array", "items": {"type": "null"}, "maxItems": 2})  # fmt: skip
    translation = anthropic.translate(AnswerFormat(schema), NO_TOOLS)
    assert translation.native is not None
    assert translation.native.schema == closed(
        word={"type": "string"}, list={"type": "array", "items": {"type": "null"}}
    )
    assert '"minLength": 2' in translation.instructions
    assert translation.notes == (
        "The schema of the answer was also added to the prompt, because the provider does not support these keywords: maxItems, minLength.",
    )


def test_a_fully_supported_schema_is_sent_without_instructions():
    schema = closed(a={"type": "integer"})
    for module in (openai, anthropic, gemini):
        translation = module.translate(AnswerFormat(schema), NO_TOOLS)
        assert translation.native == AnswerFormat(schema)
        assert not translation.instructions
    assert vllm.translate(AnswerFormat(schema), NO_TOOLS).instructions, "a grammar tells a model nothing"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]},
        closed(a={"type": "null"}) | {"required": []},
        {"anyOf": [closed(a={"type": "null"})]},
        closed(a={}),
    ],
    ids=["open", "may be left out", "a choice at the root", "anything"],
)
def test_a_schema_that_openai_rejects_as_strict_is_sent_as_non_strict(schema: Json):
    translation = openai.translate(AnswerFormat(schema), NO_TOOLS)
    assert translation.native is not None
    assert not translation.native.strict
    assert translation.native.schema == schema
    assert translation.notes


def test_a_schema_that_a_provider_cannot_represent_is_stated_in_the_instructions():
    chain = {
        "$ref": "#/$defs/n",
        "$defs": {"n": closed(next={"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]})},
    }
    assert native(anthropic.translate, chain) is None
    assert native(gemini.translate, chain) is None
    assert native(vllm.translate, chain) == chain
    counts = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert native(anthropic.translate, counts) is None
    assert native(anthropic.translate, {"type": "object"}) is None


def test_equivalent_keywords_are_translated():
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/w"}},
        "definitions": {"w": {"const": 1}},
    }
    assert native(gemini.translate, schema) == {
        "type": "object", "properties": {"a": {"$ref": "#/$defs/w"}}, "$defs": {"w": {"enum": [1]}}
    }  # fmt: skip
    choice = closed(a={"oneOf": [{"type": "null"}, {"type": "integer"}]}, b={"type": ["string", "null"], "format": "date"})  # fmt: skip
    assert native(anthropic.translate, choice) == closed(
        a={"anyOf": [{"type": "null"}, {"type": "integer"}]},
        b={"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    )


def test_with_tools_only_some_providers_get_a_response_format():
    tools = Toolset((Tool("clock"),))
    answer_format = AnswerFormat(closed(a={"type": "null"}))
    both = [
        each.__module__.rsplit(".", 1)[1] + "." + each.__name__
        for each in (openai.translate, openai.translate_compatible, anthropic.translate, gemini.translate, vllm.translate)
        if each(answer_format, tools).native
    ]  # fmt: skip
    assert both == ["openai.translate", "anthropic.translate"]


def test_a_schema_that_is_slow_to_compile_is_left_to_validation():
    few = closed(**{f"p{n}": {"type": "string", "maxLength": 100 + n} for n in range(3)})
    assert native(vllm.translate, few) == few
    for lengths in (range(100, 110), range(1000, 1001)):
        many = closed(**{f"p{n}": {"type": "string", "maxLength": n} for n in lengths})
        assert native(vllm.translate, many) == closed(**{f"p{n}": {"type": "string"} for n in lengths})
    assert native(vllm.translate, closed(**{f"p{n}": {"type": "null"} for n in range(301)})) is None
    objects = {f"o{m}": closed(**{f"p{n}": {"type": "null"} for n in range(200)}) for m in range(11)}
    assert native(vllm.translate, closed(**objects)) is None
