"""Looks up host names, in threads of its own.

The system's resolver blocks its thread, for 10 s and more where a name server is silent, and asyncio gives it the few
threads that everything else uses: six look-ups of one provider's name would stop those of all others. Here a
name has one look-up at a time, whoever waits for it.
"""

import asyncio
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from serving.egress.zones import literal_address

THREADS = 64
"""Names that are looked up at once."""
KEPT_S = 10.0
"""How long what was found is given again."""

Found = list[tuple[socket.AddressFamily, str]]
"""Addresses, with their family."""


@dataclass(frozen=True, slots=True)
class _Answer:
    found: Found
    """Nothing: there is none, and `fault` says why."""
    fault: str = ""
    since_s: float = field(default_factory=time.monotonic)

    @property
    def is_fresh(self) -> bool:
        return bool(self.found) and time.monotonic() - self.since_s < KEPT_S


class NameLookups:
    """The look-ups of one process."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "name lookup")
        self._lookups: dict[str, Future[_Answer]] = {}
        """By name: those under way, and those that have found something lately."""

    async def find(self, host: str) -> Found:
        """The addresses that the system's resolver gives for `host`, each once. Whoever stops waiting
        stops nobody else's look-up.

        Raises:
            OSError: it has none.
        """
        self._lookups = {name: each for name, each in self._lookups.items() if _is_of_use(each)}
        if host not in self._lookups:
            self._lookups[host] = self._threads.submit(_look_up, host)
        answer = await asyncio.shield(asyncio.wrap_future(self._lookups[host]))
        if not answer.found:
            raise OSError(f"{host}: {answer.fault}")
        return answer.found

    def forget(self) -> None:
        """Look up every name again."""
        self._lookups = {}


NAMES = NameLookups()


def _is_of_use(lookup: Future[_Answer]) -> bool:
    return not lookup.done() or lookup.result().is_fresh


def _look_up(host: str) -> _Answer:
    # of a name, only addresses of a family that this machine has; loopback's does not count, so not of a literal
    flags = 0 if literal_address(host) else socket.AI_ADDRCONFIG
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError) as exc:
        return _Answer([], str(exc))
    return _Answer(
        list(dict.fromkeys((family, _written(sockaddr)) for family, *_, sockaddr in found)), "no address"
    )


def _written(sockaddr: tuple[object, ...]) -> str:
    """With the interface of an IPv6 address that wants one."""
    address, scope = str(sockaddr[0]), sockaddr[3] if len(sockaddr) > 3 else 0
    return f"{address}%{scope}" if scope and "%" not in address else address
