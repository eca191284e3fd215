"""What stands between a worker's first answer token and the client, on a connection that is open, one stream at a time.

The promise is about the token's own way: from when a worker's server in this process wrote its first token to when the client
here read it, by one clock: through the provider's SDK, the router, Serve's proxy and both HTTP connections. Nothing is subtracted.

Round trip: from sending the request to the first token, less the scripted worker's delay. That adds the request's way
in, and is the stricter number; most of it is Serve's, so the answer of the bare ingress, asked in between, stands beside it.
All three take turns.
"""

import time
from collections.abc import Callable, Sequence

from bench.client import Client, chat
from bench.figures import Figure, figure, p95
from bench.server import BenchError
from bench.upstream import Upstream

STREAMS = 100
WARM_UP = 5
"""Streams of each sort that do not count."""
DELAY_S = 0.1
"""Of the worker `prompt` in settings.yaml."""
BARE = "/bare/900"


def figures(
    out_ms: Sequence[float], first_token_ms: Sequence[float], bare_ms: Sequence[float]
) -> list[Figure]:
    """From milliseconds: the token's way; the request to the scripted worker's first token; the bare ingress's answer."""
    added_ms = [ms - 1000 * DELAY_S for ms in first_token_ms]
    return [
        figure("answer_token_added_p50_ms", out_ms),
        figure("answer_token_added_p95_ms", out_ms, p95),
        figure("round_trip_added_p50_ms", added_ms),
        figure("round_trip_added_p95_ms", added_ms, p95),
        figure("bare_serve_p50_ms", bare_ms),
    ]


async def measure(
    client: Client, served: Client, upstream: Upstream, tick: Callable[[], None]
) -> list[Figure]:
    """`STREAMS` of each sort; `served` has the workers that `upstream` serves."""
    samples: list[tuple[float, float, float]] = []
    for number in range(WARM_UP + STREAMS):
        samples.append(
            (
                await _way_out_ms(served, upstream, number),
                await _round_trip_ms(client),
                await _bare_ms(client),
            )
        )
        tick()
    out_ms, first_token_ms, bare_ms = zip(*samples[WARM_UP:], strict=True)
    return figures(out_ms, first_token_ms, bare_ms)


async def _way_out_ms(served: Client, upstream: Upstream, number: int) -> float:
    question = f"run-tokens{number}-"
    seen, began_s = await served.stream(chat("brief", question=question))
    spoke_s = upstream.calls(question)[0].spoke_s
    if seen.first_token_ms is None or spoke_s is None:
        raise BenchError("a stream of the worker `brief` ended without a word")
    return seen.first_token_ms - 1000 * (spoke_s - began_s)


async def _round_trip_ms(client: Client) -> float:
    seen, _ = await client.stream(chat("prompt"))
    if seen.first_token_ms is None:
        raise BenchError("a stream of the worker `prompt` ended without a word")
    return seen.first_token_ms


async def _bare_ms(client: Client) -> float:
    began_s = time.monotonic()
    await client.post(BARE, chat("prompt"))
    return 1000 * (time.monotonic() - began_s)
