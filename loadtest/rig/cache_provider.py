"""Fake provider that caches prompts by the published rules (`prompt_caches.py`), and bills by them.

It has the APIs Messages and Chat Completions. Each account (API key) has its own caches, one for each model or
machine. The list of its calls is the true bill, with which a proof compares Podium's.
"""

import asyncio
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, cast

from aiohttp import web

from loadtest.rig import Json
from loadtest.rig.fake_openai import chunk, event, serving
from loadtest.rig.prompt_caches import (
    FRESH,
    MINUTE_S,
    OUTPUT,
    READ,
    TOKEN_BYTES,
    WRITTEN,
    WRITTEN_1H,
    ChatPrompt,
    MessagesPrompt,
    PrefixCache,
    Rejected,
    parts_of,
)

PRICES: dict[str, dict[str, float]] = {
    "claude-sonnet-4-6": {FRESH: 3, READ: 0.3, WRITTEN: 3.75, WRITTEN_1H: 6, OUTPUT: 15},
    "claude-opus-4-8": {FRESH: 5, READ: 0.5, WRITTEN: 6.25, WRITTEN_1H: 10, OUTPUT: 25},
    "gpt-5": {FRESH: 1.25, READ: 0.125, OUTPUT: 10},
    "gpt-4.1": {FRESH: 2, READ: 0.5, OUTPUT: 8},
}
"""Prices of the models, in the form of `price` in the settings."""
MARK = re.compile(r"conv-\w+-")
THOUGHT = "The next file may have the answer. " * 6
TEXT = [f" word{number}" for number in range(120)]


@dataclass(slots=True)
class ProviderCall:
    """Call to the provider, with its bill.

    Args:
        account: the API key.
        mark: the first text of the form `conv-...-` in the request, or "". It marks the conversation.
        tokens: the billed tokens, by the name of their price.
    """

    account: str
    model: str
    mark: str
    tokens: Counter[str] = field(default_factory=Counter[str])
    is_whole: bool = False

    @property
    def prompt_tokens(self) -> int:
        return self.tokens.total() - self.tokens[OUTPUT]

    @property
    def input_usd(self) -> Decimal:
        return sum((self.usd(price) for price in self.tokens if price != OUTPUT), Decimal())

    @property
    def cost_usd(self) -> Decimal:
        return sum(map(self.usd, self.tokens), Decimal())

    def usd(self, price: str) -> Decimal:
        return self.tokens[price] * Decimal(str(PRICES[self.model].get(price, 0))) / 1_000_000


def cached_share(calls: Iterable[ProviderCall]) -> float:
    """Return the share of the prompts' tokens that was read from a cache."""
    each = [(call.tokens[READ], call.prompt_tokens) for call in calls]
    return sum(read for read, _ in each) / max(1, sum(tokens for _, tokens in each))


