"""vLLM's own parsers on what models write, through the reader that the engine uses."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

from serving.deployments.tool_parsing import ToolReader, check_parser
from serving.workers.vllm import EngineCall, WrittenCall

READ: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "read",
        "description": "Reads a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}
HERMES = (
    'Let me look.<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "read", "arguments": {"path": "b"}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(Path("models/smollm2-135m"))  # pyright: ignore[reportUnknownMemberType]


def reader(tokenizer: Any, choice: str | dict[str, Any] | None = None) -> ToolReader:
    return ToolReader.of("hermes", tokenizer, EngineCall([], tools=[READ], tool_choice=choice))


def test_words_and_calls_are_told_apart(tokenizer: Any):
    text, calls = reader(tokenizer).read(HERMES)
    assert text == "Let me look."
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("read", {"path": "a"}),
        ("read", {"path": "b"}),
    ]


def test_an_answer_without_calls_is_words(tokenizer: Any):
    assert reader(tokenizer).read("It is four.") == ("It is four.", ())


def test_special_tokens_stay_where_the_parser_looks_for_them(tokenizer: Any):
    assert reader(tokenizer).keeps_special_tokens


def test_an_answer_that_must_call_is_held_to_a_list_of_calls(tokenizer: Any):
    required = reader(tokenizer, "required")
    assert required.constraint is not None
    assert required.constraint.json is not None
    written = '[{"name": "read", "parameters": {"path": "a"}}]'
    assert required.read(written) == ("", (WrittenCall("read", '{"path": "a"}'),))
    assert required.read(written[:20]) == ("", ())


def test_a_named_tool_gets_the_answer_as_its_arguments(tokenizer: Any):
    named = reader(tokenizer, {"type": "function", "function": {"name": "read"}})
    assert named.read('{"path": "a"}') == ("", (WrittenCall("read", '{"path": "a"}'),))


def test_a_parser_that_vllm_does_not_have_is_an_error_before_any_call():
    check_parser("")
    check_parser("hermes")
    with pytest.raises(KeyError, match="no-such-parser"):
        check_parser("no-such-parser")
