"""Podium vs. LiteLLM's proxy: one worker process of each, the same upstream, the same machine, in turn.

Podium is served as in production, behind HAProxy. A round asks each side, and the upstream without a proxy:
one request at a time, then 32 concurrent ones, then 16 concurrent streams; which side begins changes from
round to round. The text of every answer is checked, so that nobody wins by dropping words. The client's work
is the same for all.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median

import aiohttp

from bench import litellm
from bench.client import CHAT, Client, chat, rate_per_s, times_ms
from bench.echo_upstream import TEXT
from bench.figures import Figure, figure
from bench.server import BenchError, production_server, running
from bench.subprocess_server import echo_upstream
from loadtest.sse import read_stream

ROUNDS = 5
ROUND_S = 2.5
SEQUENTIAL = 100
CLIENTS = 32
STREAMING_CLIENTS = 16
BODY = chat(litellm.MODEL)
STREAMED_BODY = BODY | {"stream": True}


@dataclass(frozen=True, slots=True)
class ProxySide:
    """One side in one round."""

    p50_ms: float
    """One client, request to complete answer."""
    rps: float
    streams_per_s: float


@dataclass(frozen=True, slots=True)
class ProxyRound:
    """One round of all three."""

    podium: ProxySide
    litellm: ProxySide
    upstream: ProxySide

    def overhead_ms(self, side: ProxySide) -> float:
        """The latency that `side` adds to the upstream's."""
        return side.p50_ms - self.upstream.p50_ms


def figures(rounds: Sequence[ProxyRound]) -> list[Figure]:
    """The medians of the ratios of each round."""
    podium, peer = [each.podium for each in rounds], [each.litellm for each in rounds]
    pairs = list(zip(podium, peer, strict=True))
    podium_ms = [each.overhead_ms(each.podium) for each in rounds]
    peer_ms = [each.overhead_ms(each.litellm) for each in rounds]
    return [
        figure("passthrough_rps_over_litellm", [ours.rps / theirs.rps for ours, theirs in pairs]),
        figure(
            "added_p50_over_litellm", [ours / theirs for ours, theirs in zip(podium_ms, peer_ms, strict=True)]
        ),
        figure("streams_over_litellm", [ours.streams_per_s / theirs.streams_per_s for ours, theirs in pairs]),
        figure("podium_rps", [side.rps for side in podium]),
        figure("litellm_rps", [side.rps for side in peer]),
        figure("podium_added_p50_ms", podium_ms),
        figure("litellm_added_p50_ms", peer_ms),
        figure("podium_streams_per_s", [side.streams_per_s for side in podium]),
        figure("litellm_streams_per_s", [side.streams_per_s for side in peer]),
        figure("upstream_rps", [each.upstream.rps for each in rounds]),
    ]


async def ask(client: Client) -> None:
    """Ask for a whole answer.

    Raises:
        BenchError: the status is not 200, or the text is not the upstream's.
    """
    answer = await client.post_json(CHAT, BODY)
    _check_text(answer["choices"][0]["message"]["content"], client.url)


async def stream(client: Client) -> None:
    """Ask for a stream, and read it to its end.

    Raises:
        BenchError: the status is not 200, or the text is not the upstream's.
        BrokenStreamError: the stream holds an error, or ends before `[DONE]`.
    """
    content = await client.post(CHAT, STREAMED_BODY)
    _check_text(read_stream([(0.0, line) for line in content.splitlines()], 0.0).text, client.url)


def _check_text(text: str, url: str) -> None:
    if text != TEXT:
        raise BenchError(f"{url} answered {text!r} instead of {TEXT!r}")


async def _measure_side(client: Client) -> ProxySide:
    return ProxySide(
        p50_ms=median(await times_ms(lambda: ask(client), SEQUENTIAL)),
        rps=await rate_per_s(lambda: ask(client), CLIENTS, ROUND_S),
        streams_per_s=await rate_per_s(lambda: stream(client), STREAMING_CLIENTS, ROUND_S),
    )


async def measure(
    session: aiohttp.ClientSession, tick: Callable[[], None], say: Callable[[str], None]
) -> list[Figure]:
    """`ROUNDS` rounds, after a second of each side that does not count."""
    await asyncio.to_thread(litellm.build, say)
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(echo_upstream())
        server = await stack.enter_async_context(running(production_server(f"{upstream}/v1")))
        peer = await stack.enter_async_context(litellm.serve(f"{upstream}/v1"))
        urls = {"podium": server.url, "litellm": peer, "upstream": upstream}
        sides = {name: Client(session, url) for name, url in urls.items()}
        for client in sides.values():
            await _warm_up(client)
        rounds: list[ProxyRound] = []
        for number in range(ROUNDS):
            order = sorted(sides, reverse=number % 2 == 0)
            rounds.append(ProxyRound(**{name: await _measure_side(sides[name]) for name in order}))
            tick()
    return figures(rounds)


async def _warm_up(client: Client) -> None:
    requests: list[Callable[[], Awaitable[None]]] = [lambda: ask(client), lambda: stream(client)]
    for request in requests:
        await rate_per_s(request, STREAMING_CLIENTS, 1.0)
