"""Real databases for tests: one PostgreSQL for the session, a database of its own for each test; a SQLite
file.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prove.databases import Postgres
from prove.databases import running_postgres as running_durable_postgres
from serving.database.address import Address, sqlite_address


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """One with a folder of its own, gone afterwards. It survives no power cut, and is faster for it."""
    with running_durable_postgres(is_durable=False) as postgres:
        yield postgres


def make_address(folder: Path, postgres: Postgres | None) -> Address:
    """An empty database: in `postgres`, else a SQLite file in `folder`."""
    return postgres.make_database() if postgres else sqlite_address(folder / "data" / "podium.db")
