"""Agents with tools, for `loadtest/prove/tools.py`.

Each agent asks a question, receives tool calls, and sends the results in one of several ways.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from loadtest.rig import Json, RigError
from loadtest.rig.routers import RouterProcess

AT_ONCE = 48
TOOLS: list[Json] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("read", "write")
]
TREATMENTS = (
    "at once", "shuffled", "in parts", "twice at once", "late again", "forged", "other key", "changed",
)  # fmt: skip


@dataclass
class ToolClient:
    number: int
    treatment: str
    messages: list[Json] = field(default_factory=list[Json])
    calls: list[Json] = field(default_factory=list[Json])
    """Tool calls that wait for results."""
    answer: str = ""
    is_cut: bool = False
    """True if its stream was cut off right after the tool calls."""

    @property
    def results(self) -> list[Json]:
        """Results of the tool calls, one per call. Results of different runs differ."""
        return [
            {"role": "tool", "tool_call_id": call["id"], "content": self.result_of(call)}
            for call in self.calls
        ]

    def result_of(self, call: Json) -> str:
        """Return the result of a tool call. It names the step and the run."""
        function = call["function"]
        return f"{function['name']} for {orjson.loads(function['arguments'])['of']} of {self.number}"

    @property
    def is_right(self) -> bool:
        """True if every result reached the step that called the tool, and no other step."""
        n = self.number
        return f"one got: read for one of {n}." in self.answer and (
            f"two got: read for two of {n}, write for two of {n}." in self.answer
        )


@dataclass
class ToolsResult:
    database: str = ""
    runs: int = 0
    waited_for_tools: int = 0
    resumed: int = 0
    results_at_the_wrong_step: int = 0
    wrongly_accepted_or_rejected: Counter[str] = field(default_factory=Counter[str])
    """Wrongly accepted requests by how they were changed, and rejected correct results by error."""
    differing_repeats: int = 0
    """Number of repeated requests that got a different answer from the first."""
    steps_called_again: int = 0
    billed_twice: int = 0
    ledger_faults: int = 0
    still_waiting: int = 0
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        """True if nothing is missing, wrong or duplicated."""
        bad = (
            self.results_at_the_wrong_step,
            self.wrongly_accepted_or_rejected.total(),
            self.differing_repeats,
            self.steps_called_again,
            self.billed_twice,
            self.ledger_faults,
        )
        return self.resumed == self.runs and not any(bad) and not self.still_waiting


async def ask(
    session: aiohttp.ClientSession, router: RouterProcess, messages: Sequence[Json], **more: Any
) -> tuple[int, Json]:
    """Send one request. Return the status and the body; the status is 0 if the router was killed."""
    body: Json = {"model": "three", "messages": list(messages), "tools": TOOLS} | more
    try:
        async with session.post(f"{router.url}/v1/chat/completions", json=body) as response:
            return response.status, orjson.loads(await response.read())
    except (aiohttp.ClientError, TimeoutError, OSError):
        return 0, {}


async def begin(session: aiohttp.ClientSession, router: RouterProcess, client: ToolClient) -> None:
    """Start a run and read its tool calls. Half of the clients stream, and disconnect right after them."""
    question = [{"role": "user", "content": f"Question {client.number}"}]
    if client.number % 2:
        client.is_cut = True
        client.calls = await _read_calls(session, router, question)
    else:
        status, reply = await ask(session, router, question)
        if status != 200:
            raise RigError(f"A run did not start. The server returned status {status}: {reply}")
        client.calls = reply["choices"][0]["message"]["tool_calls"]
    client.messages = [*question, {"role": "assistant", "content": None, "tool_calls": client.calls}]


async def _read_calls(
    session: aiohttp.ClientSession, router: RouterProcess, messages: Sequence[Json]
) -> list[Json]:
    body: Json = {"model": "three", "messages": list(messages), "tools": TOOLS, "stream": True}
    calls: list[Json] = []
    async with session.post(f"{router.url}/v1/chat/completions", json=body) as response:
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            for choice in orjson.loads(line[6:])["choices"]:
                calls += choice["delta"].get("tool_calls") or []
            if len(calls) == 3:  # all calls have arrived; do not wait for the rest of the stream
                response.close()
                return [{name: each[name] for name in ("id", "type", "function")} for each in calls]
    raise RigError(f"A stream ended with {len(calls)} tool calls instead of 3.")


class Agents:
    """Agents that send tool results, and counters of the outcomes."""

    def __init__(
        self, sessions: Sequence[aiohttp.ClientSession], routers: Sequence[RouterProcess], seed: int
    ) -> None:
        self._session, self._other = sessions
        self._routers, self._random, self._result = routers, random.Random(seed), ToolsResult()
        self._places = asyncio.Semaphore(AT_ONCE)

    async def run_all(self, clients: Sequence[ToolClient]) -> ToolsResult:
        """Send every client's results and return the outcome."""
        await asyncio.gather(*(self._treat(each) for each in clients))
        result = self._result
        result.runs = len(clients)
        result.resumed = sum(bool(each.answer) for each in clients)
        result.results_at_the_wrong_step = sum(bool(each.answer) and not each.is_right for each in clients)
        return result

    async def _treat(self, client: ToolClient) -> None:
        async with self._places:
            match client.treatment:
                case "in parts":
                    await self._send_parts(client)
                case "twice at once":
                    await self._send_twice(client)
                case "forged":
                    await self._expect_refusal(client, [self._forge(each) for each in client.results])
                    await self._send(client, client.results)
                case "other key":
                    await self._expect_refusal(client, client.results, self._other)
                    await self._send(client, client.results)
                case _:
                    await self._send(client, self._shuffle(client.results))
                    await self._send_after(client)

    async def _send_after(self, client: ToolClient) -> None:
        """After the run has ended, send the same results again, or send different ones."""
        if client.treatment == "late again":
            await self._compare(client, await self._post(client, client.results))
        if client.treatment == "changed":
            changed = [each | {"content": "something else"} for each in client.results]
            await self._expect_refusal(client, changed)

    def _shuffle(self, results: list[Json]) -> list[Json]:
        return self._random.sample(results, len(results))

    def _forge(self, result: Json) -> Json:
        id = result["tool_call_id"]
        other = "A" if id[-1] != "A" else "B"
        return result | {"tool_call_id": id[:-1] + other}

    async def _post(
        self, client: ToolClient, results: Sequence[Json], session: aiohttp.ClientSession | None = None
    ) -> tuple[int, Json]:
        router = self._random.choice(self._routers)
        return await ask(session or self._session, router, [*client.messages, *results])

    async def _send(self, client: ToolClient, results: Sequence[Json]) -> None:
        status, reply = await self._post(client, results)
        if status == 200:
            client.answer = reply["choices"][0]["message"]["content"] or ""
        else:
            self._refusal((status, reply))

    def _refusal(self, response: tuple[int, Json]) -> None:
        """Count correct results that were rejected."""
        status, body = response
        self._result.wrongly_accepted_or_rejected[
            f"{status} {body.get('error', {}).get('message', '')[:200]}"
        ] += 1

    async def _send_parts(self, client: ToolClient) -> None:
        """Send the results in several requests, one more in each, as if each tool was answered when it ended."""
        results = self._shuffle(client.results)
        for n in range(1, len(results) + 1):
            status, reply = await self._post(client, results[:n])
            message: Json = reply["choices"][0]["message"] if status == 200 else {}
            open_ids = {call["id"] for call in message.get("tool_calls") or ()}
            expected = {each["tool_call_id"] for each in results[n:]}
            if status != 200 or open_ids != expected:
                self._result.wrongly_accepted_or_rejected["in parts"] += 1
            client.answer = message.get("content") or ""

    async def _send_twice(self, client: ToolClient) -> None:
        first, second = await asyncio.gather(
            self._post(client, client.results), self._post(client, client.results)
        )
        if first[0] == 200:
            client.answer = first[1]["choices"][0]["message"]["content"] or str(first[1])
        else:
            self._refusal(first)
        await self._compare(client, second)

    async def _compare(self, client: ToolClient, response: tuple[int, Json]) -> None:
        status, body = response
        is_same = status == 200 and body["choices"][0]["message"]["content"] == client.answer
        self._result.differing_repeats += not is_same

    async def _expect_refusal(
        self, client: ToolClient, results: Sequence[Json], session: aiohttp.ClientSession | None = None
    ) -> None:
        status, _ = await self._post(client, results, session)
        if status not in (400, 403):
            self._result.wrongly_accepted_or_rejected[client.treatment] += 1


async def begin_all(
    session: aiohttp.ClientSession, routers: Sequence[RouterProcess], clients: Sequence[ToolClient]
) -> None:
    places = asyncio.Semaphore(AT_ONCE)

    async def begin_one(client: ToolClient) -> None:
        async with places:
            await begin(session, routers[client.number // 2 % 2], client)

    await asyncio.gather(*(begin_one(each) for each in clients))
