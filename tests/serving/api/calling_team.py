"""A worker for tests that calls every offered tool, and then reports the results."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager

from conductor.model.call import Call
from conductor.model.deltas import open_reply
from conductor.model.messages import ToolCall
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.usage import Price, Usage

CALLED = Usage(10, 5)


class ToolCaller:
    """Worker that calls all tools at once with the same arguments until it has results.

    Args:
        name: name in the pool.
        price: price per token.
        arguments: JSON arguments of each call.
    """

    def __init__(self, name: str, price: Price | None, arguments: str = '{"city": "Rome"}') -> None:
        self.name, self._price, self._arguments = name, price, arguments

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        return open_reply(self.name, "tool-caller", self._deltas(call), self._price)

    async def aclose(self) -> None:
        pass

    async def _deltas(self, call: Call) -> AsyncGenerator[Delta]:
        results = [result for message in call.messages for result in message.tool_results]
        if not call.tools or results:
            text = ", ".join(f"{'ERROR ' if each.is_error else ''}{each.text}" for each in results)
            yield Delta(f"They gave: {text or 'nothing'}.")
            yield Delta(finish=FinishReason.STOP, usage=CALLED)
            return
        yield Delta("I look.")
        calls = tuple(
            ToolCall(f"native-{tool.name}", tool.name, self._arguments) for tool in call.tools.offered
        )
        yield Delta(tool_calls=calls, finish=FinishReason.TOOL_CALLS, usage=CALLED)


def calling_team(**options: str) -> dict[str, object]:
    """Return settings of a conductor that plans one step, and its worker `a`."""
    plan = '{"worker": "a", "subtask": "Answer.", "access": []}'
    factory = "tests.serving.api.calling_team:ToolCaller"
    return {
        "conductor": {"worker": "conductor"},
        "workers": [
            {"name": "conductor", "kind": "scripted", "replies": [plan], "in_pool": False},
            {"name": "a", "kind": "python", "factory": factory, "options": options, "sees_images": True},
        ],
        "models": {"mini": {}},
    }
