"""Podium beside LiteLLM's proxy: one worker process of each over the same instant upstream, on the same machine, turn about.

Podium is served as in production: behind HAProxy. A round asks each side, and the upstream by itself, one at a time, then 32 at once,
then for 16 streams at once; which side begins changes from round to round. Every answer's text is checked, so that nobody wins
by dropping words; the client's work is the same for all.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median

import aiohttp
import orjson

from bench import litellm
from bench.client import CHAT, Client, chat, per_s, times_ms
from bench.echo_upstream import TEXT
from bench.figures import Figure, figure
from bench.server import BenchError, entered, fast
from bench.subprocess_server import instant
from loadtest.sse import felt

ROUNDS = 5
ROUND_S = 2.5
ONE_BY_ONE = 100
CLIENTS = 32
STREAMING_CLIENTS = 16
BODY = chat(litellm.MODEL)
STREAMED = BODY | {"stream": True}


@dataclass(frozen=True, slots=True)
class Side:
    """What one side did in one round."""

    p50_ms: float
    """One client, request to whole answer."""
    rps: float
    streams_per_s: float


@dataclass(frozen=True, slots=True)
class Round:
    """One round of all three."""

    podium: Side
    litellm: Side
    upstream: Side

    def added_ms(self, side: Side) -> float:
        """What `side` adds to an answer of the upstream's."""
        return side.p50_ms - self.upstream.p50_ms


def figures(rounds: Sequence[Round]) -> list[Figure]:
    """Ratios of each round, then their medians."""
    ours, theirs = [each.podium for each in rounds], [each.litellm for each in rounds]
    pairs = list(zip(ours, theirs, strict=True))
    ours_ms = [each.added_ms(each.podium) for each in rounds]
    theirs_ms = [each.added_ms(each.litellm) for each in rounds]
    return [
        figure("passthrough_rps_over_litellm", [us.rps / them.rps for us, them in pairs]),
        figure("added_p50_over_litellm", [us / them for us, them in zip(ours_ms, theirs_ms, strict=True)]),
        figure("streams_over_litellm", [us.streams_per_s / them.streams_per_s for us, them in pairs]),
        figure("podium_rps", [side.rps for side in ours]),
        figure("litellm_rps", [side.rps for side in theirs]),
        figure("podium_added_p50_ms", ours_ms),
        figure("litellm_added_p50_ms", theirs_ms),
        figure("podium_streams_per_s", [side.streams_per_s for side in ours]),
        figure("litellm_streams_per_s", [side.streams_per_s for side in theirs]),
        figure("upstream_rps", [each.upstream.rps for each in rounds]),
    ]


async def whole(client: Client) -> None:
    """Ask once.

    Raises:
        BenchError: the status is not 200, or the text is not the upstream's.
    """
    answer = orjson.loads(await client.post(CHAT, BODY))
    _same(answer["choices"][0]["message"]["content"], client.url)


async def streamed(client: Client) -> None:
    """Ask for a stream, and read it to its end.

    Raises:
        BenchError: the status is not 200, or the text is not the upstream's.
        BrokenStreamError: it holds an error, or ends before `[DONE]`.
    """
    content = await client.post(CHAT, STREAMED)
    _same(felt(content.splitlines(), time.perf_counter()).text, client.url)


def _same(text: str, url: str) -> None:
    if text != TEXT:
        raise BenchError(f"{url} gave {text!r} in place of {TEXT!r}")


async def _side(client: Client) -> Side:
    return Side(
        p50_ms=median(await times_ms(lambda: whole(client), ONE_BY_ONE)),
        rps=await per_s(lambda: whole(client), CLIENTS, ROUND_S),
        streams_per_s=await per_s(lambda: streamed(client), STREAMING_CLIENTS, ROUND_S),
    )


async def measure(
    session: aiohttp.ClientSession, tick: Callable[[], None], say: Callable[[str], None]
) -> list[Figure]:
    """`ROUNDS` rounds, after a second of each side that does not count."""
    await asyncio.to_thread(litellm.build, say)
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(instant())
        server = await stack.enter_async_context(entered(fast(f"{upstream}/v1")))
        peer = await stack.enter_async_context(litellm.serving(f"{upstream}/v1"))
        urls = {"podium": server.url, "litellm": peer, "upstream": upstream}
        sides = {name: Client(session, url) for name, url in urls.items()}
        for client in sides.values():
            await _warm_up(client)
        rounds: list[Round] = []
        for number in range(ROUNDS):
            order = sorted(sides, reverse=number % 2 == 0)
            rounds.append(Round(**{name: await _side(sides[name]) for name in order}))
            tick()
    return figures(rounds)


async def _warm_up(client: Client) -> None:
    asks: list[Callable[[], Awaitable[None]]] = [lambda: whole(client), lambda: streamed(client)]
    for ask in asks:
        await per_s(ask, STREAMING_CLIENTS, 1.0)
