"""Clients of every kind on one router: chats, streams, plans, workflows, Responses, Messages, agents with
tools, background runs, a failing provider and invalid requests. Some disconnect at a random moment.

The module knows the expected outcomes of each kind. Every other outcome is counted separately, including a
request that hangs.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp

from loadtest.prove.tool_agents import ToolClient, begin
from loadtest.prove.tool_agents import ask as ask_with_results
from loadtest.rig import Json, RigError
from loadtest.rig.routers import RouterProcess

CLIENTS = 12
PAUSE_S = 0.05
"""Average seconds between two requests of a client."""
HANGS_UP, LEAVES_AFTER_S = 0.15, 0.4
"""Share of the requests whose client disconnects, and the seconds within which it does so."""
HANGS_AFTER_S = 30.0
QUESTION = {"messages": [{"role": "user", "content": "Why?"}]}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
ENDS = {CHAT: b"data: [DONE]", RESPONSES: b"response.completed", MESSAGES: b"message_stop"}
"""Text at the end of a complete stream, by path."""


@dataclass(frozen=True)
class Kind:
    """Kind of request, with its path and expected status.

    Args:
        body: the body of the request, without `stream`.
        is_faulty: whether an error is an expected outcome.
    """

    path: str
    body: Json
    is_faulty: bool = False
    status: int = 200


KINDS: Mapping[str, Kind] = {
    "chat": Kind(CHAT, {"model": "quick", **QUESTION}),
    "long chat": Kind(CHAT, {"model": "long", **QUESTION}),
    "plan": Kind(CHAT, {"model": "podium-mini", **QUESTION}),
    "workflow": Kind(CHAT, {"model": "pair", **QUESTION}),
    "Responses": Kind(RESPONSES, {"model": "long", "input": "Why?"}),
    "Messages": Kind(MESSAGES, {"model": "long", "max_tokens": 100, **QUESTION}),
    "provider": Kind(CHAT, {"model": "provider", **QUESTION}, is_faulty=True),
    "provider in a workflow": Kind(CHAT, {"model": "shaky", **QUESTION}, is_faulty=True),
    "wrong": Kind(CHAT, {"model": "nobody", **QUESTION}, status=404),
}
OTHERS = ("tools", "background")


@dataclass
class MixedLoad:
    """Clients of every kind, and the outcomes of their requests by kind.

    The outcomes are `whole` (a complete answer), `told` (a clear error), `left` (the client disconnected),
    and the unexpected `hung`, `broken` and `wrong`.
    """

    seed: int = 1
    outcomes: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])

    @property
    def n(self) -> int:
        return sum(counts.total() for counts in self.outcomes.values())

    @property
    def bad(self) -> dict[str, Counter[str]]:
        unexpected = {kind: Counter(counts) for kind, counts in self.outcomes.items()}
        for kind, counts in unexpected.items():
            del counts["whole"], counts["left"]
            if kind not in KINDS or KINDS[kind].is_faulty:
                del counts["told"]
        return {kind: counts for kind, counts in unexpected.items() if counts.total()}

    async def run(self, router: RouterProcess, session: aiohttp.ClientSession, seconds: float) -> None:
        """Send requests for `seconds`, and wait for those in progress."""
        self.seed += 1
        ends_s = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                draws = random.Random(self.seed * CLIENTS + number)
                group.create_task(self._ask_on(router, session, draws, ends_s))

    async def _ask_on(
        self, router: RouterProcess, session: aiohttp.ClientSession, draws: random.Random, ends_s: float
    ) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < ends_s:
            kind = draws.choice((*KINDS, *OTHERS))
            leaves = draws.random() < HANGS_UP
            after_s = draws.uniform(0, LEAVES_AFTER_S) if leaves else HANGS_AFTER_S
            try:
                async with asyncio.timeout(after_s):
                    outcome = await _ask(router, session, kind, draws)
            except TimeoutError:
                outcome = "left" if leaves else "hung"
            except (aiohttp.ClientError, OSError):
                outcome = "broken"
            self.outcomes.setdefault(kind, Counter())[outcome] += 1
            await asyncio.sleep(draws.expovariate(1 / PAUSE_S))


async def _ask(router: RouterProcess, session: aiohttp.ClientSession, name: str, draws: random.Random) -> str:
    match name:
        case "tools":
            return await _use_tools(router, session, draws)
        case "background":
            return await _cancel_in_background(router, session)
        case _:
            return await _send(router, session, KINDS[name], stream=draws.random() < 0.5)


async def _send(router: RouterProcess, session: aiohttp.ClientSession, kind: Kind, *, stream: bool) -> str:
    async with session.post(router.url + kind.path, json={**kind.body, "stream": stream}) as response:
        content = await response.read()
    is_error = b'"error":{' in content
    if response.status == kind.status != 200 and is_error:
        return "whole"
    if response.status == 200 and not is_error and (not stream or ENDS[kind.path] in content):
        return "whole"
    return "told" if is_error else "wrong"


async def _use_tools(router: RouterProcess, session: aiohttp.ClientSession, draws: random.Random) -> str:
    """Run an agent that sends the results of its tools, or disconnects before it does so."""
    client = ToolClient(draws.randrange(1_000_000), "")
    try:
        await begin(session, router, client)
    except RigError:
        return "wrong"
    if draws.random() < HANGS_UP:
        return "left"
    status, reply = await ask_with_results(session, router, [*client.messages, *client.results])
    if status != 200:
        return "told" if "error" in reply else "broken"
    client.answer = reply["choices"][0]["message"]["content"] or ""
    return "whole" if client.is_right else "wrong"


async def _cancel_in_background(router: RouterProcess, session: aiohttp.ClientSession) -> str:
    body = {**KINDS["long chat"].body, "podium": {"background": True}}
    async with session.post(router.url + CHAT, json=body) as response:
        reply = await response.json()
    if response.status != 202:
        return "told" if "error" in reply else "wrong"
    async with session.post(f"{router.url}/v1/workflows/{reply['id']}/cancel") as response:
        return "whole" if response.status in (200, 202, 204) else "wrong"
