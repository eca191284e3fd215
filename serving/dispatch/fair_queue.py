"""Who is next where more calls wait than there are places: by priority, and then key by key, first the one that has
the fewest places.

A flood from one key makes that key wait and nobody else; calls that are held for long count as long as they are held. Work of low priority goes last, and never stops: of
`BATCH_EVERY` places that come free, it is given one.

The last places are kept for keys that have less than their share (`serving/shares.py`), so that a key whose calls are
long cannot hold all of them. They are lent where no such key has called lately. Whoever waits beside a kept place has
places itself, or is batch work: it is next at the latest when one of those that are held comes back.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from types import MappingProxyType

from conductor.model.terms import Priority
from serving.shares import KEPT, share
from serving.witnesses import TRAFFIC_S, Traffic

BATCH_EVERY = 10
"""While calls of both priorities wait, every so many-th place goes to the lower one."""
FEWEST = 4
"""Of fewer places none is kept."""

Waiting = tuple[str, "asyncio.Future[None]"]
"""A payer, and one of its turns."""


class FairQueue:
    """`places` that are taken and given back."""

    def __init__(self, places: int) -> None:
        self._places = self._free = places
        """Fewer than none are free while there are fewer places than calls that have one."""
        self._queues: dict[Priority, _Queue] = {"interactive": _Queue(), "batch": _Queue()}
        self._held = Counter[str]()
        """By payer: whoever waits while others have more places is next."""
        self._given = 0
        """To interactive calls since batch work began to wait, or was given one."""
        self._traffic = Traffic()
        """Of interactive calls."""
        self.lent_after_s = TRAFFIC_S
        """So long nobody else has called: kept places are lent."""

    def take_now(self, priority: Priority, payer: str) -> bool:
        """Take a slot if one is free for everyone. Return False otherwise."""
        if self._free <= self._kept:
            return False
        if priority == "interactive":
            self._traffic.note(payer)
        self._free -= 1
        self._held[payer] += 1
        return True

    async def take(self, priority: Priority, payer: str) -> None:
        """Wait for a place. Whoever is cancelled meanwhile has none."""
        if self.take_now(priority, payer):
            return
        if priority == "interactive":
            self._traffic.note(payer)
        line, turn = self._queues[priority], asyncio.get_running_loop().create_future()
        line.join(payer, turn)
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came in the same moment
                self.give_back(payer)
            else:
                line.leave(payer, turn)
            raise

    def give_back(self, payer: str) -> None:
        """A place of that payer's is free: whoever is next has it."""
        self._free += 1
        self._held[payer] -= 1
        if not self._held[payer]:
            del self._held[payer]
        self._hand_out()

    def resize(self, places: int) -> None:
        """There are so many places from now on. Nobody loses one: where they are fewer, those given back are gone."""
        self._free += places - self._places
        self._places = places
        self._hand_out()

    def ahead(self, payer: str, coming: Mapping[str, int] = MappingProxyType({})) -> int:
        """About how many interactive calls would have a turn before one more of `payer`: of those that wait, and of
        so many of each payer that will soon, as if all had as many places.
        """
        line = self._queues["interactive"]
        if self.free(payer):  # those that wait may not have what is free
            line = _Queue()
        return line.ahead(payer, coming)

    def free(self, payer: str) -> int:
        """How many places an interactive call of `payer` might have at once."""
        if self._free > self._kept or (self._free > 0 and self._may_have_kept("interactive", payer)):
            return self._free
        return 0

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody waits for a place."""
        return any(self._queues.values())

    @property
    def _kept(self) -> int:
        return max(1, int(KEPT * self._places)) if self._places >= FEWEST else 0

    def _may_have_kept(self, priority: Priority, payer: str) -> bool:
        has = share(self._held)
        if priority == "interactive" and self._held[payer] < has:
            return True
        return all(self._held[each] >= has for each in self._traffic.others(payer, self.lent_after_s))

    def _hand_out(self) -> None:
        while self._free > 0 and (waiting := self._next()) is not None:
            payer, turn = waiting
            if not turn.done():
                self._free -= 1
                self._held[payer] += 1
                turn.set_result(None)

    def _next(self) -> "Waiting | None":
        interactive, batch = self._queues["interactive"], self._queues["batch"]
        first, later = self._first("interactive"), self._first("batch")
        if not batch:
            self._given = 0
        if first is not None and (later is None or self._given < BATCH_EVERY - 1):
            self._given += bool(batch)
            return interactive.pop(first)
        if later is not None:
            self._given = 0
            return batch.pop(later)
        return None

    def _first(self, priority: Priority) -> str | None:
        """Whose turn is next of those of that priority; None: nobody's, or no place that is free is for them."""
        payer = self._queues[priority].first(self._held)
        if payer is None or self._free > self._kept or self._may_have_kept(priority, payer):
            return payer
        return None


class _Queue:
    """Those who wait: each payer's in their order, the payers in turn."""

    def __init__(self) -> None:
        self._payers = OrderedDict[str, deque[asyncio.Future[None]]]()

    def __bool__(self) -> bool:
        return bool(self._payers)

    def ahead(self, payer: str, coming: Mapping[str, int]) -> int:
        """Those before it in the line have one turn more before its next than those after it."""
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
        """It may have been passed already."""
        waiting = self._payers.get(payer, deque())
        if turn in waiting:
            waiting.remove(turn)
            if not waiting:
                del self._payers[payer]

    def first(self, held: Mapping[str, int]) -> str | None:
        """Whoever has the fewest places, the first of those with as few; None: nobody waits."""
        return min(self._payers, key=lambda each: held.get(each, 0), default=None)

    def pop(self, payer: str) -> "Waiting":
        """The first turn of `payer`, who goes to the end of the line."""
        waiting = self._payers.pop(payer)
        turn = waiting.popleft()
        if waiting:
            self._payers[payer] = waiting  # at the end of the line
        return payer, turn
