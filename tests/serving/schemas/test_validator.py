"""Validation of answers: unambiguous JSON that satisfies the schema."""

import time

import pytest

from conductor.model.call import AnswerFormat
from serving.api.answer_format import read_schema
from serving.schemas.validator import find_fault, without_fences

ANSWER_FORMAT = AnswerFormat(
    {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
)
WRONG = {
    "prose": "It is 1.",
    "prose before": 'So: {"n": 1}',
    "prose after": '{"n": 1} OK?',
    "two values": '{"n": 1}{"n": 1}',
    "a fence": '```json\n{"n": 1}\n```',
    "nothing": "",
    "NaN": '{"n": NaN}',
    "infinity": '{"n": -Infinity}',
    "a number out of range": '{"n": 1e999}',
    "a number of 400 digits": '{"n": ' + "9" * 400 + "}",
    "a name twice": '{"n": 1, "n": 1}',
    "half a surrogate pair": '{"n": 1, "m": "\\ud800"}',
    "half of one in the text": '{"n": 1, "\ud800": 1}',
    "a byte order mark": '\ufeff{"n": 1}',
    "single quotes": "{'n': 1}",
    "a trailing comma": '{"n": 1,}',
    "a cut": '{"n": 1',
    "endless brackets": "[" * 1_000_000,
    "a word for a number": '{"n": "1"}',
    "a fraction": '{"n": 1.5}',
    "too much": '{"n": 1, "m": 1}',
    "another type": "[1]",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG.keys())
def test_a_fault_of_an_answer_is_described_in_a_sentence(text: str):
    began_s = time.thread_time()
    fault = find_fault(text, ANSWER_FORMAT)
    assert fault
    assert fault.endswith(".")
    assert len(fault) < 600
    assert time.thread_time() - began_s < 1


@pytest.mark.parametrize("text", ['{"n": 1}', ' {"n":1.0}\n', '{"n": -12345678901234567890}'])
def test_a_valid_answer_has_no_fault(text: str):
    assert find_fault(text, ANSWER_FORMAT) is None


def test_without_a_schema_any_object_is_valid():
    assert find_fault('{"a": [1]}', AnswerFormat()) is None
    assert find_fault("[1]", AnswerFormat()) == "The answer is not a JSON object."


def test_formats_are_checked():
    dates = AnswerFormat({"type": "object", "properties": {"d": {"type": "string", "format": "date"}}})
    assert find_fault('{"d": "2026-11-23"}', dates) is None
    assert "2026-13-01" in str(find_fault('{"d": "2026-13-01"}', dates))


@pytest.mark.parametrize("pattern", ["^(a+)+$", r"^(?=(a+)+$)(a+)+$", r"(a+)+\1$", "(a|a)*b"])
def test_every_pattern_is_matched_quickly(pattern: str):
    answer_format = AnswerFormat({"type": "object", "additionalProperties": {"pattern": pattern}})
    began_s = time.thread_time()
    find_fault('{"a": "' + "a" * 50_000 + '!"}', answer_format)
    assert time.thread_time() - began_s < 1


def test_a_code_fence_is_removed_only_around_the_whole_answer():
    assert without_fences('```json\n{"n": 1}\n```\n') == '{"n": 1}'
    assert without_fences('```\n{"n": 1}\n```') == '{"n": 1}'
    assert without_fences('Here:\n```json\n{"n": 1}\n```') is None
    assert without_fences('{"n": 1}') is None


def operation(name: str) -> dict[str, object]:
    properties = {"left": {"$ref": "#/$defs/term"}, "op": {"const": name}}
    return {"type": "object", "properties": properties, "required": ["op", "left"]}


@pytest.mark.parametrize("word", ["anyOf", "oneOf"])
def test_a_deep_tree_with_many_alternatives_is_validated_quickly(word: str):
    term = {word: [*(operation(name) for name in "abcdefgh"), {"type": "integer"}]}
    schema = {"type": "object", "properties": {"e": {"$ref": "#/$defs/term"}}, "required": ["e"]}
    answer_format = read_schema(schema | {"$defs": {"term": term}}, "it", True, "text.format")
    right, wrong = ('{"left":' * 60 + bottom + ', "op": "h"}' * 60 for bottom in ("1", '"x"'))
    began_s = time.thread_time()
    assert find_fault(f'{{"e": {right}}}', answer_format) is None
    assert "nested too deeply" in str(find_fault(f'{{"e": {wrong}}}', answer_format))
    assert "At" in str(find_fault('{"e": {"op": "a"}}', answer_format))
    assert "required" in str(find_fault("{}", answer_format))
    assert time.thread_time() - began_s < 1
