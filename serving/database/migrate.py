"""Creation, migration and check of the database schema.

If several replicas start at the same time on an empty database, only one of them creates the schema. A
database with a different schema version is rejected. The error names the command that migrates it.
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
"""Alembic's table of the version, not by its default name, which another program may use."""
ONLY_ADDS = "only_adds"
"""Name in a migration that only adds tables, indexes and optional columns. Routers of the older version may keep
running."""
LOCK = 0x706F6469756D
"""Key of the PostgreSQL advisory lock for migrations (`podium` in ASCII)."""


async def open_database(address: Address) -> Database:
    """Open the database at `address`, with a new schema if it is empty. Raise StoreError for a different
    version.
    """
    if await see_version(address) is None:  # otherwise a start would need the write lock of a busy database
        await migrate(address, only_empty=True)
    return Database(address)


async def migrate(
    address: Address, *, only_empty: bool = False, online: bool = False, to: str | None = None
) -> str:
    """Migrate the database to the schema of this Podium, or to the earlier version `to`. Return the version.

    One of several processes does the work, and the others wait. If it is killed, the schema stays unchanged.
    With `only_empty`, an older schema is rejected. With `online`, a schema is rejected that needs the servers of
    the older version to stop. A newer one always is: StoreError.
    """
    async with _alone(address), Database(address) as database, database.writing() as connection:
        if address.kind == "postgresql":
            await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        return await connection.run_sync(_upgrade, address, only_empty, online, to)


async def check_version(address: Address) -> str:
    """Return the schema's version. Raise StoreError if it is another than needed, or missing."""
    if not address.may_hold_something:
        raise StoreError(f"There is no store at {address.name} yet. Create it with `podium store migrate`.")
    version = await see_version(address)
    if version is None:
        raise StoreError(f"The store {address.name} is empty. Create its tables with `podium store migrate`.")
    return version


async def see_version(address: Address) -> str | None:
    """Return the schema's version, or None if there is none. Raise StoreError for another version."""
    if not address.may_hold_something:
        return None
    async with Database(address) as database, database.reading() as connection:
        version = await connection.run_sync(find_version)
    if version is not None:
        _compare(address, version)
    return version


@cache
def newest_version() -> str:
    version = _scripts().get_current_head()
    assert version is not None, "there are migrations"
    return version


def only_adds(version: str, to: str) -> bool:
    """Return whether servers that need the schema `version` may keep running while it becomes `to`."""
    newer = _scripts().iterate_revisions(to, version)
    return all(getattr(script.module, ONLY_ADDS) for script in newer)


def find_version(connection: Connection) -> str | None:
    """Return the version of the schema in the database, or None if there is no schema."""
    return MigrationContext.configure(
        connection, opts={"version_table": VERSION_TABLE}
    ).get_current_revision()


def _upgrade(connection: Connection, address: Address, only_empty: bool, online: bool, to: str | None) -> str:
    version = find_version(connection)
    if version is None:
        _check_foreign_tables(connection, address)
    elif (
        only_empty
        or version not in _known_versions()
        or (online and not only_adds(version, to or newest_version()))
    ):
        _compare(address, version)
        return version
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, to or "head")
    return to or newest_version()


def _compare(address: Address, version: str) -> None:
    """Check that the version of a schema is the needed one, or raise StoreError."""
    if version == newest_version():
        return
    if version in _known_versions():
        stop = (
            "and run `podium store migrate`. The servers that use it may keep running."
            if only_adds(version, newest_version())
            else "stop the servers that use it, and run `podium store migrate`."
        )
        raise StoreError(
            f"The store {address.name} has the schema {version}, but this version of Podium needs {newest_version()}. "
            f"Back the store up, {stop}"
        )
    raise StoreError(
        f"The store {address.name} has the schema {version}, which a newer version of Podium wrote. "
        "Start that version of Podium, or restore an older backup."
    )


def _check_foreign_tables(connection: Connection, address: Address) -> None:
    """Check that no table of another program has the name of one of Podium's, or raise StoreError."""
    if foreign := sorted(metadata.tables.keys() & set(inspect(connection).get_table_names())):
        raise StoreError(
            f"The database {address.name} has a table {foreign[0]!r} that Podium did not create. Use a separate database."
        )


def _known_versions() -> set[str]:
    return {script.revision for script in _scripts().walk_revisions()}


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(FOLDER))


@asynccontextmanager
async def _alone(address: Address) -> AsyncGenerator[None]:
    """Hold the migration lock of a SQLite file. PostgreSQL locks inside the transaction. The lock file is
    never removed: two processes could lock different files.
    """
    if address.kind == "postgresql":
        yield
        return
    await asyncio.to_thread(make_folder, address.path)
    path = address.path.with_name(f"{address.path.name}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        await asyncio.to_thread(fcntl.flock, descriptor, fcntl.LOCK_EX)
        with mapped_errors(address):  # for example, the disk is full
            await asyncio.to_thread(make_file, address.path)
        yield
    finally:
        os.close(descriptor)
