"""Databases for tests: one PostgreSQL for the session with a new database per test, or a SQLite file. Its migrations
take a sixth of a second, so the schema is created once and copied.
"""

import asyncio
import atexit
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from loadtest.rig.databases import Postgres
from loadtest.rig.databases import running_postgres as running_durable_postgres
from serving.database.address import Address, sqlite_address
from serving.database.migrate import migrate


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Run PostgreSQL in a temporary folder. Writes are faster because it would not survive a power cut."""
    with running_durable_postgres(is_durable=False) as postgres:
        yield postgres


def make_address(folder: Path, postgres: Postgres | None) -> Address:
    """Return an empty database in `postgres`, or else a SQLite file in `folder`."""
    return postgres.make_database() if postgres else sqlite_address(folder / "data" / "podium.db")


def make_store(folder: Path, postgres: Postgres | None) -> Address:
    """Return a database with the schema, in `postgres` or else in `folder`."""
    if postgres:
        return postgres.make_database(template=_template_database(postgres))
    return make_file(folder / "data" / "podium.db")


def make_file(path: Path) -> Address:
    """Return a SQLite file with the schema. An existing file is not changed."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        shutil.copy(_template_file(), path)  # keeps its mode
    return sqlite_address(path)


@cache
def _template_database(postgres: Postgres) -> str:
    address = postgres.make_database()
    _migrate(address)
    return address.dsn.rpartition("/")[2]


@cache
def _template_file() -> Path:
    folder = tempfile.mkdtemp(prefix="podium-schema-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    address = sqlite_address(Path(folder) / "podium.db")
    _migrate(address)
    return address.path


def _migrate(address: Address) -> None:
    with ThreadPoolExecutor(1) as aside:  # the caller may be inside an event loop
        aside.submit(asyncio.run, migrate(address)).result()
