"""Slots of a worker: their number, which can be learned from the worker's responses, and the queue for them."""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from math import inf
from statistics import median_low
from types import MappingProxyType

from conductor.model.terms import Priority
from conductor.run.record import Account
from serving.fairness import RESERVED_PART, RoundRobin, add_to, share
from serving.witnesses import TRAFFIC_S, Traffic

CUT = 0.8
LATE = 2.0
"""Multiple of the best time from which first tokens are late."""
LEAST_LATE_S = 0.05
"""Minimum time in seconds from which first tokens are late."""
LOWER_EVERY_S = 1.0
"""Minimum seconds between reductions of the recovery limit. A short busy period says little."""
HELPED = 0.9
"""First tokens count as faster after a decrease if they take at most this share of the time before it."""
WINDOW = 10
"""Minimum calls in a window, which are judged together. There are as many as slots if those are more."""
LEAST_ALONE = 0.25
"""Minimum share of the slots that remains if the first tokens of only one tenant are late."""
FORGET = 1.02
"""Factor by which the best time may rise after each window of calls that found a free slot, so that the best
time of an idle night does not last. Calls that took the last slot never raise the best time, because they may
wait in a queue of the worker itself.
"""


class Slots:
    """Number of slots that is learned from the worker's responses.

    Additive increase, multiplicative decrease, as in TCP (https://www.rfc-editor.org/rfc/rfc5681, section 3.1):

    - Increase: one more slot if all slots are in use and first tokens arrive as usual.
    - Decrease: a fifth fewer slots if the worker returns busy, or if first tokens take twice as long as the best
      time.
    - Rollback: a decrease that did not make first tokens faster is undone, because they are late for another
      reason, such as longer prompts.
    - Recovery after busy: one more slot per answered call, up to the earlier limit (slow start, section 3.1). If
      the worker is busy again before that, the earlier limit is lowered.

    A tenant that sends longer prompts for a while looks like an overloaded worker. Therefore each tenant has one
    vote, however many calls it makes: the median over all tenants decides on a decrease, and first tokens must
    become faster for most tenants after it. A tenant that is the only caller can take away at most three quarters
    of the slots. The first call of another tenant whose first token is not late restores them. The code calls a
    tenant a party (`serving/witnesses.py`).

    Args:
        most: maximum number of slots, and the number at the start.
    """

    def __init__(self, most: int) -> None:
        self._most, self._limit = most, float(most)
        self._good, self._lowered_s = float(most), -inf
        """Limit to recover to, from before the worker was busy, and the time at which it was last lowered."""
        self._has_grown = False
        """True if the limit was raised since the last decrease and is below the maximum."""
        self._first_token_s: dict[str, list[float]] = {}
        """Times to the first token in the current window, by tenant."""
        self._quiet_s: list[float] = []
        """Times to the first token of calls that were sent while slots were free."""
        self._best_s = inf
        self._before_cut: tuple[float, dict[str, list[float]]] | None = None
        """Limit and times to the first token before the last decrease for late first tokens."""
        self._doubted: tuple[str, float] | None = None
        """Tenant whose calls alone caused the last decrease, and the limit before that decrease."""
        self._cut_s = -inf
        """Time (`time.monotonic`) of the last decrease. Calls sent before it are not judged."""

    @property
    def n(self) -> int:
        return max(1, int(self._limit))

    def refuse(self, sent_s: float) -> None:
        """Count a busy response to a call that was sent at `sent_s` (`time.monotonic`)."""
        if sent_s <= self._cut_s:
            return
        now_s = time.monotonic()
        if self._has_grown and now_s - self._lowered_s >= LOWER_EVERY_S:
            self._good, self._lowered_s = max(1.0, self._good * CUT), now_s
        self._cut()

    def speak(self, sent_s: float, first_token_s: float, *, is_full: bool, party: str = "") -> None:
        """Count the first token of a call of a tenant. `is_full`: all slots were in use when it was sent."""
        if not is_full:
            self._quiet_s.append(first_token_s)
            if len(self._quiet_s) >= WINDOW:
                self._best_s = min(self._best_s * FORGET, median_low(self._quiet_s))
                self._quiet_s.clear()
        elif sent_s > self._cut_s:
            if first_token_s < self._late_s:
                self._grow_back(party)
            self._first_token_s.setdefault(party, []).append(first_token_s)
            if sum(map(len, self._first_token_s.values())) >= max(WINDOW, self.n):
                self._judge()

    @property
    def _late_s(self) -> float:
        return max(LATE * self._best_s, LEAST_LATE_S)

    def _grow_back(self, party: str) -> None:
        if self._doubted and self._doubted[0] != party:
            self._good, self._doubted = max(self._good, self._doubted[1]), None
        if self._limit < self._good:
            self._limit, self._has_grown = min(self._good, self._limit + 1), True

    def _judge(self) -> None:
        by_party, self._first_token_s = self._first_token_s, {}
        median_s = median_low(map(median_low, by_party.values()))
        self._best_s = min(self._best_s, median_s)
        if median_s < self._late_s:
            self._before_cut, self._has_grown = None, self._limit < self._most
            self._limit = min(self._most, self._limit + 1)
            self._good = max(self._good, self._limit)
        elif self._before_cut and not _are_sooner(self._before_cut[1], by_party):
            self._limit, self._best_s = self._before_cut[0], median_s
            self._before_cut = None
        else:
            self._cut_late(by_party)

    def _cut_late(self, by_party: dict[str, list[float]]) -> None:
        only = next(iter(by_party)) if len(by_party) == 1 else ""
        if only and self._limit * CUT < self._most * LEAST_ALONE:
            return
        self._doubted = (only, self._doubted[1] if self._doubted else self._good) if only else None
        self._before_cut = self._limit, by_party
        self._cut()
        self._good = min(self._good, self._limit)

    def _cut(self) -> None:
        self._limit = max(1.0, self._limit * CUT)
        self._first_token_s.clear()
        self._cut_s, self._has_grown = time.monotonic(), False


