"""Compare two proxies in front of the same upstream: the measurements of a round, and the figures.

A round measures each side in turn, with one request at a time, one stream at a time, 32 clients, and the
streams of 16 clients. The side that starts alternates between rounds. The text of every answer is checked, so
that a proxy cannot gain by dropping words. The client does the same work for all sides.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import psutil

from loadtest.bench.figures import Figure, figure
from loadtest.rig import RigError
from loadtest.rig.client import CHAT, BenchClient, chat
from loadtest.rig.closed_loop import rate_and_cpu, rate_per_s, times_ms
from loadtest.rig.echo_upstream import CHUNKS, TEXT
from loadtest.sse import read_stream

ROUND_S = 2.5
SEQUENTIAL = 100
CLIENTS = 32
STREAMING_CLIENTS = 16
BODY = chat("m")
STREAMED_BODY = BODY | {"stream": True}


@dataclass(frozen=True, slots=True)
class ProxySide:
    """Measurements of one side in one round."""

    p50_ms: float
    """Median latency of a complete answer, one client."""
    first_token_ms: float
    """Median time to the first token of a stream, one client."""
    rps: float
    streams_per_s: float
    cpu_ms: float = 0.0
    """CPU milliseconds that the side's processes use per answer, over all cores. It is 0 for the upstream."""
    chunk_cpu_us: float = 0.0
    """CPU microseconds per streamed chunk: the extra cost of a stream divided by its chunks."""


Processes = Callable[[], Sequence[psutil.Process]]
"""Function that returns the current processes of a side, whose CPU time counts."""
ProxyRound = Mapping[str, ProxySide]
"""Measurements of one round by side. The side `upstream` has no proxy."""


def compare(ours: str, peer: str, rounds: Sequence[ProxyRound]) -> list[Figure]:
    """Compute the ratios between both proxies (the median over all rounds), and the figures of each."""

    def overhead(name: str, of: Callable[[ProxySide], float]) -> list[float]:
        """Return what the proxy `name` adds to the upstream alone, by round."""
        return [of(each[name]) - of(each["upstream"]) for each in rounds]

    def ratio(of: Callable[[str], Sequence[float]]) -> list[float]:
        return [mine / theirs for mine, theirs in zip(of(ours), of(peer), strict=True)]

    p50_ms = {name: overhead(name, lambda side: side.p50_ms) for name in (ours, peer)}
    first_ms = {name: overhead(name, lambda side: side.first_token_ms) for name in (ours, peer)}
    rps = {name: [each[name].rps for each in rounds] for name in (ours, peer)}
    streams = {name: [each[name].streams_per_s for each in rounds] for name in (ours, peer)}
    results = [
        figure(f"passthrough_rps_over_{peer}", ratio(rps.__getitem__)),
        figure(f"added_p50_over_{peer}", ratio(p50_ms.__getitem__)),
        figure(f"added_first_token_over_{peer}", ratio(first_ms.__getitem__)),
        figure(f"streams_over_{peer}", ratio(streams.__getitem__)),
    ]
    for name in (ours, peer):
        results += [
            figure(f"{name}_rps", rps[name]),
            figure(f"{name}_added_p50_ms", p50_ms[name]),
            figure(f"{name}_added_first_token_ms", first_ms[name]),
            figure(f"{name}_streams_per_s", streams[name]),
            figure(f"{name}_cpu_ms_per_request", [each[name].cpu_ms for each in rounds]),
            figure(f"{name}_cpu_us_per_chunk", [each[name].chunk_cpu_us for each in rounds]),
        ]
    return results


async def ask(client: BenchClient) -> None:
    """Request an answer without streaming, and check its text."""
    answer = await client.post_json(CHAT, BODY)
    _check_text(answer["choices"][0]["message"]["content"], client.url)


async def stream(client: BenchClient) -> None:
    """Request a stream, read it to its end, and check its text."""
    content = await client.post(CHAT, STREAMED_BODY)
    _check_text(read_stream([(0.0, line) for line in content.splitlines()], 0.0).text, client.url)


async def _first_token_ms(client: BenchClient) -> float:
    result, _ = await client.stream(BODY)
    _check_text(result.text, client.url)
    assert result.first_token_ms is not None
    return result.first_token_ms


def _check_text(text: str, url: str) -> None:
    if text != TEXT:
        raise RigError(f"{url} returned {text!r} instead of {TEXT!r}.")


async def measure_side(client: BenchClient, processes: Processes) -> ProxySide:
    p50_ms = median(await times_ms(lambda: ask(client), SEQUENTIAL))
    first_token_ms = median([await _first_token_ms(client) for _ in range(SEQUENTIAL)])
    rps, answer_ms = await rate_and_cpu(lambda: ask(client), CLIENTS, ROUND_S, processes())
    streams_per_s, stream_ms = await rate_and_cpu(
        lambda: stream(client), STREAMING_CLIENTS, ROUND_S, processes()
    )
    chunk_us = 1000 * (stream_ms - answer_ms) / CHUNKS
    return ProxySide(p50_ms, first_token_ms, rps, streams_per_s, answer_ms, chunk_us)


async def measure_round(
    clients: Mapping[str, BenchClient], processes: Mapping[str, Processes], number: int
) -> ProxyRound:
    """Measure all sides in a round. The CPU time of a side that is not in `processes` counts as 0."""
    order = sorted(clients, reverse=number % 2 == 0)
    return {name: await measure_side(clients[name], processes.get(name, list)) for name in order}


async def warm_up(client: BenchClient) -> None:
    """Send each kind of request for one second before the measurement."""
    requests: list[Callable[[], Awaitable[None]]] = [lambda: ask(client), lambda: stream(client)]
    for request in requests:
        await rate_per_s(request, STREAMING_CLIENTS, 1.0)
