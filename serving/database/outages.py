"""How databases say that they are away, or refuse us: drivers' errors as ours, without a password.

A broken constraint and a wrong statement are neither, and pass as they are.
"""
# asyncpg has no types of its own.
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
    asyncpg.ClientConfigurationError: "has an option in its address that cannot be used",
    asyncpg.InvalidPasswordError: "refuses the password",
    asyncpg.InvalidAuthorizationSpecificationError: "refuses the user",
    asyncpg.InvalidCatalogNameError: "does not exist; make it with `createdb`",
    asyncpg.InsufficientPrivilegeError: "lets this user make no tables; grant it CREATE on the schema",
}
"""What only the operator can put right."""
AWAY: tuple[type[Exception], ...] = (
    OSError,  # the network's, and those of name look-ups
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # it stops, starts, or ends what takes too long
    asyncpg.InsufficientResourcesError,  # no disk, memory or connection left
    asyncpg.PostgresSystemError,
    asyncpg.ReadOnlySQLTransactionError,  # a standby: after a fail-over the address leads to the new primary
    asyncpg.InterfaceError,  # the connection is closed
)
NO_DATABASE = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
"""A SQLite file that is something else, or damaged."""
SQLITE_AWAY = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
)


def is_away(error: BaseException) -> bool:
    """Whether the database is away, full or locked for now; not what is wrong with a statement."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in SQLITE_AWAY
    return isinstance(error, AWAY) and not isinstance(error, (asyncpg.DataError, *REFUSED))


def unavailable(address: Address, error: BaseException) -> StoreUnavailable:
    """What a caller is told of `error`."""
    return StoreUnavailable(
        "The store of keys and budgets cannot be reached. Nothing was called; try again.",
        detail=f"{address.name}: {type(error).__name__}: {error}",
    )


@contextlib.contextmanager
def mapped_errors(address: Address) -> Generator[None]:
    """Errors of drivers, in the block, as ours.

    Raises:
        StoreUnavailable: the database is away, or too busy.
        StoreError: it refuses us, and will until the operator changes something.
    """
    try:
        yield
    except NoConnectionLeft as exc:  # all of this process are in use, and have been for long
        raise unavailable(address, exc) from None
    except (DBAPIError, sqlite3.Error, *REFUSED, *AWAY) as exc:
        error = driver_error(exc) if isinstance(exc, DBAPIError) else exc
        for kind, why in REFUSED.items():
            if isinstance(error, kind):
                raise StoreError(f"The store {address.name} {why}.") from None
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in NO_DATABASE:
            raise StoreError(
                f"The store {address.name} is no SQLite database, or is damaged. Restore a backup, or name another file."
            ) from None
        if is_away(error):
            raise unavailable(address, error) from None
        raise


def driver_error(exc: DBAPIError) -> BaseException:
    """The driver's own error, under what SQLAlchemy wraps around it."""
    found: BaseException = exc.orig or exc
    while found.__cause__ is not None:
        found = found.__cause__
    return found
