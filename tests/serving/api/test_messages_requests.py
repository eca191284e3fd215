"""Parsing of Anthropic's Messages bodies, and errors in Anthropic's shape."""

import json

import pytest
from anthropic.types import message_create_params
from anthropic.types.shared import ErrorResponse

from conductor.errors import PodiumError
from conductor.model.call import AnswerFormat
from conductor.model.messages import Message, Text, ToolCall, ToolResult
from serving import errors
from serving.api.dialects.messages.dialect import MessagesDialect
from serving.api.dialects.messages.schema import WITHOUT_EFFECT, MessagesRequest
from tests.serving.api.served import Json
from tests.serving.api.test_messages import QUESTION


def claude_codes(*turns: Json) -> Json:
    """Return a request as Claude Code sends it, reduced to its shape."""
    return {
        "model": "a", "max_tokens": 32000, "stream": True, "messages": list(turns),
        "system": [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "Read", "description": "r", "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"}}],
        "metadata": {"user_id": "{}"}, "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "output_config": {"effort": "high"},
    }  # fmt: skip


def test_a_conversation_with_tools_is_parsed_as_claude_code_sends_it() -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    uses = [
        {"type": "tool_use", "id": id, "name": "Read", "input": {"path": id, "all": False}} for id in "ab"
    ]
    request = MessagesDialect().parse(
        json.dumps(
            claude_codes(
                {"role": "user", "content": "Fix it."},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": ""}, *uses]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "b", "content": "two"},
                    {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "one"}], "is_error": True, **cached},
                    {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "tool_reference", "tool_name": "Edit"}]},
                    {"type": "text", "text": "Hurry."},
                ]},
                {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}]},
                {"role": "system", "content": [{"type": "text", "text": "Be quick."}]},
            )
        ).encode()
    )  # fmt: skip
    assert request.conversation == (
        Message.of("system", "S"),
        Message.of("user", "Fix it."),
        Message("assistant", tuple(ToolCall(id, "Read", f'{{"path":"{id}","all":false}}') for id in "ab")),
        Message("tool", (
            ToolResult("b", (Text("two"),)),
            ToolResult("a", (Text("one"),), is_error=True),
            ToolResult("c", (Text("The tool Edit can be called."),)),
        )),
        Message.of("user", "Hurry."),
        Message("assistant", ()),
        Message.of("system", "Be quick."),
    )  # fmt: skip
    assert (request.effort, request.podium.progress) == ("high", "off")
    assert request.left_out == (
        "messages[3].content[0] was ignored, because blocks of type 'server_tool_use' are not supported.",
        "'metadata' was ignored, because it has no effect on this server.",
        "'context_management' was ignored, because it has no effect on this server.",
    )


def test_a_response_schema_may_be_in_the_new_or_the_old_field() -> None:
    response_format = {"type": "json_schema", "schema": {"type": "object"}}
    for fields in ({"output_config": {"format": response_format}}, {"output_format": response_format}):
        request = MessagesDialect().parse(json.dumps(QUESTION | fields).encode())
        assert request.answer_format == AnswerFormat({"type": "object"})


def test_every_field_of_the_sdk_is_supported_rejected_or_without_effect() -> None:
    by_name = {*message_create_params.MessageCreateParamsBase.__annotations__, "stream"}
    assert by_name - MessagesRequest.model_fields.keys() <= WITHOUT_EFFECT


@pytest.mark.parametrize("kind", errors.TABLE)
def test_every_error_has_a_type_of_anthropics(kind: type[PodiumError]) -> None:
    error = kind("It did not work.")
    body = MessagesDialect().error_body(error, None)
    assert ErrorResponse.model_validate(body, strict=True).error.type == body["error"]["type"]
    assert "It did not work." in body["error"]["message"]