class CacheProvider:
    """Fake provider.

    Args:
        tool_turns: the number of turns in which a model calls a tool after each message of the user, if the
            request has tools (Messages only).
        clock: a function that returns the time in seconds, for the lifetimes in the caches.
    """

    def __init__(
        self, *, first_s: float = 0.0, tool_turns: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.calls: list[ProviderCall] = []
        self.failing = set[str]()
        """Accounts that get the status 503. These requests are not billed."""
        self._first_s, self._tool_turns, self._clock = first_s, tool_turns, clock
        self._caches: dict[object, PrefixCache] = defaultdict(PrefixCache)
        self._routed: dict[bytes, list[float]] = {}
        """Times of the requests in the last minute, by the hash that chooses the machine."""

    def running(self) -> AbstractAsyncContextManager[str]:
        """Serve on a free loopback port inside the block, whose value is the base URL, without `/v1`."""
        return serving("/v1/messages", "/v1/chat/completions", answer=self._serve)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        text, headers = await request.text(), request.headers
        account = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if account in self.failing:
            error: Json = {"type": "error", "error": {"type": "overloaded_error", "message": "Not now."}}
            return web.json_response(error, status=503)
        body, mark, now_s = json.loads(text), MARK.search(text), self._clock()
        call = ProviderCall(account, body["model"], mark.group() if mark else "")
        try:
            prompt = self._prompt(request, body, call)
        except Rejected as exc:
            error = {"type": "error", "error": {"type": "invalid_request_error", "message": str(exc)}}
            return web.json_response(error, status=400)
        cache = self._cache(call, prompt, now_s)
        call.tokens.update(prompt.read(cache, now_s))
        self.calls.append(call)
        await asyncio.sleep(self._first_s)
        prompt.write(cache, now_s)
        if isinstance(prompt, ChatPrompt):
            return await _send(request, call, body, *self._completion(call))
        message = self._message(call, body, prompt)
        return await _send(request, call, body, message, _message_events(message))

    def _prompt(self, request: web.Request, body: Json, call: ProviderCall) -> MessagesPrompt | ChatPrompt:
        is_chat = request.path.endswith("/chat/completions")
        return ChatPrompt(body) if is_chat else MessagesPrompt(body, f"{call.account} {call.model}")

    def _cache(self, call: ProviderCall, prompt: MessagesPrompt | ChatPrompt, now_s: float) -> PrefixCache:
        machine = 0
        if isinstance(prompt, ChatPrompt):
            recent = [each for each in self._routed.get(prompt.route, ()) if now_s - each < MINUTE_S]
            machine = prompt.machine(len(recent))
            self._routed[prompt.route] = [*recent, now_s]
        return self._caches[call.account, call.model, machine]

    def _message(self, call: ProviderCall, body: Json, prompt: MessagesPrompt) -> Json:
        """Return the answer of Anthropic's API: a tool call, or text."""
        content, thinking = list[Json](), cast(Json, body.get("thinking") or {})
        if thinking.get("type") in ("enabled", "adaptive"):
            content.append({"type": "thinking", "thinking": THOUGHT, "signature": prompt.signature})
        tools, n_turns = cast(list[Json], body.get("tools") or []), count_tool_turns(body["messages"])
        if calls_tool := bool(tools) and n_turns < self._tool_turns:
            arguments = {"path": f"src/file_{n_turns}.py"}
            id = f"toolu_{len(self.calls):06}"
            content.append({"type": "text", "text": "I read the next file."})
            content.append({"type": "tool_use", "id": id, "name": tools[0]["name"], "input": arguments})
        else:
            content.append({"type": "text", "text": "".join(TEXT)})
        call.tokens[OUTPUT] = len(json.dumps(content)) // TOKEN_BYTES
        written = {"5m": call.tokens[WRITTEN], "1h": call.tokens[WRITTEN_1H]}
        usage = {
            "input_tokens": call.tokens[FRESH],
            "cache_read_input_tokens": call.tokens[READ],
            "cache_creation_input_tokens": sum(written.values()),
            "cache_creation": {f"ephemeral_{lifetime}_input_tokens": n for lifetime, n in written.items()},
            "output_tokens": call.tokens[OUTPUT],
        }
        head = {"id": f"msg_{len(self.calls)}", "type": "message", "role": "assistant", "model": call.model}
        end = {"stop_reason": "tool_use" if calls_tool else "end_turn", "stop_sequence": None}
        return {**head, "content": content, **end, "usage": usage}

    def _completion(self, call: ProviderCall) -> tuple[Json, list[bytes]]:
        """Return the answer of Chat Completions, and its events."""
        text = "".join(TEXT)
        call.tokens[OUTPUT] = len(text) // TOKEN_BYTES
        usage = {
            "prompt_tokens": call.prompt_tokens,
            "prompt_tokens_details": {"cached_tokens": call.tokens[READ]},
            "completion_tokens": call.tokens[OUTPUT],
            "total_tokens": call.tokens.total(),
        }
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        words = [chunk(call.model, {"content": word}) for word in TEXT]
        end = [chunk(call.model, {}, "stop"), event({"choices": [], "usage": usage}), b"data: [DONE]\n\n"]
        return {"model": call.model, "choices": [choice], "usage": usage}, [*words, *end]


def count_tool_turns(messages: Sequence[Json]) -> int:
    """Return the number of turns with tool results after the newest other message of the user."""
    n_turns = 0
    for message in reversed(messages):
        if message["role"] == "user":
            if any(part["type"] != "tool_result" for part in parts_of(message["content"])):
                break
            n_turns += 1
    return n_turns


async def _send(
    request: web.Request, call: ProviderCall, body: Json, whole: Json, events: Iterable[bytes]
) -> web.StreamResponse:
    if not body.get("stream"):
        call.is_whole = True
        return web.json_response(whole)
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    *frames, last = events
    for each in frames:
        await response.write(each)
    call.is_whole = True  # before the client can have the end of the answer
    await response.write(last)
    return response


def _message_events(message: Json) -> Iterator[bytes]:
    """Yield the events of an answer of Anthropic's API."""
    yield _event("message_start", message=message | {"content": [], "stop_reason": None})
    for index, block in enumerate(message["content"]):
        begun, deltas = _pieces(block)
        yield _event("content_block_start", index=index, content_block=begun)
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield _event("message_delta", delta=end, usage=message["usage"])
    yield _event("message_stop")


def _pieces(block: Json) -> tuple[Json, list[Json]]:
    """Return the beginning of a block, and the pieces that follow."""
    match block["type"]:
        case "text":
            return block | {"text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case "thinking":
            thought = {"type": "thinking_delta", "thinking": block["thinking"]}
            signature = {"type": "signature_delta", "signature": block["signature"]}
            return block | {"thinking": "", "signature": ""}, [thought, signature]
        case _:
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            return block | {"input": {}}, [delta]


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\n".encode() + event({"type": kind, **fields})
