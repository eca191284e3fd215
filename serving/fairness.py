"""Fair shares of limited resources among keys and teams.

`share` is the rule for the runs of a router and the slots of a worker, whose modules count what each key has.
`Room` limits other resources that requests use. `RoundRobin` orders work that waits. `FairDict` evicts entries.
`in_slices` shares the event loop. `unit_hash` spreads keys evenly over places.
"""

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Generic, TypeVar

from conductor.errors import Overloaded
from conductor.run.record import Account

RESERVED_PART = 0.1
"""Part of a resource that is reserved for keys that have less than their share of it."""
OF_A_KEY, OF_A_TEAM = (4, "a quarter"), (2, "half")
"""Limits of one key and of one team in a `Room`. Each is a fraction of the whole: its divisor, and its words for
messages.
"""
RETRY_AFTER_S = 2.0
SLICE_S = 0.002
"""Seconds of CPU time that a long list may take before other tasks run."""
Item = TypeVar("Item")
K = TypeVar("K")
V = TypeVar("V")


def share(had: Counter[str]) -> float:
    """Return the fair share of a key, which is the mean amount per key in `had`."""
    return had.total() / len(had) if had else 0.0


def add_to(had: Counter[str], key: str, n: int) -> None:
    """Add `n` to what a key has. `had` has no keys without an amount."""
    had[key] += n
    if not had[key]:
        del had[key]


class Room:
    """Limit of a resource on one router, such as open reads or unread bytes.

    An account (a key and its team) that has none of the resource may take any amount that is free. While the
    whole resource is free, an account may even exceed the limit.

    Args:
        setting: name of the setting that limits the resource, for errors.
        most: returns the current limit.
        what: plural noun for the resource, for errors.
    """

    def __init__(self, setting: str, most: Callable[[], int], what: str) -> None:
        self._setting, self._most, self._what = setting, most, what
        self._of_keys, self._of_teams = Counter[str](), Counter[str]()
        self.in_use = 0

    def check(self, account: Account, n: int = 1) -> None:
        """Check that an account may take `n` more units of the resource.

        Accounts without a key, which exist only if keys are turned off, have no limits of their own.

        Raises:
            Overloaded: the resource is used up, or the key or its team has its full share.
        """
        if not n:
            return
        most = self._most()
        if self.in_use and self.in_use + n > most:
            raise self._error(f"This server has reached its limit of {self._what}")
        owner = account.tenant
        for name, had, (part, word) in (
            ("key", self._of_keys[account.key_id] if account.key_id else 0, OF_A_KEY),
            ("team", self._of_teams[owner] if account.team_id else 0, OF_A_TEAM),
        ):
            if had and had + n > most // part:
                raise self._error(
                    f"This {name} has reached its limit of {self._what}, which is {word} of the server's limit"
                )
        had = self._of_teams[owner]
        if owner and had and had >= share(self._of_teams) and self.in_use + n > (1 - RESERVED_PART) * most:
            raise self._error(
                f"This key or its team has used its fair share of the server's limit of {self._what}"
            )

    def acquire(self, account: Account, n: int = 1) -> None:
        """Check that an account may take `n` units of the resource, and acquire them. Release them with `release`.

        Raises:
            Overloaded: see `check`.
        """
        self.check(account, n)
        if n:
            self._add(account, n)

    def release(self, account: Account, n: int = 1) -> None:
        """Release `n` units."""
        self._add(account, -n)

    @contextmanager
    def holding(self, account: Account, n: int = 1) -> Generator[None]:
        """Take `n` units of the resource until the block ends.

        Raises:
            Overloaded: see `acquire`.
        """
        self.acquire(account, n)
        try:
            yield
        finally:
            self.release(account, n)

    def _add(self, account: Account, n: int) -> None:
        self.in_use += n
        add_to(self._of_keys, account.key_id, n)
        add_to(self._of_teams, account.tenant, n)

    def _error(self, why: str) -> Overloaded:
        message = f"{why} ({self._setting}). Retry soon."
        return Overloaded(message, param=self._setting, retry_after_s=RETRY_AFTER_S)


