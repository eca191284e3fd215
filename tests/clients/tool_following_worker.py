"""Worker that calls each tool that it may call, with arguments that fit the schema, and answers in the requested
format. The conformance suites expect such a model.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Any

from conductor.model.call import Call
from conductor.model.deltas import open_reply
from conductor.model.messages import ToolCall
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.usage import Price, Usage


class Obedient:
    """Worker that follows each request. `price`: USD per token."""

    def __init__(self, name: str, price: Price | None) -> None:
        self.name, self._price = name, price

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        return open_reply(self.name, "obedient", self._deltas(call), self._price)

    async def aclose(self) -> None:
        pass

    async def _deltas(self, call: Call) -> AsyncGenerator[Delta]:
        has_results = any(message.tool_results for message in call.messages)
        if call.tools.offered and not has_results:
            tool = call.tools.offered[0]
            tool_call = ToolCall("own-0", tool.name, json.dumps(fitting(tool.parameters or {})))
            yield Delta(tool_calls=(tool_call,), finish=FinishReason.TOOL_CALLS, usage=Usage(10, 5))
            return
        schema = schema_in(call)
        text = json.dumps(fitting(schema)) if schema else "1 2 3 4 5: hello, red."
        for word in text.split(" "):
            yield Delta(f"{word} ")
        yield Delta(finish=FinishReason.STOP, usage=Usage(10, 5))


def schema_in(call: Call) -> Any:
    """Return the schema at the end of the system prompt. Podium sends the format to a custom worker as text."""
    text = " ".join(message.text for message in call.messages if message.role == "system")
    start = text.find("{")
    return json.JSONDecoder().raw_decode(text[start:])[0] if start >= 0 else None


def fitting(schema: Any) -> Any:
    """Return a value that satisfies a simple schema."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            return {name: fitting(each) for name, each in schema.get("properties", {}).items()}
        case "array":
            return [fitting(schema.get("items", {}))]
        case "integer" | "number":
            return 1
        case "boolean":
            return True
        case _:
            return "San Francisco, CA"
