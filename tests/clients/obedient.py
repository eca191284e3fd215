"""A worker that obeys: it calls a tool where it must or may, with arguments that fit its schema, and answers in the form
that is asked for. For conformance suites, which expect a model that does as it is told.
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
    """See the module.

    Args:
        name: in the pool.
        price: per token.
    """

    def __init__(self, name: str, price: Price | None) -> None:
        self.name, self._price = name, price

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """See `Worker.open`."""
        return open_reply(self.name, "obedient", self._deltas(call), self._price)

    async def aclose(self) -> None:
        """Nothing to close."""

    async def _deltas(self, call: Call) -> AsyncGenerator[Delta]:
        has_results = any(message.tool_results for message in call.messages)
        if call.tools.offered and not has_results:
            tool = call.tools.offered[0]
            made = ToolCall("own-0", tool.name, json.dumps(fitting(tool.parameters or {})))
            yield Delta(tool_calls=(made,), finish=FinishReason.TOOL_CALLS, usage=Usage(10, 5))
            return
        wanted = schema_in(call)
        said = json.dumps(fitting(wanted)) if wanted else "1 2 3 4 5: hello, red."
        for word in said.split(" "):
            yield Delta(f"{word} ")
        yield Delta(finish=FinishReason.STOP, usage=Usage(10, 5))


def schema_in(call: Call) -> Any:
    """The schema at the end of the system prompt: a worker of one's own is told the form in words."""
    text = " ".join(message.text for message in call.messages if message.role == "system")
    start = text.find("{")
    return json.JSONDecoder().raw_decode(text[start:])[0] if start >= 0 else None


def fitting(schema: Any) -> Any:
    """A value that fits a simple schema."""
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
