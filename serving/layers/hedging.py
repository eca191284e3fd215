"""A second call where the first is later than most: whichever speaks first answers.

"The Tail at Scale" (Dean and Barroso, CACM 56, 2013): a hedge after the 95th percentile takes the tail off at the
price of a few more calls. How a call is raced is `race.py`'s.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from conductor.model.call import Call
from conductor.model.reply import Reply
from conductor.model.worker import Worker
from serving.health import WorkerHealth
from serving.layers.layer import Layer
from serving.layers.limited import Limited
from serving.layers.race import Race
from serving.layers.retry_budget import RetryBudget

AFTER = 0.95
"""A hedge is made once a first token takes longer than this part of the newest calls' did."""
MOST = 0.05
"""Of the calls, so many more."""
KNOWN_CALLS = 20
"""So many first tokens are enough to go by."""
IDLE = 0.5
"""Of the slots: where more are in use, hedges included, none is made."""


class Hedging(Layer):
    """`worker`, asked once more where its first token is late and it has idle slots.

    What was shown is never at stake: it is decided before the first token. The loser is closed, and paid as all
    that it can have cost. No call waits for a hedge.
    """

    def __init__(self, worker: Worker, limiter: Limited, health: WorkerHealth) -> None:
        super().__init__(worker)
        self._limiter, self._health = limiter, health
        self._budget = RetryBudget(MOST, start=0.0)

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`; `attempts` of the reply have the call that lost."""
        self._budget.earn()
        after_s = self._after_s(call)
        if after_s is None:
            async with self._worker.open(call) as reply:
                yield reply
            return
        async with Race(self._worker, call, self._health).run(after_s, self._may_hedge) as reply:
            yield reply

    def _after_s(self, call: Call) -> float | None:
        """When a hedge would be made; None: none will be."""
        if call.hedges is None or call.site.operation == "embeddings" or not self._is_idle:
            return None
        if self._health.first_tokens < KNOWN_CALLS or self._health.circuit != "closed":
            return None
        return self._health.first_token_s(AFTER)

    @property
    def _is_idle(self) -> bool:
        return self._limiter.has_idle(IDLE, 1)

    def _may_hedge(self) -> bool:
        """Whether a hedge may be made now; it is counted then."""
        return self._is_idle and self._health.circuit == "closed" and self._budget.spend()
