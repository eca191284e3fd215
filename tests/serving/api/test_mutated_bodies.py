"""Bodies of every dialect with one value replaced. Each is a valid request, or an error that names a field."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import BadTask
from serving.api.dialect import Dialect
from serving.api.dialects.chat.dialect import ChatDialect
from serving.api.dialects.messages.dialect import MessagesDialect
from serving.api.request import ApiRequest
from tests.serving.api.served import Json
from tests.serving.api.test_messages import PICTURE

SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}}}
CHAT: Json = {
    "model": "mini", "stream": True, "stream_options": {"include_usage": True}, "tool_choice": {"type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "clock"}}]}},
    "parallel_tool_calls": True, "podium": {"progress": "events"},
    "tools": [
        {"type": "function", "function": {"name": "clock", "parameters": SCHEMA, "strict": True}},
        {"type": "custom", "custom": {"name": "patch", "format": {"type": "text"}}}, {"type": "web_search"},
    ],
    "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "https://x.example/a"}}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "clock", "arguments": "{}"}},
            {"id": "b", "type": "custom", "custom": {"name": "patch", "input": "x"}}]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "noon"}]},
    ],
}  # fmt: skip
MESSAGES: Json = {
    "model": "mini", "max_tokens": 9, "stream": True, "system": [{"type": "text", "text": "S"}], "stop_sequences": ["x"],
    "tools": [{"name": "clock", "input_schema": SCHEMA}, {"type": "web_search_20260318", "name": "web_search"}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "mcp_servers": [{"type": "url"}],
    "thinking": {"type": "enabled", "budget_tokens": 1024}, "podium": {"trace": True},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": SCHEMA}},
    "messages": [
        {"role": "user", "content": [PICTURE, {"type": "text", "text": "a"}, {"type": "document", "title": "t", "source": {
            "type": "content", "content": [{"type": "text", "text": "x"}]}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": ""},
            {"type": "tool_use", "id": "a", "name": "clock", "input": {"x": 1}}, {"type": "server_tool_use", "id": "s"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": [
            {"type": "text", "text": "noon"}, {"type": "tool_reference", "tool_name": "x"}, PICTURE]}]},
        {"role": "system", "content": "Be quick."},
    ],
}  # fmt: skip
BODIES = [(ChatDialect(), CHAT), (MessagesDialect(), MESSAGES)]
SMALL = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**40)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
)
VALUES = st.recursive(
    SMALL, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
TYPES = st.sampled_from(
    ["text", "function", "custom", "tool_use", "base64", "content", "url", "auto", "document", "image"]
)


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the path of every value in a body."""
    inner: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return [path, *(each for key, item in inner for each in places(item, (*path, key)))]


def replaced(body: Json, path: tuple[Any, ...], value: Any) -> Json:
    changed = copy.deepcopy(body)
    here: Any = changed
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = value
    return changed


@pytest.mark.parametrize(("dialect", "body"), BODIES)
@given(data=st.data())
def test_a_body_with_one_changed_value_is_valid_or_an_error_with_its_field(
    dialect: Dialect, body: Json, data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(places(body)[1:]))
    changed = replaced(body, path, data.draw(VALUES | TYPES))
    parsed = parse(dialect, json.dumps(changed).encode())
    if isinstance(parsed, BadTask):
        assert parsed.param
        assert parsed.message.startswith(parsed.param.split(".")[0].split("[")[0])
    else:
        assert parsed.input_token_estimate > 0


def parse(dialect: Dialect, body: bytes) -> ApiRequest | BadTask:
    """Return the parsed body or its `BadTask`. Any other exception is a bug."""
    try:
        return dialect.parse(body)
    except BadTask as exc:
        return exc


@pytest.mark.parametrize(("dialect", "body"), BODIES)
def test_the_unchanged_bodies_are_valid(dialect: Dialect, body: Json) -> None:
    assert dialect.parse(json.dumps(body).encode()).tools.tools
