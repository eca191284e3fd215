"""Worker with scripted answers, speeds and failures.

It is meant for tests, load tests and demonstrations without a model. It sends no requests, and reports
`scripted` as its model.
"""

import asyncio
import hashlib
import math
import re
import struct
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from conductor.errors import ContextOverflow, WorkerBusy, WorkerError, WorkerRefused, WorkerUnavailable
from conductor.model.call import Call
from conductor.model.deltas import open_reply
from conductor.model.messages import Message, Native, Tool, ToolCall
from conductor.model.operation import TokenLogprob, vector_text
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.terms import AttemptLimits
from conductor.model.usage import FREE, Price, Usage


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    name: str
    arguments: str


def own_turns(worker: str, messages: Sequence[Message]) -> list[Native]:
    """Return this worker's turns. Like real providers, raise WorkerRefused if one was changed."""
    turns: list[Native] = []
    for message in messages:
        if message.native is None or message.native.worker != worker:
            continue
        if message.native.payload != _payload(message.native.payload["reply"], message.tool_calls):
            raise WorkerRefused(
                f"The conversation changes an earlier turn of {worker}. Send the turns of {worker} back unchanged.",
                worker=worker,
            )
        turns.append(message.native)
    return turns


def calls_of(
    worker: str, reply: int, calls: Sequence[ScriptedCall], offered: Sequence[Tool], n_before: int
) -> tuple[tuple[ToolCall, ...], Native | None]:
    """Return a reply's calls of offered tools, and the turn to send back. `reply` counts from 0, and the
    number of earlier turns makes ids unique.
    """
    tools = {tool.name: tool for tool in offered}
    offered_calls = [(call, tools[call.name]) for call in calls if call.name in tools]
    tool_calls = tuple(
        ToolCall(f"{worker}-{n_before}-{n}", call.name, call.arguments, tool.kind, tool.namespace)
        for n, (call, tool) in enumerate(offered_calls)
    )
    return tool_calls, Native(worker, "", _payload(reply, tool_calls)) if tool_calls else None


def _payload(reply: int, calls: Sequence[ToolCall]) -> dict[str, object]:
    return {"reply": reply, "calls": [[call.id, call.name, call.arguments] for call in calls]}


KEPT_CALLS, KEPT_BYTES = 1000, 16_000_000
TOKEN = re.compile(r"\s*\S+|\s+$")
"""Pattern of a token, the unit for counting and pacing the answer: a word with the whitespace before it."""
ERRORS: dict[str, type[WorkerError]] = {
    "unavailable": WorkerUnavailable,
    "busy": WorkerBusy,
    "refused": WorkerRefused,
    "overflow": ContextOverflow,
}
ErrorKind = Literal[
    "busy", "unavailable", "refused", "overflow"
]  # same order as in `ScriptedReplySettings`, because `typing` caches equal Literals


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    text: str = ""
    """Answer, with the user's last message for `{question}` and the newest tool results for `{results}`."""
    reasoning: str = ""
    """Thoughts that are sent before the answer. They count as output."""
    calls: tuple[ScriptedCall, ...] = ()
    """Tool calls after the text."""
    error: ErrorKind | None = None
    """Kind of failure, or None for no failure unless `fail_after_tokens` is set."""
    retry_after_s: float | None = None
    """`Retry-After` of a `busy` failure."""
    fail_after_tokens: int | None = None
    """Tokens, with thoughts, after which the call fails. If None, an `error` is raised before the first."""
    stall_after_tokens: int | None = None
    """Number of tokens after which the answer stalls until the call is closed."""
    finish: FinishReason = FinishReason.STOP
    usage: Usage | None = None
    """Usage that is reported, or None to report the actual number of tokens."""


