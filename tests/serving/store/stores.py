"""Replicas that share a real database, in one process."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from serving.accounts.account_ledgers import AccountLedgers
from serving.accounts.directory import Directory
from serving.accounts.replica_store import ReplicaStore
from serving.batches.database_store import DatabaseBatchStore
from serving.database.address import Address
from serving.settings.sections import LimitSettings
from serving.store.database_conversations import DatabaseConversations
from serving.store.database_store import DatabaseStore
from serving.store.prompt_caches import PromptCaches
from serving.store.store import StoreListener
from tests.serving.api.served import Json, Served, served, team


@dataclass
class Replica:
    api: Served
    store: ReplicaStore
    records: DatabaseStore

    async def rows(self, sql: str, **values: Any) -> list[Any]:
        async with (await self.store.database()).reading() as connection:
            return list(await connection.execute(text(sql), values))

    async def change(self, sql: str, **values: Any) -> None:
        async with (await self.store.database()).writing() as connection:
            await connection.execute(text(sql), values)


@asynccontextmanager
async def open_stores(address: Address, **options: Any) -> AsyncGenerator[tuple[ReplicaStore, DatabaseStore]]:
    store = ReplicaStore(address, renew_s=60)
    records = DatabaseStore(store, LimitSettings, sweep_s=60, **options)
    try:
        yield store, records
    finally:
        await records.aclose()
        await store.aclose()


@asynccontextmanager
async def replicas(
    address: Address, settings: Json | None = None, n: int = 2, directory: Directory | None = None
) -> AsyncGenerator[list[Replica]]:
    """Serve the same settings from `n` routers, each with its own scripted workers."""
    async with AsyncExitStack() as stack:
        running: list[Replica] = []
        for _ in range(n):
            store = ReplicaStore(address, renew_s=60)
            stack.push_async_callback(store.aclose)

            def open_store(listener: StoreListener, store: ReplicaStore = store) -> DatabaseStore:
                records = DatabaseStore(store, LimitSettings, sweep_s=60, listener=listener)
                stack.push_async_callback(records.aclose)
                return records

            api = await stack.enter_async_context(
                served(
                    settings or team(),
                    open_store=open_store,
                    ledgers=AccountLedgers(store),
                    directory=directory,
                    batch_store=DatabaseBatchStore(store),
                    conversations=DatabaseConversations(store),
                    prompt_caches=PromptCaches(store, patience_s=60),
                )
            )
            assert isinstance(api.service.store, DatabaseStore)
            running.append(Replica(api, store, api.service.store))
        yield running