def _are_sooner(before: Mapping[str, Sequence[float]], now: Mapping[str, Sequence[float]]) -> bool:
    """Return whether first tokens became faster for most tenants.

    Each tenant with calls in both windows has one vote. All other tenants share one vote.
    """
    both = before.keys() & now.keys()
    pairs = [(before[each], now[each]) for each in both]
    others = [
        [s for each, some in calls.items() if each not in both for s in some] for calls in (before, now)
    ]
    if all(others):
        pairs.append((others[0], others[1]))
    sooner = [median_low(after) <= HELPED * median_low(first) for first, after in pairs]
    return 2 * sum(sooner) > len(sooner)


BATCH_EVERY = 10
"""While calls of both priorities wait, one of this many free slots goes to batch calls."""
FEWEST = 4
"""Minimum number of slots of a worker for some of them to be reserved."""

Waiting = tuple[str, "asyncio.Future[None]"]
"""A payer, and the future of one of its waiting calls."""


class FairQueue:
    """Fair queue for a number of slots.

    Calls are ordered by priority. Among calls of one priority, the payer with the fewest slots comes first. A
    payer is the key or team that pays for the call.

    A flood of calls from one payer delays only that payer. A slot counts for its payer for as long as it is
    in use. Batch calls go last but never starve: while both priorities wait, every `BATCH_EVERY`-th free slot
    goes to a batch call.

    The last slots are reserved for payers that hold less than their share (`serving/fairness.py`), so that a
    payer with long calls cannot hold all slots. Other payers may use them if no such payer has called
    recently. A call may therefore wait although a slot is free, if it is a batch call or its payer already
    has slots. It gets a slot at the latest when one is released.
    """

    def __init__(self, places: int) -> None:
        self._places = self._free = places
        """Number of free slots. It is negative if `resize` has left fewer slots than are in use."""
        self._queues: dict[Priority, _Queue] = {"interactive": _Queue(), "batch": _Queue()}
        self._slots_by_payer = Counter[str]()
        self._n_interactive = 0
        """Slots given to interactive calls since batch calls started to wait, or last got a slot."""
        self._traffic = Traffic()
        """Recent interactive calls."""
        self.lent_after_s = TRAFFIC_S
        """Seconds after which payers may use the reserved slots, if no payer below its share has called."""

    def take_now(self, priority: Priority, payer: str) -> bool:
        """Take a slot if one is free that is not reserved. Return False otherwise."""
        if self._free <= self._n_reserved:
            return False
        if priority == "interactive":
            self._traffic.note(payer)
        self._free -= 1
        self._slots_by_payer[payer] += 1
        return True

    async def take(self, priority: Priority, payer: str, key: str = "") -> None:
        """Wait for a slot and take it. If the wait is cancelled, no slot is taken. If the payer is a team, its
        keys take turns.
        """
        if self.take_now(priority, payer):
            return
        if priority == "interactive":
            self._traffic.note(payer)
        queue, turn = self._queues[priority], asyncio.get_running_loop().create_future()
        queue.join(payer, key, turn)
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the slot was assigned at the same moment
                self.give_back(payer)
            else:
                queue.leave(payer, key, turn)
            raise

    @asynccontextmanager
    async def turn(self, account: Account) -> AsyncGenerator[None]:
        """Wait for a slot, and hold it in the block. Teams take turns, and within a team its keys."""
        await self.take("interactive", account.tenant, account.key_id)
        try:
            yield
        finally:
            self.give_back(account.tenant)

    def give_back(self, payer: str) -> None:
        """Release a slot of `payer`, and assign it to the next call."""
        self._free += 1
        add_to(self._slots_by_payer, payer, -1)
        self._hand_out()

    def resize(self, places: int) -> None:
        """Set the number of slots. Calls keep theirs, but released ones in excess are not reassigned."""
        self._free += places - self._places
        self._places = places
        self._hand_out()

    def ahead(self, payer: str, coming: Mapping[str, int] = MappingProxyType({})) -> int:
        """Estimate the interactive calls, waiting and `coming`, that get a slot before one more of `payer`,
        if all payers hold equally many.
        """
        queue = self._queues["interactive"]
        if self.free(payer):  # the free slots are reserved from the calls that wait
            queue = _Queue()
        return queue.ahead(payer, coming)

    def free(self, payer: str) -> int:
        """Return the number of free slots that an interactive call of `payer` may take."""
        if self._free > self._n_reserved or (self._free > 0 and self._may_use_reserved("interactive", payer)):
            return self._free
        return 0

    @property
    def is_waited_for(self) -> bool:
        return any(self._queues.values())

    @property
    def _n_reserved(self) -> int:
        return max(1, int(RESERVED_PART * self._places)) if self._places >= FEWEST else 0

    def _may_use_reserved(self, priority: Priority, payer: str) -> bool:
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
        if payer is None or self._free > self._n_reserved or self._may_use_reserved(priority, payer):
            return payer
        return None


class _Queue:
    """Waiting calls of one priority: in order of arrival per payer and key, with the payers in turn."""

    def __init__(self) -> None:
        self._payers = OrderedDict[str, RoundRobin[asyncio.Future[None]]]()

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

    def join(self, payer: str, key: str, turn: "asyncio.Future[None]") -> None:
        self._payers.setdefault(payer, RoundRobin()).add(key, turn)

    def leave(self, payer: str, key: str, turn: "asyncio.Future[None]") -> None:
        """Remove a waiting call, if it is still in the queue."""
        if payer in self._payers:
            self._payers[payer].remove(key, turn)
            if not self._payers[payer]:
                del self._payers[payer]

    def first(self, slots_by_payer: Mapping[str, int]) -> str | None:
        """Return the waiting payer with the fewest slots (the first of several), or None if none waits."""
        return min(self._payers, key=lambda each: slots_by_payer.get(each, 0), default=None)

    def pop(self, payer: str) -> "Waiting":
        """Remove and return the first call of `payer`, and move the payer to the end of the queue."""
        waiting = self._payers.pop(payer)
        turn = waiting.pop()
        if waiting:
            self._payers[payer] = waiting  # at the end of the queue
        return payer, turn