class ScriptedWorker:
    """Worker that returns its replies in turn. With tool calls, each conversation, and each question after an
    answer, starts with the first reply.

    Attributes:
        calls: newest calls, oldest first, without their callbacks. At most `KEPT_CALLS` calls are stored,
            with at most `KEPT_BYTES` of prompts together, but at least the newest call.
    """

    def __init__(
        self,
        name: str,
        replies: Sequence[str | ScriptedReply],
        delay_s: float = 0.0,
        tokens_per_s: float | None = None,
        price: Price | None = FREE,
        model: str | None = None,
    ) -> None:
        """Create the worker with at least one reply. `delay_s` is the time to the first token or the error.
        The reported model is by default `scripted`.
        """
        if not replies:
            raise ValueError(f"Worker {name!r} must have at least one reply in `replies`.")
        self.name = name
        self.model = model or "scripted"
        self.price = price
        self.delay_s = delay_s
        self.tokens_per_s = tokens_per_s
        self.calls: deque[Call] = deque(maxlen=KEPT_CALLS)
        self._n_bytes = 0
        """Size of the prompts of `calls`."""
        self.open_calls = 0
        self._replies = [ScriptedReply(reply) if isinstance(reply, str) else reply for reply in replies]
        self._turn = 0
        self._calls_tools = any(reply.calls for reply in self._replies)

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        return open_reply(self.name, self.model, self._deltas(call), self.price)

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""

    def _keep(self, call: Call) -> None:
        if len(self.calls) == KEPT_CALLS:
            self._n_bytes -= _prompt_bytes(self.calls.popleft())
        self.calls.append(_without_run(call))
        self._n_bytes += _prompt_bytes(call)
        while self._n_bytes > KEPT_BYTES and len(self.calls) > 1:
            self._n_bytes -= _prompt_bytes(self.calls.popleft())

    async def _deltas(self, call: Call) -> AsyncGenerator[Delta]:
        index = self._next_reply(call)
        reply = self._replies[index]
        self._keep(call)
        self.open_calls += 1
        try:
            await asyncio.sleep(self.delay_s)
            if reply.error is not None and reply.fail_after_tokens is None:
                raise self._error(reply)
            async with aclosing(self._say(call, reply, index)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            self.open_calls -= 1

    def _next_reply(self, call: Call) -> int:
        if not self._calls_tools:
            self._turn += 1
            return (self._turn - 1) % len(self._replies)
        messages = call.messages
        answers = [n for n, each in enumerate(messages) if each.role == "assistant" and each.native is None]
        own = own_turns(self.name, messages[answers[-1] + 1 if answers else 0 :])
        first = own[-1].payload["reply"] + 1 if own else 0
        order = [(first + n) % len(self._replies) for n in range(len(self._replies))]
        return next((n for n in order if call.tools or not self._replies[n].calls), order[0])

    async def _say(self, call: Call, reply: ScriptedReply, index: int) -> AsyncGenerator[Delta]:
        if call.site.operation == "embeddings":
            vectors = embed([message.text for message in call.messages], call.sampling.options.dimensions)
            yield Delta(
                vectors, finish=FinishReason.STOP, usage=Usage(prompt_tokens(call), 0), model=self.model
            )
            return
        pieces, finish, stop = self._pieces(call, reply)
        n_begun = len(TOKEN.findall(call.prefix))
        started_s = asyncio.get_running_loop().time() - n_begun / (self.tokens_per_s or 1)
        for n, piece in enumerate(pieces, n_begun):
            await self._before_token(n, started_s, reply)
            yield piece
        await self._before_token(n_begun + len(pieces), started_s, reply, is_last=True)
        n_before = len(own_turns(self.name, call.messages)) if reply.calls else 0
        calls, native = calls_of(self.name, index, reply.calls, call.tools.offered, n_before)
        finish = FinishReason.TOOL_CALLS if calls else finish
        thought_tokens = sum(1 for piece in pieces if piece.reasoning)
        n_written = len(pieces) + sum(len(TOKEN.findall(each.arguments)) for each in calls)
        usage = Usage(prompt_tokens(call), n_written, reasoning_tokens=thought_tokens)
        yield Delta(
            finish=finish,
            usage=reply.usage or usage,
            model=self.model,
            tool_calls=calls,
            native=native,
            stop_sequence=stop,
        )

    async def _before_token(
        self, index: int, started_s: float, reply: ScriptedReply, is_last: bool = False
    ) -> None:
        """Wait until the token is due. If the reply is scripted to fail or stall before this token, do so."""
        if index == reply.fail_after_tokens:
            raise self._error(reply)
        if index == reply.stall_after_tokens:
            await asyncio.Event().wait()
        if self.tokens_per_s is None or is_last:
            await asyncio.sleep(0)
            return
        due_s = started_s + index / self.tokens_per_s
        await asyncio.sleep(max(0.0, due_s - asyncio.get_running_loop().time()))

    def _pieces(self, call: Call, reply: ScriptedReply) -> tuple[list[Delta], FinishReason, str | None]:
        """Return the tokens, the finish reason, and the stop sequence or None, cut at the call's limits."""
        question = next((m.text for m in reversed(call.messages) if m.role == "user"), "")
        results = next((m.tool_results for m in reversed(call.messages) if m.tool_results), ())
        text = reply.text.replace("{question}", question)
        text = text.replace("{results}", ", ".join(each.text for each in results))
        stops = ((text.find(stop), stop) for stop in call.sampling.stop if stop and stop in text)
        at, stop = min(stops, default=(len(text), None))
        if not text.startswith(call.prefix):
            message = f"{self.name} cannot continue the answer, because its scripted reply starts with different text."
            raise WorkerUnavailable(message, worker=self.name, only_this_call=True)
        text = text[len(call.prefix) : at]
        thoughts = [] if call.prefix else TOKEN.findall(reply.reasoning)
        pieces = [Delta(reasoning=thought, model=self.model) for thought in thoughts]
        wants_logprobs = call.sampling.options.top_logprobs is not None
        pieces += [
            Delta(text=word, model=self.model, logprobs=(TokenLogprob(word, 0.0),) if wants_logprobs else ())
            for word in TOKEN.findall(text)
        ]
        if call.sampling.max_output_tokens is not None and len(pieces) > call.sampling.max_output_tokens:
            return pieces[: call.sampling.max_output_tokens], FinishReason.LENGTH, None
        return pieces, reply.finish if stop is None else FinishReason.STOP, stop

    def _error(self, reply: ScriptedReply) -> WorkerError:
        kind = reply.error or "unavailable"
        message = f"{self.name} was scripted to fail ({kind})."
        if kind == "busy":
            return WorkerBusy(message, worker=self.name, retry_after_s=reply.retry_after_s)
        return ERRORS[kind](message, worker=self.name)


def _without_run(call: Call) -> Call:
    """Return `call` without references to its run, so that stored calls do not keep a thousand runs in memory."""
    terms = replace(call.terms, refusals=None, observer=None, holds=None, limits=AttemptLimits())
    return replace(call, terms=terms)


def _prompt_bytes(call: Call) -> int:
    return sum(len(message.text) for message in call.messages)


def prompt_tokens(call: Call) -> int:
    """Return the number of tokens in a prompt (see `TOKEN`), without building a list of them."""
    texts = [message.text for message in call.messages]
    return sum(len(text.split()) + text[-1:].isspace() for text in texts)


DIMENSIONS = 8


def embed(texts: list[str], dimensions: int | None = None) -> str:
    """Return a unit vector per text, in the format of `Operation`. It is computed from a checksum and has no
    meaning.
    """
    return "\n".join(vector_text(_vector(text, dimensions or DIMENSIONS)) for text in texts)


def _vector(text: str, dimensions: int) -> list[float]:
    noise = hashlib.shake_256(text.encode("utf-8", "surrogatepass")).digest(2 * dimensions)
    values = [value / 32_768 for value in struct.unpack(f"<{dimensions}h", noise)]
    length = math.sqrt(sum(value * value for value in values)) or 1.0
    return [value / length for value in values]
