"""`ConversationStore` in the database that all replicas share."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import Row, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from conductor.run.record import Account
from serving.accounts.replica_store import ReplicaStore
from serving.database.clock import now_us
from serving.database.schema import conversation as conversation_table
from serving.database.schema import conversation_item
from serving.store.conversations import Conversation
from serving.store.queries import owner_condition

Json = dict[str, Any]
CONVERSATION, ITEM = conversation_table.c, conversation_item.c


class DatabaseConversations:
    """`ConversationStore` in a database. Appends lock the row of the conversation, so that they run one after
    another.
    """

    def __init__(self, store: ReplicaStore) -> None:
        self._store = store

    async def create(self, conversation: Conversation) -> None:
        made_us, account = conversation.made_us, conversation.account
        row = {
            "id": conversation.id,
            "key_id": account.key_id,
            "team_id": account.team_id,
            "made_us": made_us,
            "changed_us": made_us,
            "n_bytes": 0,
            "metadata": orjson.dumps(conversation.metadata).decode(),
        }
        await self._write(insert(conversation_table).values(row))

    async def get(self, id: str) -> Conversation | None:
        is_of_it = ITEM.conversation_id == CONVERSATION.id
        n_items = select(func.count()).where(is_of_it).scalar_subquery().label("n_items")
        rows = await self._store.read(select(conversation_table, n_items).where(CONVERSATION.id == id))
        return _conversation(rows[0]) if rows else None

    async def usage(self, account: Account) -> tuple[int, int]:
        mine = owner_condition(conversation_table, account)
        query = select(
            func.count().label("n"), func.coalesce(func.sum(CONVERSATION.n_bytes), 0).label("n_bytes")
        ).where(mine)
        rows = await self._store.read(query)
        return (int(rows[0].n), int(rows[0].n_bytes)) if rows else (0, 0)

    async def set_metadata(self, id: str, metadata: Mapping[str, str]) -> None:
        values = {"metadata": orjson.dumps(metadata).decode(), "changed_us": now_us()}
        await self._write(update(conversation_table).where(CONVERSATION.id == id).values(values))

    async def delete(self, id: str) -> None:
        await self._write(
            delete(conversation_item).where(ITEM.conversation_id == id),
            delete(conversation_table).where(CONVERSATION.id == id),
        )

    async def append(self, id: str, items: Sequence[Json], turn: str = "") -> None:
        async with (await self._store.database()).writing() as connection:
            locked = select(CONVERSATION.id).where(CONVERSATION.id == id).with_for_update()
            if (await connection.execute(locked)).first() is None or not items:
                return
            if turn and await _has_turn(connection, id, turn):
                return
            newest = select(func.coalesce(func.max(ITEM.number), -1)).where(ITEM.conversation_id == id)
            first = int((await connection.execute(newest)).scalar_one()) + 1
            at_us = now_us()
            bodies = [orjson.dumps(item) for item in items]
            rows = [
                {"conversation_id": id, "number": first + n, "id": item["id"], "turn": turn, "made_us": at_us, "n_bytes": len(body), "body": body}
                for n, (item, body) in enumerate(zip(items, bodies, strict=True))
            ]  # fmt: skip
            await connection.execute(insert(conversation_item), rows)
            n_bytes = CONVERSATION.n_bytes + sum(map(len, bodies))
            statement = (
                update(conversation_table)
                .where(CONVERSATION.id == id)
                .values(n_bytes=n_bytes, changed_us=at_us)
            )
            await connection.execute(statement)

    async def items(
        self, id: str, limit: int | None = None, after: str | None = None, *, newest_first: bool = False
    ) -> list[Json]:
        query = select(ITEM.body).where(ITEM.conversation_id == id, ITEM.body.is_not(None))
        if after is not None:
            rows = await self._store.read(
                select(ITEM.number).where(ITEM.conversation_id == id, ITEM.id == after)
            )
            if not rows:
                raise KeyError(after)
            number = rows[0].number
            query = query.where(ITEM.number < number if newest_first else ITEM.number > number)
        query = query.order_by(ITEM.number.desc() if newest_first else ITEM.number).limit(limit)
        return [orjson.loads(row.body) for row in await self._store.read(query)]

    async def item(self, id: str, item_id: str) -> Json | None:
        query = select(ITEM.body).where(ITEM.conversation_id == id, ITEM.id == item_id)
        rows = await self._store.read(query)
        return orjson.loads(rows[0].body) if rows and rows[0].body is not None else None

    async def remove_item(self, id: str, item_id: str) -> None:
        async with (await self._store.database()).writing() as connection:
            await connection.execute(select(CONVERSATION.id).where(CONVERSATION.id == id).with_for_update())
            one = (ITEM.conversation_id == id) & (ITEM.id == item_id)
            n_bytes = (await connection.execute(select(ITEM.n_bytes).where(one))).scalar() or 0
            await connection.execute(update(conversation_item).where(one).values(body=None, n_bytes=0))
            less = (
                update(conversation_table)
                .where(CONVERSATION.id == id)
                .values(n_bytes=CONVERSATION.n_bytes - n_bytes)
            )
            await connection.execute(less)

    async def _write(self, *statements: Any) -> None:
        async with (await self._store.database()).writing() as connection:
            for statement in statements:
                await connection.execute(statement)


async def _has_turn(connection: AsyncConnection, id: str, turn: str) -> bool:
    query = select(ITEM.number).where(ITEM.conversation_id == id, ITEM.turn == turn).limit(1)
    return (await connection.execute(query)).first() is not None


def _conversation(row: Row[Any]) -> Conversation:
    account = Account(row.key_id, row.team_id)
    return Conversation(row.id, account, row.made_us, orjson.loads(row.metadata), row.n_bytes, row.n_items)
