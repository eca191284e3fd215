"""A dict in which nobody's entries push out those of somebody who has fewer."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, MutableMapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FairDict(MutableMapping[K, V], Generic[K, V]):
    """Entries in the order they came, each of them somebody's for as long as it is here.

    Args:
        owner_of: whose an entry is.
    """

    def __init__(self, owner_of: Callable[[K, V], str]) -> None:
        self._owner_of = owner_of
        self._entries = dict[K, V]()
        self._keys = dict[str, OrderedDict[K, None]]()
        """By owner; each has one at least."""

    def oldest(self, size: Callable[[Collection[K]], int] = len) -> K:
        """Which entry is to go where there is no more room: the oldest of the owner whose entries are most."""
        return next(iter(max(self._keys.values(), key=size)))

    def pop_down_to(self, most: int) -> None:
        """Take out what is to go until there are no more than `most`."""
        while len(self) > most:
            del self[self.oldest()]

    def __getitem__(self, key: K) -> V:
        return self._entries[key]

    def __setitem__(self, key: K, value: V) -> None:
        """A key that is there keeps its place."""
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
