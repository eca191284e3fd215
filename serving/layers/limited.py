"""Slots: no more calls at once than the one behind it can take, and how long a line for them is bearable."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from itertools import islice
from math import inf

from conductor.errors import LineTooLong
from conductor.model.call import Call
from conductor.model.priority import Priority
from conductor.model.reply import Reply
from conductor.model.worker import Worker
from serving.layers.layer import Layer
from serving.layers.turns import Turns
from serving.witnesses import TRAFFIC_S

NEWEST = 0.1
"""The weight of the newest call in what calls take on average."""
LONGEST_TOLD_S = 300.0
WAIT_BESIDE_FREE_S = 5.0
"""It is not worth waiting for longer while another worker would answer at once."""


class Limited(Layer):
    """`worker` with `slots` places. A call waits for one before it is opened, and holds it until it is
    closed; who is next is told by `turns.py`.

    Who has not begun anything is not let in where the line is too long (`serving/runs/admission.py`), or goes to a
    fallback; and is sent away where it was let in and its turn has not come in time, as where places come free no more.
    Nobody else who waits is, unless others are left to be asked: a call may be the third of a run that has paid for two.
    Whoever has waited for a while leaves for another worker that would answer at once (`Call.on_waited`). Whose turn
    comes is asked once more whether it is still to be made (`Call.on_turn`).
    """

    def __init__(self, worker: Worker, slots: int, max_wait_s: float = inf) -> None:
        """Has its places free.

        Args:
            worker: who is called.
            slots: calls at once, at most.
            max_wait_s: for how long it is worth waiting for a place.
        """
        super().__init__(worker)
        self._turns = Turns(slots)
        self.n_slots, self.max_wait_s = slots, max_wait_s
        self.queued = 0
        """Calls that wait for a place now."""
        self._began_s: dict[object, float] = {}
        """Of the calls that hold one now, since when; the longest first."""
        self._coming: dict[str, str] = {}
        """Runs that were let in to call it and have not yet, with who pays."""
        self._held_s = 0.0
        """How long a place is held, on average."""
        self._moved_s = 0.0
        """When a place last came free, or the first was taken, by `time.monotonic`."""

    @property
    def open_calls(self) -> int:
        """Calls that hold a place now."""
        return len(self._began_s)

    @property
    def is_full(self) -> bool:
        """Whether one more call would wait."""
        return self.open_calls >= self.n_slots

    def has_idle(self, share: float, calls: int) -> bool:
        """Whether so many more calls would leave no more than that share of the places in use, and nobody waits."""
        return not self.queued and self.open_calls + calls <= share * self.n_slots

    def wait_s(self, payer: str) -> float:
        """About how long one more interactive call of `payer` would wait for its place: what is ahead of it, at
        the pace of the newest calls. Where places have stopped coming free, this grows with the time since.
        """
        ends = self._ends_before(payer)
        if ends <= 0:
            return 0.0
        still_s = time.monotonic() - self._moved_s if self.open_calls else 0.0
        pace_s = max(self._held_s, still_s) / self.n_slots
        return ends * pace_s

    def has_place(self, payer: str) -> bool:
        """Whether one more interactive call of `payer` would have a place at once."""
        return self._ends_before(payer) <= 0

    def _ends_before(self, payer: str) -> int:
        """How many places have to come free before it has one."""
        return self._turns.ahead(payer, Counter(self._coming.values())) + 1 - self._turns.free(payer)

    def _until_end_s(self, number: int) -> float:
        """About how long until so many of the calls that hold places now have ended, if they take as long as the newest
        did; 0: as long has passed, or there are fewer.
        """
        if number <= 0:
            return 0.0
        began_s = next(islice(self._began_s.values(), number - 1, None), -inf)
        return max(0.0, began_s + self._held_s - time.monotonic())

    def is_overfull(self, priority: Priority, payer: str, *, is_other_free: bool = False) -> bool:
        """Whether it is not worth waiting for a place: less so where another worker would answer at once. Work that
        nobody waits for may always wait.
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
        """A run is let in that will soon call it: until it does, it counts as waiting."""
        self._coming[run] = payer
        try:
            yield
        finally:
            self.arrive(run)

    def arrive(self, run: str) -> None:
        """That run is expected no longer: its call is here, or has gone elsewhere."""
        self._coming.pop(run, None)

    def resize(self, slots: int) -> None:
        """There are so many places from now on; calls under way keep theirs."""
        self.n_slots = slots
        self._turns.resize(slots)

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`.

        Raises:
            LineTooLong: nothing was done before the call, and it has waited for `max_wait_s`, elsewhere before included;
                or another worker would answer at once.
        """
        await self._take_place(call)
        began_s, place = time.monotonic(), object()
        if not self.open_calls:
            self._moved_s = began_s
        self._began_s[place] = began_s
        try:
            async with self._worker.open(call) as reply:
                yield reply
        finally:
            del self._began_s[place]
            self._moved_s = time.monotonic()
            self._average(self._moved_s - began_s)
            self._turns.give_back(call.payer)

    async def _take_place(self, call: Call) -> None:
        self.queued += 1
        self.arrive(call.site.run)
        try:
            with call.on_wait() if call.on_wait else nullcontext():
                async with self._within_time(call):
                    await self._turns.take(call.priority, call.payer)
                self._look_again(call)
        finally:
            self.queued -= 1

    @asynccontextmanager
    async def _within_time(self, call: Call) -> AsyncGenerator[None]:
        """End the wait of a call that may be sent away."""
        is_bounded = call.begins and call.priority == "interactive" and self.max_wait_s != inf
        may_wait_s = max(0.0, self.max_wait_s - call.waited_s) if is_bounded else None
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(may_wait_s) as limit:
                with self._until_other_is_free(call, limit):
                    yield
        except TimeoutError:
            again_s = max(1.0, min(self.wait_s(call.payer), LONGEST_TOLD_S))
            message = f"{self.name} has too many calls before this one. Try again later."
            waited_s = time.monotonic() - began_s
            raise LineTooLong(message, worker=self.name, retry_after_s=again_s, waited_s=waited_s) from None

    @contextmanager
    def _until_other_is_free(self, call: Call, limit: asyncio.Timeout) -> Generator[None]:
        """Once it has waited for a while, and again after as long, ask whether another worker would answer at once: its
        time is over then.
        """
        if (on_waited := call.on_waited) is None or call.priority == "batch":
            yield
            return
        loop = asyncio.get_running_loop()

        def look() -> None:
            nonlocal timer
            if limit.expired():  # it leaves in the same moment
                return
            if on_waited():
                limit.reschedule(loop.time())
            else:
                timer = loop.call_later(self._beside_free_s, look)

        timer = loop.call_later(self._beside_free_s, look)
        try:
            yield
        finally:
            timer.cancel()

    def _look_again(self, call: Call) -> None:
        """Let it be made; where it is not, its place is the next one's at once."""
        try:
            if call.on_turn:
                call.on_turn()
        except BaseException:
            self._turns.give_back(call.payer)
            raise

    def _average(self, held_s: float) -> None:
        self._held_s += (held_s - self._held_s) * (NEWEST if self._held_s else 1.0)
        self._turns.lent_after_s = max(
            TRAFFIC_S, self._held_s
        )  # for about so long a place that is lent is gone
