"""Dict whose entries have owners, so that an owner with many entries does not evict those of others."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, MutableMapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FairDict(MutableMapping[K, V], Generic[K, V]):
    """Mapping in insertion order, in which each entry has an owner. Eviction is fair between the owners.

    Args:
        owner_of: callable that returns the owner of a key and its value. The owner must not change while the
            entry is in the mapping.
    """

    def __init__(self, owner_of: Callable[[K, V], str]) -> None:
        self._owner_of = owner_of
        self._entries = dict[K, V]()
        self._keys = dict[str, OrderedDict[K, None]]()
        """Keys by owner, in insertion order. Owners without entries are removed."""

    def oldest(self, size: Callable[[Collection[K]], int] = len) -> K:
        """Return the key to evict next: the oldest entry of the owner that uses the most.

        Args:
            size: callable that measures the keys of an owner. By default, it counts them.
        """
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
