"""Limit of a worker's concurrent calls, and the queue of calls that wait for a slot."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
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

from conductor.errors import LineTooLong, WorkerUnavailable
from conductor.model.call import Call
from conductor.model.terms import Priority, Terms
from serving.dispatch.slots import FairQueue, Slots
from serving.health import MAX_RETRY_AFTER_S
from serving.witnesses import TRAFFIC_S, Witnesses, witness_of

NEWEST = 0.1
"""Weight of the newest call in the moving average of the time that a slot is in use."""
IDLE_SHARE = 0.5
"""Maximum share of a worker's slots that may be in use when a call is sent that may be unnecessary, such as a hedge. It
includes that call."""
MAX_WAIT_WITH_FALLBACK_S = 5.0
"""Maximum wait for a slot while another worker can answer immediately."""


@dataclass(frozen=True, slots=True)
class QueueRules:
    """Rules for one call that waits for a slot.

    Args:
        waited_s: seconds that the call has already waited in other queues.
        on_turn: called when the call gets a slot. Raises a `WorkerError` if the call should no longer be
            sent.
        may_leave: called periodically while the call waits. Returns whether another worker can answer
            immediately.
    """

    waited_s: float = 0.0
    on_turn: Callable[[], None] | None = None
    may_leave: Callable[[], bool] | None = None


NO_RULES = QueueRules()


class CallSkipped(WorkerUnavailable):
    """Error for a queued call that was not sent: its circuit opened, or another worker can answer
    immediately. The last of `attempts` says which.
    """

    retryable = False
    only_this_call = True
    skipped_for: str = ""
    """Name of the worker that can answer immediately, or ""."""
    waited_s: float = 0.0
    """Seconds that the call waited in the queue before it left."""


class Limiter:
    """Slots of one worker or deployment.

    A call waits for a slot before it is sent, and holds the slot until it is closed. `FairQueue` decides
    which call is next.

    If the queue is too long (`serving/sessions/run_admission.py`), or if a call gets no slot within `max_wait_s`,
    the call is rejected or goes to a fallback. This applies only until the run has paid for a call. Later
    calls of the run keep waiting, unless another worker can still be tried.
    """

    def __init__(self, name: str, slots: int, max_wait_s: float = inf) -> None:
        self.name, self.n_slots, self.max_wait_s = name, slots, max_wait_s
        self._queue = FairQueue(slots)
        self.queued = 0
        """Number of calls that wait for a slot."""
        self._began_s: dict[object, float] = {}
        """Start times of the calls that hold a slot, oldest first."""
        self._coming: dict[str, str] = {}
        """Payers of the runs that were admitted to call this worker and have not called it yet, by run."""
        self._held_s = 0.0
        """Moving average of the time that a slot is in use, in seconds."""
        self._moved_s = 0.0
        """Time (`time.monotonic`) at which a slot last became free, or the first one was acquired."""

    @property
    def open_calls(self) -> int:
        return len(self._began_s)

    @property
    def is_full(self) -> bool:
        """True if one more call would have to wait."""
        return self.open_calls >= self.n_slots

    @property
    def has_idle(self) -> bool:
        """True if no call waits, and one more would use at most `IDLE_SHARE` of the slots."""
        return not self.queued and self.open_calls + 1 <= IDLE_SHARE * self.n_slots

    def can_reach(self, deployment: str) -> bool:
        """Return whether calls can be sent to a deployment now. The name of a worker's only deployment is ""."""
        return not deployment

    def wait_s(self, payer: str) -> float:
        """Estimate the seconds for one more interactive call of `payer`, from the queue and how long recent
        calls held slots. It grows while none becomes free.
        """
        ends = self._ends_before(payer)
        if ends <= 0:
            return 0.0
        still_s = time.monotonic() - self._moved_s if self.open_calls else 0.0
        pace_s = max(self._held_s, still_s) / self.n_slots
        return ends * pace_s

    def has_place(self, payer: str) -> bool:
        """Return whether one more interactive call of `payer` would get a slot immediately."""
        return self._ends_before(payer) <= 0

    def _ends_before(self, payer: str) -> int:
        """Return how many slots must become free before one more call of `payer` gets one."""
        return self._queue.ahead(payer, Counter(self._coming.values())) + 1 - self._queue.free(payer)

    def _until_end_s(self, number: int) -> float:
        """Estimate the seconds until `number` open calls end. Return 0 if they are overdue or fewer are open."""
        if number <= 0:
            return 0.0
        began_s = next(islice(self._began_s.values(), number - 1, None), -inf)
        return max(0.0, began_s + self._held_s - time.monotonic())

    def is_overfull(self, priority: Priority, payer: str, *, is_other_free: bool = False) -> bool:
        """Return whether the queue is too long to join. If another worker is free, the limit is shorter."""
        if priority != "interactive":
            return False
        if is_other_free:
            wait_s = max(self.wait_s(payer), self._until_end_s(self._ends_before(payer)))
            return wait_s > self._wait_with_fallback_s
        return self.wait_s(payer) > self.max_wait_s

    @property
    def _wait_with_fallback_s(self) -> float:
        return min(self.max_wait_s, MAX_WAIT_WITH_FALLBACK_S)

    @contextmanager
    def expect(self, run: str, payer: str) -> Generator[None]:
        """Count an admitted run as one more waiting call, until it calls this worker or the block ends."""
        self._coming[run] = payer
        try:
            yield
        finally:
            self.arrive(run)

    def arrive(self, run: str) -> None:
        """Stop counting a run that was expected (see `expect`), because it has called this or another worker."""
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
        self, call: Call, waiting: AbstractContextManager[object] | None = None, rules: QueueRules = NO_RULES
    ) -> AbstractAsyncContextManager[None]:
        """Wait for a slot, within `waiting`, and hold it in the block.

        Raise LineTooLong after `max_wait_s` in all queues if the run has not paid yet, or if another worker
        can answer immediately.
        """
        return _Slot(self, call, waiting or nullcontext(), rules)

    async def acquire(
        self, slot: object, call: Call, waiting: AbstractContextManager[object], rules: QueueRules
    ) -> None:
        await self._wait_for_slot(call, waiting, rules)
        began_s = time.monotonic()
        if not self.open_calls:
            self._moved_s = began_s
        self._began_s[slot] = began_s

    def release(self, slot: object, call: Call) -> None:
        began_s = self._began_s.pop(slot)
        self._moved_s = time.monotonic()
        self._average(self._moved_s - began_s)
        self._queue.give_back(call.terms.payer)

    async def _wait_for_slot(
        self, call: Call, waiting: AbstractContextManager[object], rules: QueueRules
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
        """Limit the wait of a call that may be rejected or moved. Raise LineTooLong at the end, or if another
        worker is free.
        """
        is_bounded = terms.is_first_paid_call and terms.priority == "interactive" and self.max_wait_s != inf
        may_wait_s = max(0.0, self.max_wait_s - rules.waited_s) if is_bounded else None
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(may_wait_s) as limit:
                with self._until_other_is_free(terms, limit, rules.may_leave):
                    yield
        except TimeoutError:
            again_s = max(1.0, min(self.wait_s(terms.payer), MAX_RETRY_AFTER_S))
            message = f"The queue of {self.name} is too long. Retry later."
            waited_s = time.monotonic() - began_s
            raise LineTooLong(message, worker=self.name, retry_after_s=again_s, waited_s=waited_s) from None

    @contextmanager
    def _until_other_is_free(
        self, terms: Terms, limit: asyncio.Timeout, may_leave: Callable[[], bool] | None
    ) -> Generator[None]:
        """End the wait when another worker can answer immediately. Checks periodically."""
        if may_leave is None or terms.priority == "batch":
            yield
            return
        loop = asyncio.get_running_loop()

        def look() -> None:
            nonlocal timer
            if limit.expired():  # the wait is ending already
                return
            if may_leave():
                limit.reschedule(loop.time())
            else:
                timer = loop.call_later(self._wait_with_fallback_s, look)

        timer = loop.call_later(self._wait_with_fallback_s, look)
        try:
            yield
        finally:
            timer.cancel()

    def _average(self, held_s: float) -> None:
        self._held_s += (held_s - self._held_s) * (NEWEST if self._held_s else 1.0)
        self._queue.lent_after_s = max(
            TRAFFIC_S, self._held_s
        )  # a lent slot stays in use for about this long


class _Slot(AbstractAsyncContextManager[None]):
    def __init__(
        self, limiter: Limiter, call: Call, waiting: AbstractContextManager[object], rules: QueueRules
    ) -> None:
        self._limiter, self._call, self._waiting, self._rules = limiter, call, waiting, rules

    async def __aenter__(self) -> None:
        await self._limiter.acquire(self, self._call, self._waiting, self._rules)

    async def __aexit__(self, *exc: object) -> None:
        self._limiter.release(self, self._call)


class AdaptiveLimiter(Limiter):
    """Limiter that learns how many calls the worker can handle at once. `slots` is the maximum."""

    def __init__(self, name: str, slots: int, max_wait_s: float = inf) -> None:
        super().__init__(name, slots, max_wait_s)
        self.learned = Slots(slots)
        self.witnesses = Witnesses()
        """Tenants whose calls the worker rejected as busy."""

    def on_sent(self, terms: Terms) -> None:
        self.witnesses.traffic.note(terms.tenant)

    def on_first_token(self, terms: Terms, sent_s: float, *, was_full: bool) -> None:
        first_token_s = time.monotonic() - sent_s
        self.learned.speak(sent_s, first_token_s, is_full=was_full, party=terms.tenant)
        self._resize()

    def on_busy(self, call: Call, sent_s: float) -> None:
        if self.witnesses.tell("busy", witness_of(call)):
            self.learned.refuse(sent_s)
            self._resize()

    def _resize(self) -> None:
        if self.n_slots != (n := self.learned.n):
            self.resize(n)
