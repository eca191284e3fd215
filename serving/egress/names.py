"""Host name lookups, in a thread pool of their own.

The system's resolver blocks its thread, for 10 s and more if a name server does not respond. asyncio runs it
in the small pool that everything else uses, so six lookups of one provider's name would block all others.
Here, each name has at most one lookup at a time, which all callers share.
"""

import asyncio
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from serving.egress.zones import literal_address

THREADS = 64
"""Maximum number of lookups at a time."""
KEPT_S = 10.0
"""Seconds for which an answer is cached."""

Found = list[tuple[socket.AddressFamily, str]]
"""Addresses, each with its family."""


@dataclass(frozen=True, slots=True)
class _Answer:
    addresses: Found
    """Addresses of the name. If empty, `fault` says why."""
    fault: str = ""
    since_s: float = field(default_factory=time.monotonic)

    @property
    def is_fresh(self) -> bool:
        return bool(self.addresses) and time.monotonic() - self.since_s < KEPT_S


class NameLookups:
    """Lookups of one process."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "name lookup")
        self._lookups: dict[str, Future[_Answer]] = {}
        """Lookups by name: those that are running, and recent successful ones."""

    async def find(self, host: str) -> Found:
        """Return the addresses of `host` from the system's resolver, each once. Cancelling one caller does
        not end the lookup for others.

        Raises:
            OSError: the host has no address.
        """
        self._lookups = {name: each for name, each in self._lookups.items() if _is_of_use(each)}
        if host not in self._lookups:
            self._lookups[host] = self._threads.submit(_look_up, host)
        answer = await asyncio.shield(asyncio.wrap_future(self._lookups[host]))
        if not answer.addresses:
            raise OSError(f"{host}: {answer.fault}")
        return answer.addresses

    def forget(self) -> None:
        """Forget all answers, so that every name is looked up again."""
        self._lookups = {}


NAMES = NameLookups()


def _is_of_use(lookup: Future[_Answer]) -> bool:
    return not lookup.done() or lookup.result().is_fresh


def _look_up(host: str) -> _Answer:
    # For names, only address families that this machine has. Loopback does not count as having one, so not for literals.
    flags = 0 if literal_address(host) else socket.AI_ADDRCONFIG
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError) as exc:
        return _Answer([], str(exc))
    return _Answer(
        list(dict.fromkeys((family, _to_text(sockaddr)) for family, *_, sockaddr in entries)), "no address"
    )


def _to_text(sockaddr: tuple[object, ...]) -> str:
    """Return the address as text, with the interface of an IPv6 address that needs one."""
    address, scope = str(sockaddr[0]), sockaddr[3] if len(sockaddr) > 3 else 0
    return f"{address}%{scope}" if scope and "%" not in address else address
