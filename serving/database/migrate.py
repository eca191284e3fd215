"""The schema's versions. Replicas that start together on an empty database make it once; one of another
version is refused with the command that helps.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from serving.database.address import Address, StoreError
from serving.database.database import Database, make_file, make_folder
from serving.database.outages import mapped_errors
from serving.database.schema import metadata

FOLDER = Path(__file__).parent / "migrations"
VERSION_TABLE = "podium_schema"
"""Where Alembic keeps the version: not under its usual name, which a neighbour in the same database may
use.
"""
LOCK = 0x706F6469756D
"""Of PostgreSQL's advisory locks, the one that a migration holds (`podium` in ASCII)."""


async def open_database(address: Address) -> Database:
    """The database at `address`, its schema made where there was nothing.

    Raises:
        StoreError: it cannot be used, or has the schema of another version.
        StoreUnavailable: it is away.
    """
    await migrate(address, only_empty=True)
    return Database(address)


async def migrate(address: Address, *, only_empty: bool = False, to: str | None = None) -> str:
    """Bring the database at `address` to this version's schema; gives its version.

    Of several processes that do so at once, one does and the others wait. One that is killed leaves the
    schema as it was.

    Args:
        address: of the database.
        only_empty: make the schema where there is none; refuse an older one.
        to: an earlier version to stop at.

    Raises:
        StoreError: it cannot be used, has a newer schema, or an older one that must be migrated by command.
        StoreUnavailable: it is away.
    """
    async with _alone(address), Database(address) as database, database.writing() as connection:
        if address.kind == "postgresql":
            await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        return await connection.run_sync(_upgrade, address, only_empty, to)


async def check_version(address: Address) -> str:
    """The version of the schema at `address`, which is this one's. Nothing is changed.

    Raises:
        StoreError: it is another, or there is no schema.
        StoreUnavailable: the database is away.
    """
    if not address.may_hold_something:
        raise StoreError(f"There is no store at {address.name} yet. `podium store migrate` makes it.")
    found = await see_version(address)
    if found is None:
        raise StoreError(f"The store {address.name} is empty. `podium store migrate` makes its tables.")
    return found


async def see_version(address: Address) -> str | None:
    """The version of the schema at `address`; None where there is none yet. Nothing is changed.

    Raises:
        StoreError: it is not this Podium's.
        StoreUnavailable: the database is away.
    """
    if not address.may_hold_something:
        return None
    async with Database(address) as database, database.reading() as connection:
        found = await connection.run_sync(find_version)
    if found is not None:
        _compare(address, found)
    return found


@cache
def newest_version() -> str:
    """The version that this Podium needs."""
    version = _scripts().get_current_head()
    assert version is not None, "there are migrations"
    return version


def find_version(connection: Connection) -> str | None:
    """The version of the schema that `connection` sees; None where there is none."""
    return MigrationContext.configure(
        connection, opts={"version_table": VERSION_TABLE}
    ).get_current_revision()


def _upgrade(connection: Connection, address: Address, only_empty: bool, to: str | None) -> str:
    found = find_version(connection)
    if found is None:
        _see_no_strangers(connection, address)
    elif only_empty or found not in _known_versions():
        _compare(address, found)
        return found
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, to or "head")
    return to or newest_version()


def _compare(address: Address, found: str) -> None:
    """See that the schema is this version's.

    Raises:
        StoreError: it is not.
    """
    if found == newest_version():
        return
    if found in _known_versions():
        raise StoreError(
            f"The store {address.name} has the schema {found} of an older Podium; this one needs {newest_version()}. "
            "Back it up, stop the servers that use it, and run `podium store migrate`."
        )
    raise StoreError(
        f"The store {address.name} has the schema {found}, which this Podium does not know: a newer one wrote it. "
        "Start that version of Podium, or restore a backup of before."
    )


def _see_no_strangers(connection: Connection, address: Address) -> None:
    """See that no table of another program is in the way."""
    if taken := sorted(metadata.tables.keys() & set(inspect(connection).get_table_names())):
        raise StoreError(
            f"The database {address.name} has a table {taken[0]!r} that is not Podium's. Name a database of its own."
        )


def _known_versions() -> set[str]:
    return {script.revision for script in _scripts().walk_revisions()}


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(FOLDER))


@asynccontextmanager
async def _alone(address: Address) -> AsyncGenerator[None]:
    """Hold the lock of a SQLite file's migrations; PostgreSQL's is taken inside the transaction.

    The lock's file stays: were it removed, two processes could each hold a lock on one of that name.
    """
    if address.kind == "postgresql":
        yield
        return
    await asyncio.to_thread(make_folder, address.path)
    path = address.path.with_name(f"{address.path.name}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        await asyncio.to_thread(fcntl.flock, descriptor, fcntl.LOCK_EX)
        with mapped_errors(address):  # such as a disk that is full
            await asyncio.to_thread(make_file, address.path)
        yield
    finally:
        os.close(descriptor)
