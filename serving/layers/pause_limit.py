"""How long a worker may fall silent in the middle of an answer: learned from its own, where another one can go on.

The time itself runs in the worker (`serving.workers.stall_timer`), which knows words from comments and pings and
does not count a slow reader's time.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from conductor.model.call import Call
from conductor.model.field_values import copy_with
from conductor.model.pauses import Pauses
from conductor.model.reply import Reply
from conductor.model.worker import Worker
from serving.health import WorkerHealth
from serving.layers.layer import Layer

KNOWN_ANSWERS = 20
"""So many are enough to go by; until then, and while its calls fail, the settings alone say how long."""
TIMES_P99 = 4.0
LEAST_S = 20.0
"""What is cut is paid and half shown, so a pause must be far from usual."""


class PauseLimit(Layer):
    """`worker`, given up in the middle of an answer where it pauses far longer than usual and another one is free to go
    on. Alone, and where its answer could not go on, it is waited for.

    Args:
        worker: who is called.
        health: of its newest calls.
    """

    def __init__(self, worker: Worker, health: WorkerHealth) -> None:
        super().__init__(worker)
        self._health = health

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`."""
        is_limited = call.has_stand_in and call.outlasts_break
        pauses = Pauses(usual_pause_s(self._health) if is_limited else None)
        async with self._worker.open(copy_with(call, pauses=pauses)) as reply:
            yield reply
        if reply.finish is not None and pauses.longest_s is not None:
            self._health.pause(pauses.longest_s)


def usual_pause_s(health: WorkerHealth) -> float | None:
    """After a longer one the next word is probably not coming; None where too little is known."""
    if health.pauses < KNOWN_ANSWERS or health.circuit != "closed":
        return None
    return max(LEAST_S, TIMES_P99 * (health.pause_s(0.99) or 0.0))
