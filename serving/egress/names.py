"""Host name lookups in a separate thread pool.

The system's resolver blocks its thread, and for 10 s or more if a name server does not respond. asyncio runs
it in its small default pool, where six lookups of one provider's name would block everything else. Here, each
name has at most one lookup at a time, and all callers share it.
"""

import asyncio
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from serving.egress.zones import literal_address

THREADS = 64
"""Maximum number of concurrent lookups."""
KEPT_S = 10.0
"""Seconds for which the addresses of a name are cached."""

Addresses = list[tuple[socket.AddressFamily, str]]
"""Addresses of a name, each with its address family."""


@dataclass(frozen=True, slots=True)
class _Answer:
    addresses: Addresses
    """Addresses of the name. If there are none, `fault` says why."""
    fault: str = ""
    since_s: float = field(default_factory=time.monotonic)

    @property
    def is_fresh(self) -> bool:
        return bool(self.addresses) and time.monotonic() - self.since_s < KEPT_S


class NameLookups:
    """Shared and cached host name lookups of one process."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "name lookup")
        self._lookups: dict[str, Future[_Answer]] = {}
        """Lookups in progress and recent successful ones, by host name."""

    async def find(self, host: str) -> Addresses:
        """Return the distinct addresses of `host`, or raise OSError. The lookup continues if one caller is
        cancelled.
        """
        self._lookups = {name: each for name, each in self._lookups.items() if _is_of_use(each)}
        if host not in self._lookups:
            self._lookups[host] = self._threads.submit(_look_up, host)
        answer = await asyncio.shield(asyncio.wrap_future(self._lookups[host]))
        if not answer.addresses:
            raise OSError(f"The DNS lookup of {host} failed: {answer.fault}.")
        return answer.addresses

    def forget(self) -> None:
        """Clear the cache, so that every name is looked up again."""
        self._lookups = {}


NAMES = NameLookups()


def _is_of_use(lookup: Future[_Answer]) -> bool:
    return not lookup.done() or lookup.result().is_fresh


def _look_up(host: str) -> _Answer:
    # For a name, return only address families that this machine has. The resolver ignores loopback interfaces
    # for this, so the flag would reject a loopback address that is written as a number.
    flags = 0 if literal_address(host) else socket.AI_ADDRCONFIG
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError) as exc:
        return _Answer([], str(exc))
    return _Answer(
        list(dict.fromkeys((family, _to_text(sockaddr)) for family, *_, sockaddr in entries)),
        "the host has no address",
    )


def _to_text(sockaddr: tuple[object, ...]) -> str:
    """Return the address as text. A link-local IPv6 address includes its interface, after a `%`."""
    address, scope = str(sockaddr[0]), sockaddr[3] if len(sockaddr) > 3 else 0
    return f"{address}%{scope}" if scope and "%" not in address else address