class Share:
    """Part of a room that one account has taken. Its size can change.

    Args:
        room: room from which the part is taken.
        account: account that has taken the part.
    """

    def __init__(self, room: Room, account: Account) -> None:
        self._room, self._account, self.n = room, account, 0

    def resize(self, n: int) -> None:
        """Change the size of the part to `n`.

        Raises:
            Overloaded: there is no room for `n`. The part keeps its size.
        """
        if n > self.n:
            self._room.acquire(self._account, n - self.n)
        else:
            self._room.release(self._account, self.n - n)
        self.n = n


class RoundRobin(Generic[Item]):
    """Queue whose owners take turns. The items of one owner stay in order."""

    def __init__(self) -> None:
        self._items = OrderedDict[str, deque[Item]]()

    def __bool__(self) -> bool:
        return bool(self._items)

    def __len__(self) -> int:
        return sum(map(len, self._items.values()))

    def count(self, owner: str) -> int:
        """Return the number of the owner's items."""
        return len(self._items.get(owner, ()))

    def add(self, owner: str, item: Item, *, is_first: bool = False) -> None:
        """Add an item after the owner's other items, or before them if `is_first`."""
        items = self._items.setdefault(owner, deque())
        items.appendleft(item) if is_first else items.append(item)

    def remove(self, owner: str, item: Item) -> None:
        """Remove an item, if it is still in the queue."""
        items = self._items.get(owner, deque())
        if item in items:
            items.remove(item)
            if not items:
                del self._items[owner]

    def pop(self) -> Item:
        """Remove and return the first item, and move its owner to the end of the queue."""
        owner, items = self._items.popitem(last=False)
        item = items.popleft()
        if items:
            self._items[owner] = items
        return item

    def move_to_end(self, owner: str) -> None:
        """Let all other owners come before `owner`."""
        if owner in self._items:
            self._items.move_to_end(owner)


class FairDict(MutableMapping[K, V], Generic[K, V]):
    """Mapping in insertion order with fair eviction: an owner with many entries does not evict those of
    others. An entry's owner must not change.
    """

    def __init__(self, owner_of: Callable[[K, V], str]) -> None:
        self._owner_of = owner_of
        self._entries = dict[K, V]()
        self._keys = dict[str, OrderedDict[K, None]]()
        """Keys by owner, in insertion order. Owners without entries are removed."""

    def oldest(self, size: Callable[[Collection[K]], int] = len) -> K:
        """Return the key to evict: the oldest entry of the owner that uses the most, by number or `size`."""
        return next(iter(max(self._keys.values(), key=size)))

    def pop_down_to(self, most: int) -> None:
        """Evict entries until at most `most` are left."""
        while len(self) > most:
            del self[self.oldest()]

    def __getitem__(self, key: K) -> V:
        return self._entries[key]

    def __setitem__(self, key: K, value: V) -> None:
        """Set an entry. An existing key keeps its position."""
        self._entries[key] = value
        self._keys.setdefault(self._owner_of(key, value), OrderedDict())[key] = None

    def __delitem__(self, key: K) -> None:
        owner = self._owner_of(key, self._entries.pop(key))
        del self._keys[owner][key]
        if not self._keys[owner]:
            del self._keys[owner]

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


async def in_slices(items: Iterable[Item]) -> AsyncIterator[Item]:
    """Yield `items`, and let other tasks run whenever processing them has taken `SLICE_S` of CPU time."""
    began_s = time.thread_time()
    for item in items:
        yield item
        if time.thread_time() - began_s > SLICE_S:
            await asyncio.sleep(0)
            began_s = time.thread_time()


def unit_hash(text: str) -> float:
    """Return a number above 0 and at most 1 that depends only on `text`. Different texts give evenly spread numbers.

    Routers use it to choose alike without a shared store (rendezvous hashing).
    """
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return (int.from_bytes(digest) + 1) / 2**48
