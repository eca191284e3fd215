"""Database connections through SQLAlchemy, for administration, reads and migrations.

Writes during a request use `writer.py` instead.
"""
# asyncpg has no type annotations.
# pyright: reportMissingTypeStubs=false

import contextlib
import logging
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, Self, cast

import asyncpg
from sqlalchemy import Connection, Engine, NullPool, create_engine, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from serving.database.address import Address, StoreError
from serving.database.outages import mapped_errors

BUSY_MS = 5_000
"""Milliseconds that a SQLite writer waits for another process to commit."""
MOST_WAL_BYTES = 67_108_864
"""Size in bytes to which SQLite truncates its write-ahead log. Without a limit the file would never shrink.
"""
PRAGMAS = (
    f"busy_timeout={BUSY_MS}",
    "foreign_keys=ON",
    "synchronous=FULL",
    f"journal_size_limit={MOST_WAL_BYTES}",
)
"""Pragmas of every SQLite connection. With `synchronous=FULL`, committed data survives a power failure."""
READER_PRAGMAS = (*PRAGMAS, "cache_size=-512")
"""Pragmas of up to fifteen pooled connections, whose small caches save 30 MB. The system caches the pages
too.
"""
CONNECT_S = 10.0
POOL_SIZE = 4
"""PostgreSQL connections of one replica, in addition to its writer's."""


class PostgresConnection(Protocol):
    """Part of the interface of an asyncpg connection that is used here. asyncpg has no type annotations."""

    def is_closed(self) -> bool: ...

    def terminate(self) -> None:
        """Close the connection without notifying the server."""
        ...


class SqliteConnection(sqlite3.Connection):
    """SQLite connection that releases its locks when it is closed.

    SQLite keeps a closed connection, and with it the write lock, until its last statement is gone. The statement of
    a cancelled task stays until the next garbage collection.
    """

    def close(self) -> None:
        """Roll back the open transaction, if there is one, and close the connection."""
        with contextlib.suppress(sqlite3.Error):  # it is closed already
            self.rollback()
        super().close()


class Database:
    """Connections to a database, through SQLAlchemy. Close it with `aclose`, or by a context."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.engine = make_engine(address)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self.engine.dispose()

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncConnection]:
        """Open a transaction for reading. Raise StoreUnavailable, or StoreError if the connection is
        rejected.
        """
        with mapped_errors(self.address):
            async with self.engine.connect() as connection, connection.begin():
                yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[AsyncConnection]:
        """Open a transaction for writing. It is committed if the block ends without an error. See `reading`."""
        with mapped_errors(self.address):
            async with self.engine.connect() as connection:
                await connection.execution_options(podium_writes=True)
                async with connection.begin():
                    yield connection


async def connect_postgresql(address: Address, command_s: float | None = None) -> PostgresConnection:
    """Open an asyncpg connection, which the caller must close. `command_s` is each statement's timeout."""
    connect: Any = asyncpg.connect  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return await connect(address.dsn, timeout=CONNECT_S, command_timeout=command_s)


def make_engine(address: Address) -> AsyncEngine:
    """Create an engine for the database at `address`. The engine's URL does not contain the password."""
    if address.kind == "postgresql":
        options = {
            "pool_size": POOL_SIZE,
            "max_overflow": 0,
            "pool_timeout": CONNECT_S,
            "pool_pre_ping": True,
        }
        return make_postgresql_engine(lambda: connect_postgresql(address), **options)
    logging.getLogger("aiosqlite").setLevel(logging.WARNING)  # it logs the parameters of every statement
    engine = create_async_engine(
        f"sqlite+aiosqlite:///{address.path}",
        connect_args={"factory": SqliteConnection},
        pool_timeout=CONNECT_S,
        hide_parameters=True,
    )
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def make_postgresql_engine(
    connect: Callable[[], Awaitable[PostgresConnection]], **options: Any
) -> AsyncEngine:
    """Create an engine for PostgreSQL whose pool opens connections with `connect`."""
    return create_async_engine(
        "postgresql+asyncpg://",
        async_creator=connect,
        hide_parameters=True,  # statements in logs and errors would show hashes of keys
        **options,
    )


def make_sqlite_writer(path: Path) -> Engine:
    """Create an engine for writing to the SQLite file at `path`, which must exist. Use it in one thread only."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=BUSY_MS / 1000)
        _set_up(connection, PRAGMAS)
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool, hide_parameters=True)
    event.listen(engine, "begin", _begin_sqlite)
    return engine.execution_options(podium_writes=True)


@contextlib.contextmanager
def open_sqlite_reader(path: Path) -> Generator[sqlite3.Connection]:
    """Open a transaction for reading in the SQLite file at `path`. Use it in one thread only."""
    uri, timeout_s = f"{path.as_uri()}?mode=ro", BUSY_MS / 1000
    with contextlib.closing(
        sqlite3.connect(uri, uri=True, timeout=timeout_s, factory=SqliteConnection)
    ) as connection:
        connection.execute("BEGIN")
        yield connection


def make_folder(path: Path) -> None:
    """Create the private folder and the lock file of the SQLite file at `path`, or raise StoreError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.with_name(f"{path.name}.lock").touch(0o600)
    except OSError as exc:
        raise StoreError(
            f"The store {path} cannot be written: {exc.strerror}. Set store.path to a file in a folder that this user can write to."
        ) from exc


def make_file(path: Path) -> None:
    """Create an empty, private SQLite file. The caller must hold the migration lock. The file stores WAL
    mode, in which writers do not wait for readers.
    """
    path.touch(0o600)
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_MS / 1000)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")


def _prepare_sqlite(connection: Any, _: object) -> None:
    _set_up(connection, READER_PRAGMAS)


def _set_up(connection: Any, pragmas: Sequence[str]) -> None:
    connection.isolation_level = None  # otherwise Python's sqlite3 begins transactions implicitly
    cursor = connection.cursor()
    for pragma in pragmas:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """Begin a transaction, for writing with the write lock. If it locked later, SQLite might fail without
    waiting.
    """
    options = cast(dict[str, object], connection.get_execution_options())
    connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("podium_writes") else "BEGIN")
