"""Fair queue for the slots of a worker. Calls are ordered by priority. Among calls of one priority, the payer
with the fewest slots comes first. A payer is the key or team that pays for the call.

A flood of calls from one payer delays only that payer. A slot counts for its payer for as long as it is in
use. Batch calls go last but never starve: while both priorities wait, every `BATCH_EVERY`-th free slot goes
to a batch call.

The last slots are reserved for payers that hold less than their share (`serving/shares.py`), so that a payer
with long calls cannot hold all slots. Other payers may use them if no such payer has called recently. A call
may therefore wait although a slot is free, if it is a batch call or its payer already has slots. It gets a
slot at the latest when one is released.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from types import MappingProxyType

from conductor.model.terms import Priority
from serving.shares import KEPT, share
from serving.traffic import TRAFFIC_S, Traffic

BATCH_EVERY = 10
"""While calls of both priorities wait, one of this many free slots goes to batch calls."""
FEWEST = 4
"""Minimum number of slots of a worker for some of them to be reserved."""

Waiting = tuple[str, "asyncio.Future[None]"]
"""A payer, and the future of one of its waiting calls."""


class FairQueue:
    """Fair queue for a number of slots.

    Args:
        places: number of slots.
    """

    def __init__(self, places: int) -> None:
        self._places = self._free = places
        """Number of free slots. It is negative if `resize` has left fewer slots than are in use."""
        self._queues: dict[Priority, _Queue] = {"interactive": _Queue(), "batch": _Queue()}
        self._slots_by_payer = Counter[str]()
        """Slots in use by payer."""
        self._n_interactive = 0
        """Slots given to interactive calls since batch calls started to wait, or last got a slot."""
        self._traffic = Traffic()
        """Recent interactive calls."""
        self.lent_after_s = TRAFFIC_S
        """Seconds after which payers may use the reserved slots, if no payer below its share has called."""

    def take_now(self, priority: Priority, payer: str) -> bool:
        """Take a slot if one is free that is not reserved. Return False otherwise."""
        if self._free <= self._kept:
            return False
        if priority == "interactive":
            self._traffic.note(payer)
        self._free -= 1
        self._slots_by_payer[payer] += 1
        return True

    async def take(self, priority: Priority, payer: str) -> None:
        """Wait for a slot and take it. If the wait is cancelled, no slot is taken."""
        if self.take_now(priority, payer):
            return
        if priority == "interactive":
            self._traffic.note(payer)
        queue, turn = self._queues[priority], asyncio.get_running_loop().create_future()
        queue.join(payer, turn)
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the slot was assigned at the same moment
                self.give_back(payer)
            else:
                queue.leave(payer, turn)
            raise

    def give_back(self, payer: str) -> None:
        """Release a slot of `payer`, and assign it to the next call."""
        self._free += 1
        self._slots_by_payer[payer] -= 1
        if not self._slots_by_payer[payer]:
            del self._slots_by_payer[payer]
        self._hand_out()

    def resize(self, places: int) -> None:
        """Set the number of slots. Calls keep their slots. If there are too many, released slots are not
        reassigned.
        """
        self._free += places - self._places
        self._places = places
        self._hand_out()

    def ahead(self, payer: str, coming: Mapping[str, int] = MappingProxyType({})) -> int:
        """Estimate how many interactive calls would get a slot before one more call of `payer`.

        The estimate counts the calls that wait and the expected calls in `coming` (number by payer). It
        assumes that all payers hold the same number of slots.
        """
        queue = self._queues["interactive"]
        if self.free(payer):  # the free slots are reserved from the calls that wait
            queue = _Queue()
        return queue.ahead(payer, coming)

    def free(self, payer: str) -> int:
        """Return the number of free slots that an interactive call of `payer` may take."""
        if self._free > self._kept or (self._free > 0 and self._may_have_kept("interactive", payer)):
            return self._free
        return 0

    @property
    def is_waited_for(self) -> bool:
        """True if a call waits for a slot."""
        return any(self._queues.values())

    @property
    def _kept(self) -> int:
        return max(1, int(KEPT * self._places)) if self._places >= FEWEST else 0

    def _may_have_kept(self, priority: Priority, payer: str) -> bool:
        has = share(self._slots_by_payer)
        if priority == "interactive" and self._slots_by_payer[payer] < has:
            return True
        return all(
            self._slots_by_payer[each] >= has for each in self._traffic.others(payer, self.lent_after_s)
        )

    def _hand_out(self) -> None:
        while self._free > 0 and (waiting := self._next()) is not None:
            payer, turn = waiting
            if not turn.done():
                self._free -= 1
                self._slots_by_payer[payer] += 1
                turn.set_result(None)

    def _next(self) -> "Waiting | None":
        interactive, batch = self._queues["interactive"], self._queues["batch"]
        first, later = self._first("interactive"), self._first("batch")
        if not batch:
            self._n_interactive = 0
        if first is not None and (later is None or self._n_interactive < BATCH_EVERY - 1):
            self._n_interactive += bool(batch)
            return interactive.pop(first)
        if later is not None:
            self._n_interactive = 0
            return batch.pop(later)
        return None

    def _first(self, priority: Priority) -> str | None:
        """Return the next payer of a priority, or None if none waits or may take a free slot."""
        payer = self._queues[priority].first(self._slots_by_payer)
        if payer is None or self._free > self._kept or self._may_have_kept(priority, payer):
            return payer
        return None


class _Queue:
    """Waiting calls of one priority: in order of arrival per payer, with the payers in turn."""

    def __init__(self) -> None:
        self._payers = OrderedDict[str, deque[asyncio.Future[None]]]()

    def __bool__(self) -> bool:
        return bool(self._payers)

    def ahead(self, payer: str, coming: Mapping[str, int]) -> int:
        """See `FairQueue.ahead`. Payers before `payer` in the queue get one turn more than those after it."""
        own = len(self._payers.get(payer, ())) + coming.get(payer, 0)
        ahead, turns = own, own + 1
        for other in dict.fromkeys((*self._payers, *coming)):
            if other == payer:
                turns = own
            else:
                ahead += min(len(self._payers.get(other, ())) + coming.get(other, 0), turns)
        return ahead

    def join(self, payer: str, turn: "asyncio.Future[None]") -> None:
        self._payers.setdefault(payer, deque()).append(turn)

    def leave(self, payer: str, turn: "asyncio.Future[None]") -> None:
        """Remove a waiting call, if it is still in the queue."""
        waiting = self._payers.get(payer, deque())
        if turn in waiting:
            waiting.remove(turn)
            if not waiting:
                del self._payers[payer]

    def first(self, slots_by_payer: Mapping[str, int]) -> str | None:
        """Return the waiting payer with the fewest slots (the first of several), or None if none waits."""
        return min(self._payers, key=lambda each: slots_by_payer.get(each, 0), default=None)

    def pop(self, payer: str) -> "Waiting":
        """Remove and return the first call of `payer`, and move the payer to the end of the queue."""
        waiting = self._payers.pop(payer)
        turn = waiting.popleft()
        if waiting:
            self._payers[payer] = waiting  # at the end of the queue
        return payer, turn
