"""How long a first token may take: learned from the worker's own, and no more than a share of the caller's time.

The time itself runs in the worker (`serving.workers.stall_timer`), which knows words from comments, pings
and headers.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from conductor.model.call import Call
from conductor.model.field_values import copy_with
from conductor.model.reply import Reply
from conductor.model.worker import Worker
from serving.health import WorkerHealth
from serving.layers.layer import Layer

KNOWN_CALLS = 20
"""So many first tokens are enough to go by."""
FIRST_WORD_WITHIN_S = 15.0
"""Until then the client has a word after so long, whoever says it."""
STAND_IN_S = 2.0
"""The part of that which is the other worker's: it has to be called and to begin."""
START_S = FIRST_WORD_WITHIN_S - STAND_IN_S
"""The limit until then."""
FAILING_S = 30.0
"""The limit while its calls fail: what it was like before says nothing then, and one that has become slower for good
comes back."""
TIMES_P99 = 4.0
LEAST_S = 10.0
SHARE = 0.5
"""Of the time until the deadline: the rest is for whoever answers in its place."""
TELLING_TIMES_P99 = 2.0
TELLING_LEAST_S = 3.0


class FirstTokenLimit(Layer):
    """`worker`, given up where its first token takes far longer than usual, or half of the caller's time, and another
    one is free to answer in its place. Alone it is waited for.
    """

    def __init__(self, worker: Worker, health: WorkerHealth, *, is_learned: bool = True) -> None:
        """Knows the newest first tokens.

        Args:
            worker: who is called.
            health: of its newest calls.
            is_learned: whether what is usual holds; else the settings say how long, or nobody knows.
        """
        super().__init__(worker)
        self._health, self._is_learned = health, is_learned

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`."""
        if call.has_stand_in:
            usual_s = usual_limit_s(self._health) if self._is_learned else None
            call = copy_with(call, first_token_s=usual_s, patience_s=_patience_s(call))
        async with self._worker.open(call) as reply:
            yield reply


def usual_limit_s(health: WorkerHealth) -> float:
    """Beyond it a first token is probably not coming."""
    p99_s = _p99_s(health)
    if p99_s is None:
        return START_S
    return max(LEAST_S, TIMES_P99 * p99_s) if health.circuit == "closed" else FAILING_S


def telling_silence_s(health: WorkerHealth) -> float:
    """A call that was given up sooner says nothing of the worker, whatever its caller's patience; a longer silence is
    a failure. It is less than the limit, since nothing is cut by it.
    """
    p99_s = _p99_s(health)
    telling_s = LEAST_S if p99_s is None else max(TELLING_LEAST_S, TELLING_TIMES_P99 * p99_s)
    return min(telling_s, usual_limit_s(health))


def _p99_s(health: WorkerHealth) -> float | None:
    """None where too few first tokens are known."""
    return health.first_token_s(0.99) if health.first_tokens >= KNOWN_CALLS else None


def _patience_s(call: Call) -> float | None:
    if call.deadline_at_s is None:
        return None
    return max(0.0, SHARE * (call.deadline_at_s - time.monotonic()))
