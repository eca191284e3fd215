"""Who is connected and has not sent a whole request: a room with a bound.

When it is full, the one that has waited longest of the address with the most waiting must go. So an
attacker pushes out itself first, whether it comes from one address or from many, and a client that sends
its request at once is never the oldest. nginx makes room the same way: its oldest reusable connections are
closed when none is free.

Knows no sockets: a callback says what must go.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Ticket:
    """One that waits."""

    peer: str
    evict: Callable[[], None]
    """Called once, after its place was taken away."""
    size_bytes: int = 0
    """What is kept of its body so far."""


class WaitingRoom:
    """Those who wait, by address, oldest first.

    Args:
        places: how many may wait.
        room_bytes: how much of unfinished bodies may be kept.

    Attributes:
        evicted: how many had to go so far.
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
        """Take a place, somebody else's where none is free."""
        while self._count >= self._places:
            self._evict(next(iter(self._by_count[self._most])))
        ticket = Ticket(peer, evict)
        tickets = self._by_peer.setdefault(peer, {})
        tickets[ticket] = None
        self._count += 1
        self._recount(peer, len(tickets) - 1, len(tickets))
        return ticket

    def grow(self, ticket: Ticket, size_bytes: int) -> None:
        """Keep so much more for it; others go where that is too much, and it too where it is the one with
        the most.
        """
        if ticket not in self._by_peer.get(ticket.peer, ()):
            return
        ticket.size_bytes += size_bytes
        self._bytes += size_bytes
        while self._bytes > self._room_bytes:
            self._evict(max(self._by_peer, key=self._bytes_of))

    def leave(self, ticket: Ticket) -> None:
        """Give the place back; nothing happens where it was taken away before."""
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
        """Make room for a request that is whole. Return False if none waits."""
        if self._count:
            self._evict(next(iter(self._by_count[self._most])))
            return True
        return False

    def _bytes_of(self, peer: str) -> int:
        return sum(ticket.size_bytes for ticket in self._by_peer[peer])

    def _evict(self, peer: str) -> None:
        """The oldest of that address; where bytes are short, the oldest that holds any."""
        tickets = self._by_peer[peer]
        short = self._bytes > self._room_bytes
        oldest = next(ticket for ticket in tickets if ticket.size_bytes or not short)
        self.leave(oldest)
        self.evicted += 1
        oldest.evict()

    def _recount(self, peer: str, before: int, after: int) -> None:
        """Keep addresses by how many they have, so that the one with the most is found at once."""
        if before:
            del self._by_count[before][peer]
        if after:
            self._by_count.setdefault(after, {})[peer] = None
        if before and not self._by_count[before]:
            del self._by_count[before]
        top_is_empty = before == self._most and before not in self._by_count
        if after > self._most or top_is_empty:
            self._most = after
