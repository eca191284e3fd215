"""The store as SQLAlchemy sees it: for administration, look-ups and migrations. What every paid call needs
goes through `writer.py`.
"""
# asyncpg has no types of its own.
# pyright: reportMissingTypeStubs=false

import contextlib
import logging
import sqlite3
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, Self, cast

import asyncpg
from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from serving.database.address import Address, StoreError
from serving.database.outages import mapped_errors

BUSY_MS = 5_000
"""How long a SQLite writer waits for another process to commit."""
MOST_WAL_BYTES = 67_108_864
"""Of SQLite's write-ahead log, once nobody reads what is in it: else the file stays as large as it ever was."""
PRAGMAS = (
    f"busy_timeout={BUSY_MS}",
    "foreign_keys=ON",
    "synchronous=FULL",
    f"journal_size_limit={MOST_WAL_BYTES}",
)
"""Of every SQLite connection; FULL: what is committed survives a power cut."""
READER_PRAGMAS = (*PRAGMAS, "cache_size=-512")
"""Of each of the pool, which may have fifteen: KiB of pages, which the system keeps in memory too. SQLite's own 2,000 took
30 MB in all, and hours to fill.
"""
CONNECT_S = 10.0
POOL_SIZE = 4
"""PostgreSQL connections of one replica, beside its writer's one."""


class PostgresConnection(Protocol):
    """What is used of a connection of asyncpg, which has no types."""

    async def execute(self, query: str, *arguments: object) -> str:
        """Do it; gives what the server says of it."""
        ...

    async def fetch(self, query: str, *arguments: object) -> list[Mapping[str, Any]]:
        """Do it; gives the rows."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """A transaction for a block."""
        ...

    def is_closed(self) -> bool:
        """Whether it is."""
        ...

    def terminate(self) -> None:
        """Close it without a word to the server."""
        ...


class Database:
    """An engine with its connections; close it.

    Args:
        address: of the database.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.engine = make_engine(address)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection."""
        await self.engine.dispose()

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncConnection]:
        """A connection in a transaction that reads.

        Raises:
            StoreUnavailable: the database is away.
            StoreError: it refuses us.
        """
        with mapped_errors(self.address):
            async with self.engine.connect() as connection, connection.begin():
                yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[AsyncConnection]:
        """A connection in a transaction that writes, committed where the block ends without an error.

        Raises:
            StoreUnavailable, StoreError: see `reading`.
        """
        with mapped_errors(self.address):
            async with self.engine.connect() as connection:
                await connection.execution_options(podium_writes=True)
                async with connection.begin():
                    yield connection


async def connect_postgresql(address: Address, command_s: float | None = None) -> PostgresConnection:
    """A connection of asyncpg, to be closed.

    Args:
        address: of the database.
        command_s: how long a statement may take; None: as long as it takes.
    """
    connect: Any = asyncpg.connect  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return await connect(address.dsn, timeout=CONNECT_S, command_timeout=command_s)


def make_engine(address: Address) -> AsyncEngine:
    """An engine for `address`. The address's password is in no URL of it."""
    if address.kind == "postgresql":

        async def connect() -> PostgresConnection:
            return await connect_postgresql(address)

        return create_async_engine(
            "postgresql+asyncpg://",
            async_creator=connect,
            pool_size=POOL_SIZE,
            max_overflow=0,
            pool_timeout=CONNECT_S,
            pool_pre_ping=True,
            hide_parameters=True,  # of statements in logs and errors: hashes of keys
        )
    logging.getLogger("aiosqlite").setLevel(logging.WARNING)  # it tells every statement's parameters
    engine = create_async_engine(
        f"sqlite+aiosqlite:///{address.path}", pool_timeout=CONNECT_S, hide_parameters=True
    )
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def make_folder(path: Path) -> None:
    """Make the folder of the SQLite file at `path`, for this account only.

    Raises:
        StoreError: it cannot be made.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.with_name(f"{path.name}.lock").touch(0o600)
    except OSError as exc:
        raise StoreError(
            f"The store {path} cannot be written: {exc.strerror}. Name a file in a folder of this account in store.path."
        ) from exc


def make_file(path: Path) -> None:
    """Make the SQLite file, empty, for this account only; its writers do not wait for readers (WAL), which
    is a property of the file. Whoever calls it has the migrations' lock.
    """
    path.touch(0o600)
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_MS / 1000)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # or Python's sqlite3 begins transactions by rules of its own
    cursor = connection.cursor()
    for pragma in READER_PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """One that is going to write takes the lock at once: to upgrade later fails without waiting where
    another process has written in between.
    """
    options = cast(dict[str, object], connection.get_execution_options())
    connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("podium_writes") else "BEGIN")
