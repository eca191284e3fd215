"""Conversations that are kept for their clients: items in the order in which they came. Knows nothing of what an item
says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import orjson

from conductor.run.record import Account
from serving.runs.rows import now_us

Json = dict[str, Any]
MOST_ITEMS = 10_000
"""Of one conversation."""
MOST_BYTES = 16 * 2**20
"""Of one conversation."""
MOST_OF_TEAM, MOST_BYTES_OF_TEAM = 10_000, 2**30
"""Conversations of a team, and what they hold."""
MOST_BYTES_IN_MEMORY = 64 * 2**20
"""Of one replica that has no store: the conversation that was not changed for longest makes room."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation without its items.

    Args:
        id: as clients name it.
        account: whose.
        made_us: when it was begun, in microseconds since 1970, UTC.
        metadata: the client's own.
        n_bytes: of its items.
        n_items: that were ever added: of one that was removed its id is kept, so that no turn is added twice.
    """

    id: str
    account: Account
    made_us: int
    metadata: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    n_bytes: int = 0
    n_items: int = 0

    @property
    def is_full(self) -> bool:
        """Whether it takes no more."""
        return self.n_bytes >= MOST_BYTES or self.n_items >= MOST_ITEMS


class ConversationStore(Protocol):
    """Keeps conversations. An item is an object with an `id`. All of it raises StoreUnavailable while the store is
    away.
    """

    async def create(self, conversation: Conversation) -> None:
        """Keep a new one, without items."""
        ...

    async def get(self, id: str) -> Conversation | None:
        """The one of that id, if it is still kept."""
        ...

    async def usage(self, account: Account) -> tuple[int, int]:
        """How many the account's team has (without a team, the key), and how many bytes they hold."""
        ...

    async def set_metadata(self, id: str, metadata: Mapping[str, str]) -> None:
        """In place of what it has."""
        ...

    async def delete(self, id: str) -> None:
        """Forget it and its items."""
        ...

    async def append(self, id: str, items: Sequence[Json], turn: str = "") -> None:
        """Add items to the end, all of them together; nothing where those of that turn were added before (also when
        they have been removed since), and where there is no such conversation.
        """
        ...

    async def items(
        self, id: str, limit: int | None = None, after: str | None = None, *, newest_first: bool = False
    ) -> list[Json]:
        """Its items, the oldest first unless said otherwise; those after the one of the id `after`, in that order.

        Raises:
            KeyError: there is no item `after`.
        """
        ...

    async def item(self, id: str, item_id: str) -> Json | None:
        """One of its items."""
        ...

    async def remove_item(self, id: str, item_id: str) -> None:
        """Forget one of its items."""
        ...


class MemoryConversations:
    """A `ConversationStore` in the memory of one replica, gone with it."""

    def __init__(self) -> None:
        self._kept = dict[str, Conversation]()
        self._items = dict[str, dict[str, Json | None]]()
        """By conversation and id; None: removed."""
        self._turns = dict[str, set[str]]()

    async def create(self, conversation: Conversation) -> None:
        """See `ConversationStore`."""
        self._kept[conversation.id] = conversation
        self._items[conversation.id], self._turns[conversation.id] = {}, set()

    async def get(self, id: str) -> Conversation | None:
        """See `ConversationStore`."""
        held = self._kept.get(id)
        return replace(held, n_items=len(self._items[id])) if held else None

    async def usage(self, account: Account) -> tuple[int, int]:
        """See `ConversationStore`."""
        mine = [each for each in self._kept.values() if _same_room(each.account, account)]
        return len(mine), sum(each.n_bytes for each in mine)

    async def set_metadata(self, id: str, metadata: Mapping[str, str]) -> None:
        """See `ConversationStore`."""
        if id in self._kept:
            self._touch(replace(self._kept[id], metadata=metadata))

    async def delete(self, id: str) -> None:
        """See `ConversationStore`."""
        for kept in (self._kept, self._items, self._turns):
            kept.pop(id, None)

    async def append(self, id: str, items: Sequence[Json], turn: str = "") -> None:
        """See `ConversationStore`."""
        if id not in self._kept or turn in self._turns[id]:
            return
        if turn:
            self._turns[id].add(turn)
        self._items[id] |= {item["id"]: item for item in items}
        held = self._kept[id]
        self._touch(replace(held, n_bytes=held.n_bytes + sum(map(len, map(orjson.dumps, items)))))
        while len(self._kept) > 1 and sum(each.n_bytes for each in self._kept.values()) > MOST_BYTES_IN_MEMORY:  # fmt: skip
            await self.delete(next(iter(self._kept)))

    async def items(
        self, id: str, limit: int | None = None, after: str | None = None, *, newest_first: bool = False
    ) -> list[Json]:
        """See `ConversationStore`."""
        found = list(self._items.get(id, {}).items())
        if newest_first:
            found.reverse()
        begin = 0 if after is None else _place([name for name, _ in found], after) + 1
        return [item for _, item in found[begin:] if item is not None][:limit]

    async def item(self, id: str, item_id: str) -> Json | None:
        """See `ConversationStore`."""
        return self._items.get(id, {}).get(item_id)

    async def remove_item(self, id: str, item_id: str) -> None:
        """See `ConversationStore`."""
        item = self._items.get(id, {}).get(item_id)
        if item is not None:
            self._items[id][item_id] = None
            held = self._kept[id]
            self._touch(replace(held, n_bytes=held.n_bytes - len(orjson.dumps(item))))

    def _touch(self, conversation: Conversation) -> None:
        """Keep what has changed at the end."""
        self._kept.pop(conversation.id)
        self._kept[conversation.id] = conversation


def new_conversation(id: str, account: Account, metadata: Mapping[str, str]) -> Conversation:
    """One that begins now."""
    return Conversation(id, account, now_us(), metadata)


def _place(ids: list[str], id: str) -> int:
    if id not in ids:
        raise KeyError(id)
    return ids.index(id)


def _same_room(one: Account, other: Account) -> bool:
    if one.team_id or other.team_id:
        return one.team_id == other.team_id
    return one.key_id == other.key_id
