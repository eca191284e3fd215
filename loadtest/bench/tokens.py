"""What stands between a worker's first answer token and the client.

Added: the client's seconds from sending the request to the first piece of content, on a connection that is open, less
the scripted worker's delay. That is both ways through the proxy and the router, and the lateness of the worker's timer.
Out: from when a worker's server in this process wrote its first token to when the client here read it, by one clock: the
way the token takes, through the provider's SDK, the router and the proxy. Both are pass-through and take turns.
"""

from collections.abc import Callable, Sequence

from loadtest.bench.client import Client, chat
from loadtest.bench.figures import Figure, figure, p95
from loadtest.bench.server import BenchError
from loadtest.bench.upstream import Upstream

STREAMS = 100
WARM_UP = 5
"""Streams of each sort that do not count."""
DELAY_S = 0.1
"""Of the worker `prompt` in settings.yaml."""


def figures(first_token_ms: Sequence[float], out_ms: Sequence[float]) -> list[Figure]:
    """From milliseconds: request to first token; and first token from server to client."""
    added_ms = [ms - 1000 * DELAY_S for ms in first_token_ms]
    return [
        figure("answer_token_added_p50_ms", added_ms),
        figure("answer_token_added_p95_ms", added_ms, p95),
        figure("answer_token_out_p50_ms", out_ms),
        figure("answer_token_out_p95_ms", out_ms, p95),
    ]


async def measure(
    client: Client, served: Client, upstream: Upstream, tick: Callable[[], None]
) -> list[Figure]:
    """`STREAMS` streams of each sort, one at a time; `served` has the workers that `upstream` serves."""
    first_token_ms: list[float] = []
    out_ms: list[float] = []
    for number in range(WARM_UP + STREAMS):
        seen, _ = await client.stream(chat("prompt"))
        question = f"run-tokens{number}-"
        from_server, began_s = await served.stream(chat("brief", question=question))
        spoke_s = upstream.calls(question)[0].spoke_s
        if seen.first_token_ms is None or from_server.first_token_ms is None or spoke_s is None:
            raise BenchError("a stream ended without a word")
        if number >= WARM_UP:
            first_token_ms.append(seen.first_token_ms)
            out_ms.append(from_server.first_token_ms - 1000 * (spoke_s - began_s))
        tick()
    return figures(first_token_ms, out_ms)
