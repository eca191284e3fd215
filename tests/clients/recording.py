"""Recordings of agents' exchanges without prompts, tool texts, paths and outputs. This module knows no agent."""

import json
from collections.abc import Iterator
from typing import Any

from tests.serving.api.served import Json

PROTOCOL_FIELDS = {
    "call_id", "detail", "display", "effort", "id", "include", "keep", "model", "name", "namespace", "phase", "role", "status",
    "stop_reason", "summary", "tool_call_id", "tool_choice", "tool_use_id", "type",
}  # fmt: skip
"""Fields whose values belong to the protocol. All other texts become `x`."""
SCHEMAS = {"parameters", "input_schema"}


def shape(body: Any, field: str = "") -> Any:
    """Return `body` with its texts replaced by `x`."""
    match body:
        case dict() if field in SCHEMAS:
            return {"type": "object", "properties": {}}
        case dict() if field == "input":
            return {}
        case dict():
            return {key: shape(value, key) for key, value in body.items()}
        case list():
            return [shape(each, field if isinstance(each, str) else "") for each in body]
        case str() if field == "arguments":
            return "{}"
        case str() if field not in PROTOCOL_FIELDS:
            return "x"
        case _:
            return body


def answer_of(text: str) -> Json:
    """Return the tool calls (id and name, in order) and the text of an answer, streamed or not."""
    calls: dict[str, str] = {}
    words = ""
    for event in _events(text):
        for part in _dicts(event):
            match part:
                case {"type": "function_call", "call_id": id, "name": name}:
                    calls[id] = name
                case {"type": "tool_use", "id": id, "name": name}:
                    calls[id] = name
                case {"id": str(id), "function": {"name": name}}:
                    calls[id] = name
                case {"type": "response.output_text.delta" | "text_delta", **rest}:
                    words += rest.get("delta", "") or rest.get("text", "")
                case {"delta": {"content": str(content)}, "finish_reason": _}:
                    words += content
                case _:
                    pass
    return {"calls": [[id, name] for id, name in calls.items()], "text": words}


def _events(text: str) -> Iterator[Any]:
    if text.startswith("{"):
        yield json.loads(text)
        return
    for line in text.splitlines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def _dicts(value: Any) -> Iterator[Json]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _dicts(each)


class Recorder:
    """ASGI middleware that records exchanges.

    Attributes:
        exchanges: path, body and answer of each request with a body, in order of arrival.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self.exchanges: list[Json] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request, answered = bytearray(), bytearray()
        exchange: Json = {"path": scope.get("path"), "status": 0}
        self.exchanges.append(exchange)

        async def recording_receive() -> Any:
            message = await receive()
            request.extend(message.get("body", b""))
            return message

        async def recording_send(message: Any) -> None:
            exchange["status"] = message.get("status", exchange["status"])
            answered.extend(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, recording_receive, recording_send)
        finally:
            exchange["body"] = json.loads(request) if request else None
            exchange["answer"] = answered.decode()

    def shapes(self) -> list[Json]:
        """Return the shape of each successful exchange."""
        return [
            {"path": each["path"], "body": shape(each["body"]), "answer": answer_of(each["answer"])}
            for each in self.exchanges
            if each.get("body") and each["status"] == 200
        ]
