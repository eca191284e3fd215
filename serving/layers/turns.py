"""Who is next where more calls wait than there are places: by priority, and then key by key, first the one that has
the fewest places.

A flood from one key makes that key wait and nobody else; calls that are held for long count as long as they are held. Work of low priority goes last, and never stops: of
`BATCH_EVERY` places that come free, it is given one.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from types import MappingProxyType

from conductor.model.priority import Priority

BATCH_EVERY = 10
"""While calls of both priorities wait, every so many-th place goes to the lower one."""

Waiting = tuple[str, "asyncio.Future[None]"]
"""A payer, and one of its turns."""


class Turns:
    """`places` that are taken and given back."""

    def __init__(self, places: int) -> None:
        self._places = self._free = places
        """Fewer than none are free while there are fewer places than calls that have one."""
        self._lines: dict[Priority, _Line] = {"interactive": _Line(), "batch": _Line()}
        self._held = Counter[str]()
        """By payer: whoever waits while others have more places is next."""
        self._given = 0
        """To interactive calls since batch work began to wait, or was given one."""

    async def take(self, priority: Priority, payer: str) -> None:
        """Wait for a place. Whoever is cancelled meanwhile has none."""
        if self._free > 0:  # nobody waits then
            self._free -= 1
            self._held[payer] += 1
            return
        line, turn = self._lines[priority], asyncio.get_running_loop().create_future()
        line.join(payer, turn)
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
        return self._lines["interactive"].ahead(payer, coming)

    def _hand_out(self) -> None:
        while self._free > 0 and (waiting := self._next()) is not None:
            payer, turn = waiting
            if not turn.done():
                self._free -= 1
                self._held[payer] += 1
                turn.set_result(None)

    def _next(self) -> "Waiting | None":
        interactive, batch = self._lines["interactive"], self._lines["batch"]
        if not batch:
            self._given = 0
            return interactive.pop(self._held)
        if interactive and self._given < BATCH_EVERY - 1:
            self._given += 1
            return interactive.pop(self._held)
        self._given = 0
        return batch.pop(self._held)


class _Line:
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

    def pop(self, held: Mapping[str, int]) -> "Waiting | None":
        if not self._payers:
            return None
        payer = min(self._payers, key=lambda each: held.get(each, 0))  # the first of those with as few
        waiting = self._payers.pop(payer)
        turn = waiting.popleft()
        if waiting:
            self._payers[payer] = waiting  # at the end of the line
        return payer, turn
