"""Slots of a worker: how many calls it takes at once, and how long a call waits for one."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Protocol

from conductor.errors import LineTooLong
from conductor.model.call import Call
from conductor.model.terms import Priority, Terms
from serving.dispatch.fair_queue import FairQueue
from serving.health import WorkerHealth
from serving.witnesses import TRAFFIC_S

NEWEST = 0.1
"""Weight of the newest call in the average time that a slot is held."""
LONGEST_TOLD_S = 300.0
"""Longest `Retry-After`."""
WAIT_BESIDE_FREE_S = 5.0
"""Longest wait for a slot while another worker would answer at once."""


@dataclass(frozen=True, slots=True)
class QueueRules:
    """How one call waits for a slot.

    Args:
        waited_s: seconds that it has waited in other queues before.
        on_turn: called when it has a slot; raises a `WorkerError` if the call should not be sent any more.
        may_leave: called now and then while it waits; returns whether another worker would answer at once.
    """

    waited_s: float = 0.0
    on_turn: Callable[[], None] | None = None
    may_leave: Callable[[], bool] | None = None


NO_RULES = QueueRules()


class Limiter:
    """Slots of one worker or deployment. A call waits for a slot before it is sent, and holds it until it is closed;
    `FairQueue` says which call is next.

    A run that has paid for nothing yet is turned away if the queue is too long (`serving/sessions/admission.py`), or goes
    to a fallback. It is also turned away if it was admitted and got no slot within `max_wait_s`. Other calls wait,
    unless other workers are left to try: a call may be the third of a run that has paid for two.

    Args:
        name: of the worker, for errors.
        slots: the most calls at once.
        max_wait_s: the longest time that waiting for a slot is worth.
    """

    def __init__(self, name: str, slots: int, max_wait_s: float = inf) -> None:
        self.name, self.n_slots, self.max_wait_s = name, slots, max_wait_s
        self._queue = FairQueue(slots)
        self.queued = 0
        """Calls that wait for a slot now."""
        self._began_s: dict[object, float] = {}
        """Start times of the calls that hold a slot, the longest first."""
        self._coming: dict[str, str] = {}
        """Runs that were admitted to call this worker and have not yet, each with its payer."""
        self._held_s = 0.0
        """Average time that a slot is held."""
        self._moved_s = 0.0
        """When a slot last became free, or the first was taken, by `time.monotonic`."""

    @property
    def open_calls(self) -> int:
        """Calls that hold a place now."""
        return len(self._began_s)

    @property
    def is_full(self) -> bool:
        """Return whether one more call would wait."""
        return self.open_calls >= self.n_slots

    def has_idle(self, share: float, calls: int) -> bool:
        """Return whether `calls` more calls would use at most that share of the slots, and no call waits."""
        return not self.queued and self.open_calls + calls <= share * self.n_slots

    def wait_s(self, payer: str) -> float:
        """Estimate the wait of one more interactive call of `payer`, in seconds, from what is ahead of it and the pace of
        the newest calls. It grows while no slot becomes free.
        """
        ends = self._ends_before(payer)
        if ends <= 0:
            return 0.0
        still_s = time.monotonic() - self._moved_s if self.open_calls else 0.0
        pace_s = max(self._held_s, still_s) / self.n_slots
        return ends * pace_s

    def has_place(self, payer: str) -> bool:
        """Return whether one more interactive call of `payer` would get a slot at once."""
        return self._ends_before(payer) <= 0

    def _ends_before(self, payer: str) -> int:
        """Return how many slots must become free before it gets one."""
        return self._queue.ahead(payer, Counter(self._coming.values())) + 1 - self._queue.free(payer)

    def _until_end_s(self, number: int) -> float:
        """Estimate when `number` of the open calls have ended, in seconds, if they take as long as the newest calls. Return
        0 if that time has passed, or if fewer are open.
        """
        if number <= 0:
            return 0.0
        began_s = next(islice(self._began_s.values(), number - 1, None), -inf)
        return max(0.0, began_s + self._held_s - time.monotonic())

    def is_overfull(self, priority: Priority, payer: str, *, is_other_free: bool = False) -> bool:
        """Return whether the queue is too long to join. The limit is shorter if another worker would answer at once; batch
        work may always wait.
        """
        if priority != "interactive":
            return False
        if is_other_free:
            wait_s = max(self.wait_s(payer), self._until_end_s(self._ends_before(payer)))
            return wait_s > self._beside_free_s
        return self.wait_s(payer) > self.max_wait_s

    @property
    def _beside_free_s(self) -> float:
        return min(self.max_wait_s, WAIT_BESIDE_FREE_S)

    @contextmanager
    def expect(self, run: str, payer: str) -> Generator[None]:
        """Count an admitted run as waiting until it calls this worker."""
        self._coming[run] = payer
        try:
            yield
        finally:
            self.arrive(run)

    def arrive(self, run: str) -> None:
        """Stop expecting a run: its call is here, or went to another worker."""
        self._coming.pop(run, None)

    def resize(self, slots: int) -> None:
        """Set the number of slots. Open calls keep theirs."""
        self.n_slots = slots
        self._queue.resize(slots)

    def on_sent(self, terms: Terms) -> None:
        """Record that a call is being sent."""

    def on_first_token(self, terms: Terms, sent_s: float, *, was_full: bool) -> None:
        """Record the first token of a call that was sent at `sent_s`."""

    def on_busy(self, call: Call, sent_s: float) -> None:
        """Record that the worker rejected a call as busy."""

    def slot(
        self,
        call: Call,
        waiting: AbstractContextManager[object] | None = None,
        rules: QueueRules = NO_RULES,
    ) -> AbstractAsyncContextManager[None]:
        """Wait for a slot, and hold it until the block is left.

        Args:
            call: that needs it.
            waiting: entered while it waits.
            rules: of its wait.

        Raises:
            LineTooLong: the run had paid for nothing and has waited for `max_wait_s`, other queues included; or another
                worker would answer at once.
        """
        return _Slot(self, call, waiting or nullcontext(), rules)

    async def acquire(
        self, slot: object, call: Call, waiting: AbstractContextManager[object], rules: QueueRules
    ) -> None:
        """Wait for a slot; see `slot`."""
        await self._wait_for_slot(call, waiting, rules)
        began_s = time.monotonic()
        if not self.open_calls:
            self._moved_s = began_s
        self._began_s[slot] = began_s

    def release(self, slot: object, call: Call) -> None:
        """Give it back."""
        began_s = self._began_s.pop(slot)
        self._moved_s = time.monotonic()
        self._average(self._moved_s - began_s)
        self._queue.give_back(call.terms.payer)

    async def _wait_for_slot(
        self,
        call: Call,
        waiting: AbstractContextManager[object],
        rules: QueueRules,
    ) -> None:
        terms = call.terms
        self.queued += 1
        self.arrive(call.site.run)
        try:
            with waiting:
                if not self._queue.take_now(terms.priority, terms.payer):
                    async with self._within_time(terms, rules):
                        await self._queue.take(terms.priority, terms.payer)
                if rules.on_turn is not None:
                    try:
                        rules.on_turn()
                    except BaseException:
                        self._queue.give_back(terms.payer)
                        raise
        finally:
            self.queued -= 1

    @asynccontextmanager
    async def _within_time(self, terms: Terms, rules: QueueRules) -> AsyncGenerator[None]:
        """End the wait of a call that may be turned away."""
        is_bounded = terms.begins and terms.priority == "interactive" and self.max_wait_s != inf
        may_wait_s = max(0.0, self.max_wait_s - rules.waited_s) if is_bounded else None
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(may_wait_s) as limit:
                with self._until_other_is_free(terms, limit, rules.may_leave):
                    yield
        except TimeoutError:
            again_s = max(1.0, min(self.wait_s(terms.payer), LONGEST_TOLD_S))
            message = f"{self.name} has too many calls before this one. Try again later."
            waited_s = time.monotonic() - began_s
            raise LineTooLong(message, worker=self.name, retry_after_s=again_s, waited_s=waited_s) from None

    @contextmanager
    def _until_other_is_free(
        self, terms: Terms, limit: asyncio.Timeout, may_leave: Callable[[], bool] | None
    ) -> Generator[None]:
        """Ask now and then whether another worker would answer at once, and end the wait if so."""
        if may_leave is None or terms.priority == "batch":
            yield
            return
        loop = asyncio.get_running_loop()

        def look() -> None:
            nonlocal timer
            if limit.expired():  # it leaves in the same moment
                return
            if may_leave():
                limit.reschedule(loop.time())
            else:
                timer = loop.call_later(self._beside_free_s, look)

        timer = loop.call_later(self._beside_free_s, look)
        try:
            yield
        finally:
            timer.cancel()

    def _average(self, held_s: float) -> None:
        self._held_s += (held_s - self._held_s) * (NEWEST if self._held_s else 1.0)
        self._queue.lent_after_s = max(
            TRAFFIC_S, self._held_s
        )  # for about so long a place that is lent is gone


class _Slot(AbstractAsyncContextManager[None]):
    """One call's slot."""

    def __init__(
        self, limiter: Limiter, call: Call, waiting: AbstractContextManager[object], rules: QueueRules
    ) -> None:
        self._limiter, self._call, self._waiting, self._rules = limiter, call, waiting, rules

    async def __aenter__(self) -> None:
        await self._limiter.acquire(self, self._call, self._waiting, self._rules)

    async def __aexit__(self, *exc: object) -> None:
        self._limiter.release(self, self._call)


