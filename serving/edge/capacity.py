"""Capacity limits at a router's edge: a waiting room for incomplete requests, and load shedding.

The waiting room holds connections whose request is not complete yet. If it is full, it evicts the oldest
connection of the client address that has the most connections. An attacker therefore evicts its own
connections first, whether it uses one address or many. A client that sends its whole request at once is never
the oldest. nginx makes room in the same way: it closes its oldest reusable connections. The room knows
nothing about sockets; a callback closes the connection.

An overloaded router rejects requests before it looks anything up for them. It also rejects requests shortly
before Ray Serve's limit of open requests is reached. A Serve actor handles at most `max_ongoing_requests`
calls at once, and its own health check is one of them. A router that has no place for its health check counts
as dead after 90 s and is stopped.

A request that starts a run first waits for a few turns of the event loop. If each turn takes long, thousands
of requests are waiting. Everything that needs many turns, such as answers and key lookups, would then exceed
its client's timeout.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from conductor.errors import Overloaded


@dataclass(slots=True, eq=False)
class Ticket:
    """Place of one connection in the waiting room."""

    peer: str
    evict: Callable[[], None]
    """Called once, after the connection has lost its place."""
    size_bytes: int = 0
    """Number of body bytes that the connection has sent so far."""


class WaitingRoom:
    """Waiting room for connections with an incomplete request, by client address, oldest first.

    Args:
        places: maximum number of connections.
        room_bytes: maximum number of bytes of all their bodies together.

    Attributes:
        evicted: number of evictions so far.
    """

    def __init__(self, places: int, room_bytes: int) -> None:
        self.evicted = 0
        self._places, self._room_bytes = places, room_bytes
        self._by_peer: dict[str, dict[Ticket, None]] = {}
        self._by_count: dict[int, dict[str, None]] = {}
        self._most = self._count = self._bytes = 0

    def __len__(self) -> int:
        return self._count

    def enter(self, peer: str, evict: Callable[[], None]) -> Ticket:
        """Add a connection and return its place. If the room is full, evict another connection first."""
        while self._count >= self._places:
            self._evict(next(iter(self._by_count[self._most])))
        ticket = Ticket(peer, evict)
        tickets = self._by_peer.setdefault(peer, {})
        tickets[ticket] = None
        self._count += 1
        self._recount(peer, len(tickets) - 1, len(tickets))
        return ticket

    def grow(self, ticket: Ticket, size_bytes: int) -> None:
        """Count `size_bytes` more bytes for a place. While all bodies together exceed the limit, evict
        connections of the address with the most bytes. This connection may be among them.
        """
        if ticket not in self._by_peer.get(ticket.peer, ()):
            return
        ticket.size_bytes += size_bytes
        self._bytes += size_bytes
        while self._bytes > self._room_bytes:
            self._evict(max(self._by_peer, key=self._bytes_of))

    def leave(self, ticket: Ticket) -> None:
        """Release a place. Do nothing if it was already evicted."""
        tickets = self._by_peer.get(ticket.peer, {})
        if ticket not in tickets:
            return
        del tickets[ticket]
        self._count -= 1
        self._bytes -= ticket.size_bytes
        self._recount(ticket.peer, len(tickets) + 1, len(tickets))
        if not tickets:
            del self._by_peer[ticket.peer]

    def evict_one(self) -> bool:
        """Evict one connection to make room for a complete request. Return False if the room is empty."""
        if self._count:
            self._evict(next(iter(self._by_count[self._most])))
            return True
        return False

    def _bytes_of(self, peer: str) -> int:
        return sum(ticket.size_bytes for ticket in self._by_peer[peer])

    def _evict(self, peer: str) -> None:
        """Evict the oldest connection of an address. If the limit for bytes is exceeded, evict the oldest one
        that has sent any.
        """
        tickets = self._by_peer[peer]
        short = self._bytes > self._room_bytes
        oldest = next(ticket for ticket in tickets if ticket.size_bytes or not short)
        self.leave(oldest)
        self.evicted += 1
        oldest.evict()

    def _recount(self, peer: str, before: int, after: int) -> None:
        """Index addresses by their number of places, so that the one with the most is found at once."""
        if before:
            del self._by_count[before][peer]
        if after:
            self._by_count.setdefault(after, {})[peer] = None
        if before and not self._by_count[before]:
            del self._by_count[before]
        top_is_empty = before == self._most and before not in self._by_count
        if after > self._most or top_is_empty:
            self._most = after


logger = logging.getLogger("podium")

ALIVE, READY = "/healthz", "/readyz"
PROBES = (ALIVE, READY)
"""Paths that are never rejected for load."""
TURNS, LONG_S, SHORT_S = 4, 0.25, 0.01
"""Rule for load shedding. A turn is one iteration of the event loop.

A request is admitted after a turn shorter than `SHORT_S`. It is rejected after `TURNS` longer turns that take
more than `LONG_S` on average. The longest turn is not counted, because a burst of requests makes one turn
long. Even with thousands of waiting requests, some turns are short.
"""
OPEN = 15 / 16
"""Fraction of `router.max_ongoing_requests` that may be open at once. Health probes are not counted."""
LOG_EVERY_S = 10.0
MAX_ONGOING, OPEN_RETRY_S = "router.max_ongoing_requests", 2.0
TOO_MANY = f"This server has reached its limit of open requests ({MAX_ONGOING}). Try again soon."
BEHIND = "This server is overloaded. Try again soon."


class SparseWarning:
    """Warning that is logged once for many events, so that an attack cannot fill the disk.

    Args:
        text: the warning, with placeholders for the arguments of `log`.
    """

    def __init__(self, text: str) -> None:
        self._text, self._logged_s = text, float("-inf")

    def log(self, *facts: object) -> bool:
        """Log the warning, unless one was logged within `LOG_EVERY_S`. Return whether it was logged."""
        now_s = time.monotonic()
        if now_s - self._logged_s <= LOG_EVERY_S:
            return False
        logger.warning(self._text, *facts)
        self._logged_s = now_s
        return True


def check_open(n_open: int, most: int, room: WaitingRoom) -> None:
    """Check that there are not too many open requests. If there are, evict one whose body is incomplete.

    Raises:
        Overloaded: too many requests are open, and none of them can be evicted.
    """
    if n_open + 1 > OPEN * most and not (n_open < most and room.evict_one()):
        raise Overloaded(TOO_MANY, param=MAX_ONGOING, retry_after_s=OPEN_RETRY_S)


async def falls_behind() -> bool:
    """Return whether the event loop is overloaded. If it is not, this takes only one turn.

    Only the CPU time of this thread counts, not the time in which other programs use the core.
    """
    turns_s = list[float]()
    for _ in range(TURNS):
        began_s = time.thread_time()
        await asyncio.sleep(0)
        turns_s.append(time.thread_time() - began_s)
        if turns_s[-1] < SHORT_S:
            return False
    return sum(turns_s) - max(turns_s) > LONG_S * (TURNS - 1)
