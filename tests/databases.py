"""Real databases for tests: one PostgreSQL for the session, a database of its own for each test; a SQLite
file. The schema is made once and copied: its migrations take a sixth of a second.
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
    """One with a folder of its own, gone afterwards. It survives no power cut, and is faster for it."""
    with running_durable_postgres(is_durable=False) as postgres:
        yield postgres


def make_address(folder: Path, postgres: Postgres | None) -> Address:
    """An empty database: in `postgres`, else a SQLite file in `folder`."""
    return postgres.make_database() if postgres else sqlite_address(folder / "data" / "podium.db")


def make_store(folder: Path, postgres: Postgres | None) -> Address:
    """Likewise, with the schema in it."""
    if postgres:
        return postgres.make_database(template=_template_database(postgres))
    return make_file(folder / "data" / "podium.db")


def make_file(path: Path) -> Address:
    """A SQLite file with the schema in it. One that is there already is left as it is."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        shutil.copy(_template_file(), path)  # with its mode
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
    with ThreadPoolExecutor(1) as aside:  # whoever asks may be in a loop
        aside.submit(asyncio.run, migrate(address)).result()
