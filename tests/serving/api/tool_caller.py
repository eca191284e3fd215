"""A worker for tests that calls the offered tools once after each user turn, and then answers with the results."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from conductor.model.call import Call
from conductor.model.deltas import open_reply
from conductor.model.messages import ToolCall
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.usage import Price, Usage

Json = dict[str, Any]


def tool_caller(name: str, calls: Sequence[Sequence[str]] | None = None, text: str = "") -> Json:
    """Return settings of a worker that calls the tools `calls[n]` in its turn `n`, or each offered tool once if
    `calls` is None.
    """
    options: Json = {"text": text} | ({} if calls is None else {"calls": [list(turn) for turn in calls]})
    factory = "tests.serving.api.tool_caller:ToolCaller"
    return {"name": name, "kind": "python", "factory": factory, "options": options}


class ToolCaller:
    def __init__(
        self, name: str, price: Price | None, calls: list[list[str]] | None = None, text: str = ""
    ) -> None:
        self.name, self._price, self._calls, self._text = name, price, calls, text
        self.requests: list[Call] = []

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        return open_reply(self.name, "tool-caller", self._deltas(call), self._price)

    async def aclose(self) -> None:
        pass

    async def _deltas(self, call: Call) -> AsyncGenerator[Delta]:
        self.requests.append(call)
        last_user_turn = max(
            (n for n, message in enumerate(call.messages) if message.role == "user"), default=0
        )
        turns = [message.tool_results for message in call.messages[last_user_turn:] if message.tool_results]
        offered = {tool.name: tool for tool in call.tools.offered}
        plan = [list(offered)] if self._calls is None else self._calls
        names = plan[len(turns)] if offered and len(turns) < len(plan) else []
        if not names:
            results_text = ", ".join(result.text for results in turns for result in results)
            for word in ("Done: ", results_text or "nothing", "."):
                yield Delta(text=word)
            yield Delta(finish=FinishReason.STOP, usage=Usage(10, 3))
            return
        if self._text:
            yield Delta(text=self._text)
        calls = tuple(
            ToolCall(
                f"own-{n}",
                name,
                _arguments(name, offered[name].kind),
                offered[name].kind,
                offered[name].namespace,
            )
            for n, name in enumerate(names)
        )
        yield Delta(tool_calls=calls, finish=FinishReason.TOOL_CALLS, usage=Usage(10, 2))


def _arguments(name: str, kind: str) -> str:
    return f"*** {name}" if kind == "custom" else json.dumps({"of": name})
