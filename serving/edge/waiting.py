"""Bounded room for connections whose request is incomplete.

If the room is full, it evicts the oldest connection of the address that has the most. An attacker therefore
evicts its own connections first, from one address or many. A client that sends its request at once is never
the oldest. nginx makes room the same way: it closes its oldest reusable connections.

The room knows no sockets; a callback closes the connection.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Ticket:
    """Place of one connection."""

    peer: str
    evict: Callable[[], None]
    """Called once, after the place was taken away."""
    size_bytes: int = 0
    """Bytes of its body so far."""


class WaitingRoom:
    """Incomplete requests by address, oldest first.

    Args:
        places: limit for the number of connections.
        room_bytes: limit for the bytes of all their bodies.

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
        """Take a place, after an eviction if none is free."""
        while self._count >= self._places:
            self._evict(next(iter(self._by_count[self._most])))
        ticket = Ticket(peer, evict)
        tickets = self._by_peer.setdefault(peer, {})
        tickets[ticket] = None
        self._count += 1
        self._recount(peer, len(tickets) - 1, len(tickets))
        return ticket

    def grow(self, ticket: Ticket, size_bytes: int) -> None:
        """Count more bytes for a place. If there are too many in all, evict places of the address with the
        most, which may be this one.
        """
        if ticket not in self._by_peer.get(ticket.peer, ()):
            return
        ticket.size_bytes += size_bytes
        self._bytes += size_bytes
        while self._bytes > self._room_bytes:
            self._evict(max(self._by_peer, key=self._bytes_of))

    def leave(self, ticket: Ticket) -> None:
        """Release the place. Does nothing if it was evicted."""
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
        """Evict one place in favor of a complete request. Return False if there is none."""
        if self._count:
            self._evict(next(iter(self._by_count[self._most])))
            return True
        return False

    def _bytes_of(self, peer: str) -> int:
        return sum(ticket.size_bytes for ticket in self._by_peer[peer])

    def _evict(self, peer: str) -> None:
        """Evict the oldest place of an address, or its oldest with any bytes if bytes are short."""
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
