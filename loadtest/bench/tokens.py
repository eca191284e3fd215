"""Time that the first answer token takes from the worker to the client, on an open connection, one stream at
a time.

The target applies to the token itself: the time from when a worker's server in this process writes its first
token until the client in this process reads it, by one clock. The token passes the provider's SDK, the
router, Serve's proxy and both HTTP connections. Nothing is subtracted.

The round trip is also measured, from sending the request to the first token, minus the scripted worker's
delay. It includes the way of the request and is therefore the stricter number. Most of it is Serve's own
time, so the baseline ingress is measured too. The three measurements take turns.
"""

from collections.abc import Callable, Sequence

from loadtest.bench.figures import Figure, figure, p95
from loadtest.rig import RigError
from loadtest.rig.client import BenchClient, chat
from loadtest.rig.closed_loop import times_ms
from loadtest.rig.fake_openai import FakeOpenAI

STREAMS = 100
WARM_UP = 5
"""Warm-up streams of each kind."""
DELAY_S = 0.1
"""Delay of the worker `prompt` in settings.yaml."""
BARE = "/bare/900"


def figures(
    out_ms: Sequence[float], first_token_ms: Sequence[float], bare_ms: Sequence[float]
) -> list[Figure]:
    """Compute the figures in milliseconds: tokens from write to read, requests to first tokens, the baseline."""
    added_ms = [ms - 1000 * DELAY_S for ms in first_token_ms]
    return [
        figure("answer_token_added_p50_ms", out_ms),
        figure("answer_token_added_p95_ms", out_ms, p95),
        figure("round_trip_added_p50_ms", added_ms),
        figure("round_trip_added_p95_ms", added_ms, p95),
        figure("bare_serve_p50_ms", bare_ms),
    ]


async def measure(
    client: BenchClient, proxied: BenchClient, upstream: FakeOpenAI, tick: Callable[[], None]
) -> list[Figure]:
    """Measure `STREAMS` streams of each kind. `upstream` serves the workers that `proxied` calls."""
    samples: list[tuple[float, float, float]] = []
    for number in range(WARM_UP + STREAMS):
        out_ms = await _way_out_ms(proxied, upstream, number)
        round_trip_ms = await _round_trip_ms(client)
        (bare_ms,) = await times_ms(lambda: client.post(BARE, chat("prompt")), 1)
        samples.append((out_ms, round_trip_ms, bare_ms))
        tick()
    return figures(*zip(*samples[WARM_UP:], strict=True))


async def _way_out_ms(proxied: BenchClient, upstream: FakeOpenAI, number: int) -> float:
    question = f"run-tokens{number}-"
    result, began_s = await proxied.stream(chat("brief", question=question))
    spoke_s = upstream.calls_of(question)[0].spoke_s
    if result.first_token_ms is None or spoke_s is None:
        raise RigError("A stream of the worker `brief` ended without any text.")
    return result.first_token_ms - 1000 * (spoke_s - began_s)


async def _round_trip_ms(client: BenchClient) -> float:
    result, _ = await client.stream(chat("prompt"))
    if result.first_token_ms is None:
        raise RigError("A stream of the worker `prompt` ended without any text.")
    return result.first_token_ms
