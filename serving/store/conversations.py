"""Storage of client conversations: ordered items, whose content the store does not interpret."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import orjson

from conductor.run.record import Account
from serving.accounts.caller import same_owner
from serving.database.clock import now_us

Json = dict[str, Any]
MOST_ITEMS = 10_000
"""Maximum number of items in a conversation."""
MOST_BYTES = 16 * 2**20
"""Size in bytes at which a conversation accepts no more items."""
MOST_OF_TEAM, MOST_BYTES_OF_TEAM = 10_000, 2**30
"""Maximum number of conversations of a team, and their maximum total size in bytes."""
MOST_BYTES_IN_MEMORY = 64 * 2**20
"""Maximum total bytes without a store. The least recently changed conversations are dropped above it."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation without its items.

    Args:
        n_items: number of items that were ever added, including removed ones. The ids of removed items are
            kept, so that no turn is added twice.
    """

    id: str
    account: Account
    made_us: int
    metadata: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    n_bytes: int = 0
    n_items: int = 0

    @property
    def is_full(self) -> bool:
        """True if the conversation accepts no more items."""
        return self.n_bytes >= MOST_BYTES or self.n_items >= MOST_ITEMS


class ConversationStore(Protocol):
    """Store of conversations, whose items have an `id`. Methods raise `StoreUnavailable` without the store."""

    async def create(self, conversation: Conversation) -> None:
        """Store a new conversation without items."""
        ...

    async def get(self, id: str) -> Conversation | None: ...

    async def usage(self, account: Account) -> tuple[int, int]:
        """Return the number and the total bytes of the conversations of an account.

        The conversations of its team count, or those of its key if it has no team.
        """
        ...

    async def set_metadata(self, id: str, metadata: Mapping[str, str]) -> None: ...

    async def delete(self, id: str) -> None: ...

    async def append(self, id: str, items: Sequence[Json], turn: str = "") -> None:
        """Append items atomically, unless the conversation is missing, or items of `turn` were appended, even
        if removed.
        """
        ...

    async def items(
        self, id: str, limit: int | None = None, after: str | None = None, *, newest_first: bool = False
    ) -> list[Json]:
        """Return a conversation's items, oldest or newest first, after the item `after`. Raise KeyError if
        that is missing.
        """
        ...

    async def item(self, id: str, item_id: str) -> Json | None: ...

    async def remove_item(self, id: str, item_id: str) -> None: ...


class MemoryConversations:
    """`ConversationStore` in the memory of one replica. It is lost when the replica ends."""

    def __init__(self) -> None:
        self._conversations = dict[str, Conversation]()
        self._items = dict[str, dict[str, Json | None]]()
        """Items by conversation id and item id. None marks a removed item."""
        self._turns = dict[str, set[str]]()

    async def create(self, conversation: Conversation) -> None:
        self._conversations[conversation.id] = conversation
        self._items[conversation.id], self._turns[conversation.id] = {}, set()

    async def get(self, id: str) -> Conversation | None:
        conversation = self._conversations.get(id)
        return replace(conversation, n_items=len(self._items[id])) if conversation else None

    async def usage(self, account: Account) -> tuple[int, int]:
        mine = [each for each in self._conversations.values() if same_owner(each.account, account)]
        return len(mine), sum(each.n_bytes for each in mine)

    async def set_metadata(self, id: str, metadata: Mapping[str, str]) -> None:
        if id in self._conversations:
            self._touch(replace(self._conversations[id], metadata=metadata))

    async def delete(self, id: str) -> None:
        for each in (self._conversations, self._items, self._turns):
            each.pop(id, None)

    async def append(self, id: str, items: Sequence[Json], turn: str = "") -> None:
        if id not in self._conversations or turn in self._turns[id]:
            return
        if turn:
            self._turns[id].add(turn)
        self._items[id] |= {item["id"]: item for item in items}
        conversation = self._conversations[id]
        self._touch(
            replace(conversation, n_bytes=conversation.n_bytes + sum(map(len, map(orjson.dumps, items))))
        )
        while len(self._conversations) > 1 and sum(each.n_bytes for each in self._conversations.values()) > MOST_BYTES_IN_MEMORY:  # fmt: skip
            await self.delete(next(iter(self._conversations)))

    async def items(
        self, id: str, limit: int | None = None, after: str | None = None, *, newest_first: bool = False
    ) -> list[Json]:
        entries = list(self._items.get(id, {}).items())
        if newest_first:
            entries.reverse()
        begin = 0 if after is None else _place([name for name, _ in entries], after) + 1
        return [item for _, item in entries[begin:] if item is not None][:limit]

    async def item(self, id: str, item_id: str) -> Json | None:
        return self._items.get(id, {}).get(item_id)

    async def remove_item(self, id: str, item_id: str) -> None:
        item = self._items.get(id, {}).get(item_id)
        if item is not None:
            self._items[id][item_id] = None
            conversation = self._conversations[id]
            self._touch(replace(conversation, n_bytes=conversation.n_bytes - len(orjson.dumps(item))))

    def _touch(self, conversation: Conversation) -> None:
        """Store a changed conversation as the most recent one."""
        self._conversations.pop(conversation.id)
        self._conversations[conversation.id] = conversation


def new_conversation(id: str, account: Account, metadata: Mapping[str, str]) -> Conversation:
    return Conversation(id, account, now_us(), metadata)


def _place(ids: list[str], id: str) -> int:
    if id not in ids:
        raise KeyError(id)
    return ids.index(id)
