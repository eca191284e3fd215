"""How long a first token may take, learned from the worker's own.

The time itself runs in the worker (`serving.workers.stall_timer`), which knows words from comments, pings
and headers.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

from conductor.model.call import Call
from conductor.model.reply import Reply
from conductor.model.worker import Worker
from serving.health import WorkerHealth
from serving.layers.layer import Layer

KNOWN_CALLS = 20
"""So many first tokens are enough to go by."""
START_S = 30.0
"""Until then, and while its calls fail: what it was like before says nothing then, and one that has become
slower for good comes back."""
TIMES_P99 = 4.0
LEAST_S = 10.0


class FirstTokenLimit(Layer):
    """`worker`, given up where its first token takes far longer than usual and another one is free to
    answer in its place. Alone it is waited for.
    """

    def __init__(self, worker: Worker, health: WorkerHealth) -> None:
        super().__init__(worker)
        self._health = health

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`."""
        if call.has_stand_in:
            call = replace(call, first_token_s=usual_limit_s(self._health))
        async with self._worker.open(call) as reply:
            yield reply


def usual_limit_s(health: WorkerHealth) -> float:
    """Beyond it a first token is probably not coming."""
    p99_s = health.first_token_s(0.99)
    if p99_s is None or health.first_tokens < KNOWN_CALLS or health.circuit != "closed":
        return START_S
    return max(LEAST_S, TIMES_P99 * p99_s)
