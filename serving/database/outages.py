"""Conversion of the database drivers' errors to Podium's errors. The messages contain no password.

Errors in statements and violated constraints are not converted.
"""
# asyncpg has no type annotations.
# pyright: reportMissingTypeStubs=false

import contextlib
import sqlite3
from collections.abc import Generator, Mapping

import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft

from conductor.errors import StoreUnavailable
from serving.database.address import Address, StoreError

REFUSED: Mapping[type[Exception], str] = {
    asyncpg.ClientConfigurationError: "has an invalid option in its address",
    asyncpg.InvalidPasswordError: "rejects the password",
    asyncpg.InvalidAuthorizationSpecificationError: "rejects the user",
    asyncpg.InvalidCatalogNameError: "does not exist; create it with `createdb`",
    asyncpg.InsufficientPrivilegeError: "does not allow this user to create tables; grant the user CREATE on the schema",
}
"""Errors that only the operator can fix, each with the predicate of its message."""
AWAY: tuple[type[Exception], ...] = (
    OSError,  # network and name resolution
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # shutdown, startup, or a cancelled statement
    asyncpg.InsufficientResourcesError,  # out of disk, memory or connections
    asyncpg.PostgresSystemError,
    asyncpg.ReadOnlySQLTransactionError,  # a standby: after a failover, the address leads to the new primary
    asyncpg.InterfaceError,  # the connection is closed
)
NO_DATABASE = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
"""Error codes for a SQLite file that is damaged or not a database."""
SQLITE_AWAY = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
)


def is_away(error: BaseException) -> bool:
    """Return whether the database is unreachable, full or locked, which errors in a statement do not mean."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in SQLITE_AWAY
    return isinstance(error, AWAY) and not isinstance(error, (asyncpg.DataError, *REFUSED))


def unavailable(address: Address, error: BaseException) -> StoreUnavailable:
    """Return the error for clients. Its `detail`, which is for operators, contains the driver's error."""
    return StoreUnavailable(
        "The store of keys and budgets cannot be reached. Nothing was run. Try again.",
        detail=f"{address.name}: {type(error).__name__}: {error}",
    )


def connections_in_use(address: Address) -> StoreUnavailable:
    """Return the error if all connections of this process were in use for too long."""
    return StoreUnavailable(
        "All connections to the store are in use. Nothing was run. Try again.",
        detail=f"{address.name}: no free connection",
    )


@contextlib.contextmanager
def mapped_errors(address: Address) -> Generator[None]:
    """Convert the drivers' errors: StoreUnavailable if away or too busy, StoreError if the operator must act."""
    try:
        yield
    except NoConnectionLeft:
        raise connections_in_use(address) from None
    except (DBAPIError, sqlite3.Error, *REFUSED, *AWAY) as exc:
        error = driver_error(exc) if isinstance(exc, DBAPIError) else exc
        for kind, why in REFUSED.items():
            if isinstance(error, kind):
                raise StoreError(f"The store {address.name} {why}.") from None
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in NO_DATABASE:
            raise StoreError(
                f"The store {address.name} is not a SQLite database, or is damaged. Restore a backup or choose another file."
            ) from None
        if is_away(error):
            raise unavailable(address, error) from None
        raise


@contextlib.contextmanager
def driver_errors() -> Generator[None]:
    """Replace SQLAlchemy's errors that are raised in the block by the drivers' own errors."""
    try:
        yield
    except DBAPIError as exc:
        raise driver_error(exc) from None


def driver_error(exc: DBAPIError) -> BaseException:
    """Return the driver's own error that an error of SQLAlchemy wraps."""
    error: BaseException = exc.orig or exc
    while error.__cause__ is not None:
        error = error.__cause__
    return error