class Deployed(Protocol):
    """A deployment, as far as its slots are concerned."""

    @property
    def limiter(self) -> Limiter:
        """Its own slots."""
        ...

    @property
    def health(self) -> WorkerHealth:
        """Of its newest calls."""
        ...

    @property
    def wait_s(self) -> float:
        """Seconds until its rate limit admits a call."""
        ...


class SharedLimiter(Limiter):
    """Slots of a worker with several deployments: as many as the healthy ones take together, and no more than `slots`.

    All calls of the worker wait in this one queue. What each deployment takes changes (`AdaptiveLimiter`), so it is
    looked at with each call that comes or goes.
    """

    def __init__(
        self, name: str, deployments: Sequence[Deployed], slots: int, max_wait_s: float = inf
    ) -> None:
        super().__init__(name, slots, max_wait_s)
        self._most, self._deployments = slots, deployments
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    async def acquire(
        self, slot: object, call: Call, waiting: AbstractContextManager[object], rules: QueueRules
    ) -> None:
        """See `Limiter.acquire`."""
        self._look()
        try:
            await super().acquire(slot, call, waiting, rules)
        except BaseException:
            self._keep_looking()
            raise

    def release(self, slot: object, call: Call) -> None:
        """See `Limiter.release`."""
        super().release(slot, call)
        self._keep_looking()

    def _look(self) -> None:
        """If no deployment is healthy, each may still be tried. One that may have recovered gets one call."""
        healthy = [each for each in self._deployments if not _unavailable_s(each)]
        slots = [
            1 if each.health.circuit == "half_open" else each.limiter.n_slots
            for each in healthy or self._deployments
        ]
        if self.n_slots != (n := min(self._most, sum(slots))):
            self.resize(n)

    def _keep_looking(self) -> None:
        """Look, and again when the next unavailable deployment may be tried."""
        self._look()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waits_s = [wait_s for each in self._deployments if (wait_s := _unavailable_s(each))]
        if waits_s:
            self._timer = asyncio.get_running_loop().call_later(min(waits_s), self._keep_looking)


def _unavailable_s(deployment: Deployed) -> float:
    return max(deployment.health.rest_s, deployment.wait_s)
