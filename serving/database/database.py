"""The store as SQLAlchemy sees it: for administration, look-ups and migrations. What every paid call needs
goes through `writer.py`.
"""

import contextlib
import sqlite3
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, cast

import asyncpg
from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from conductor.errors import StoreUnavailable
from serving.database.address import Address, StoreError

BUSY_MS = 5_000
"""How long a SQLite writer waits for another process to commit."""
CONNECT_S = 10.0
POOL_SIZE = 4
"""PostgreSQL connections of one replica, beside its writer's one."""
WRITES = "podium_writes"
AWAY = (OSError, TimeoutError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.CannotConnectNowError,
        asyncpg.AdminShutdownError, asyncpg.CrashShutdownError, asyncpg.TooManyConnectionsError)  # fmt: skip
"""How a database says that it is away for now."""
REFUSED = {
    asyncpg.InvalidPasswordError: "refuses the password",
    asyncpg.InvalidAuthorizationSpecificationError: "refuses the user",
    asyncpg.InvalidCatalogNameError: "does not exist; make it with `createdb`",
    asyncpg.InsufficientPrivilegeError: "lets this user make no tables; grant it CREATE on the schema",
}
"""What only the operator can put right."""


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
                await connection.execution_options(**{WRITES: True})
                async with connection.begin():
                    yield connection


@contextlib.contextmanager
def mapped_errors(address: Address) -> Iterator[None]:
    """Errors of drivers as ours; they name no password. A broken constraint is the caller's, and passes.

    Raises:
        StoreUnavailable: the database is away.
        StoreError: it refuses us, and will until the operator changes something.
    """
    try:
        yield
    except DBAPIError as exc:
        _raise_mapped(address, driver_error(exc))
        raise
    except (*AWAY, *REFUSED, sqlite3.OperationalError) as exc:
        _raise_mapped(address, exc)
        raise


def driver_error(exc: DBAPIError) -> BaseException:
    """The driver's own error, under the two that SQLAlchemy wraps around it."""
    found: BaseException | None = exc.orig
    while found is not None and found.__cause__ is not None:
        found = found.__cause__
    return found or exc


def _raise_mapped(address: Address, error: BaseException) -> None:
    for kind, why in REFUSED.items():
        if isinstance(error, kind):
            raise StoreError(f"The store {address.name} {why}.") from None
    # asyncpg says InterfaceError of a connection that is closed, and of arguments that do not fit
    if isinstance(error, AWAY) or (isinstance(error, sqlite3.OperationalError) and _is_away(error)):
        raise StoreUnavailable(
            "The store of keys and budgets cannot be reached. Nothing was called; try again.",
            detail=f"{address.name}: {type(error).__name__}: {error}",
        ) from None


def _is_away(error: sqlite3.OperationalError) -> bool:
    """Whether a SQLite file is locked, full, or cannot be opened or written; else a statement is wrong."""
    code: int = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
    )


def make_engine(address: Address) -> AsyncEngine:
    """An engine for `address`. The address's password is in no URL of it."""
    if address.kind == "postgresql":

        async def connect() -> Any:
            return await asyncpg.connect(address.dsn, timeout=CONNECT_S)  # pyright: ignore[reportUnknownMemberType]

        return create_async_engine(
            "postgresql+asyncpg://",
            async_creator=connect,
            pool_size=POOL_SIZE,
            max_overflow=0,
            pool_timeout=CONNECT_S,
            pool_pre_ping=True,
        )
    engine = create_async_engine(f"sqlite+aiosqlite:///{address.path}")
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
    for pragma in (f"busy_timeout={BUSY_MS}", "foreign_keys=ON", "synchronous=FULL"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """One that is going to write takes the lock at once: to upgrade later fails without waiting where
    another process has written in between.
    """
    options = cast(dict[str, object], connection.get_execution_options())
    connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get(WRITES) else "BEGIN")
