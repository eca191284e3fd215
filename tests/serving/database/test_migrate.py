"""Migration: the schema is created once, and only the version that this Podium knows is used."""

import asyncio
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, insert, inspect, select, text
from sqlalchemy.exc import DatabaseError

from conductor.errors import StoreUnavailable
from serving.database.address import Address, StoreError, parse_address, sqlite_address
from serving.database.database import Database
from serving.database.migrate import (
    ONLY_ADDS,
    VERSION_TABLE,
    _scripts,
    check_version,
    migrate,
    newest_version,
    open_database,
    see_version,
)
from serving.database.schema import ledger, metadata, team
from tests.databases import Postgres

pytestmark = pytest.mark.postgresql

MIGRATE = """
import asyncio, sys
from serving.database.address import parse_address
from serving.database.migrate import migrate
{before}
print(asyncio.run(migrate(parse_address(sys.stdin.readline().strip()), only_empty=True)))
"""
KILLED = """
import os, signal
from alembic.runtime.migration import MigrationContext
run = MigrationContext.run_migrations
def killed(*arguments, **options):
    run(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)
MigrationContext.run_migrations = killed
"""


def start(address: Address, before: str = "") -> subprocess.Popen[str]:
    code = MIGRATE.format(before=before)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", code], text=True, **pipes)
    assert process.stdin
    process.stdin.write((address.dsn or f"sqlite:///{address.path}") + "\n")
    process.stdin.flush()
    return process


async def test_an_empty_database_gets_the_schema_of_the_code(empty_address: Address) -> None:
    def differences(connection: Connection) -> list[object]:
        # SQLite has no identity columns, so a comparison would report a difference.
        with_defaults = connection.dialect.name != "sqlite"
        options = {"version_table": VERSION_TABLE, "compare_server_default": with_defaults}
        context = MigrationContext.configure(connection, opts=options)
        return compare_metadata(context, metadata)

    def constraints(connection: Connection) -> set[str]:
        inspector = inspect(connection)
        return {
            str(each["name"]) for table in metadata.tables for each in inspector.get_check_constraints(table)
        }

    async with await open_database(empty_address) as database, database.reading() as connection:
        assert await connection.run_sync(differences) == []
        expected = {
            str(c.name)
            for t in metadata.tables.values()
            for c in t.constraints
            if "CHECK" in type(c).__name__.upper()
        }
        assert await connection.run_sync(constraints) == expected
    assert await check_version(empty_address) == newest_version()


async def test_ledger_rows_cannot_be_changed(empty_address: Address) -> None:
    async with await open_database(empty_address) as database:
        row = {
            "kind": "adjust",
            "key_id": "k",
            "day": 1,
            "month": 1,
            "amount": 5,
            "exact": 1,
            "above_hold": 0,
            "at_us": 1,
        }
        async with database.writing() as connection:
            await connection.execute(insert(ledger).values(row))
        for statement in ("UPDATE ledger SET amount = 0", "DELETE FROM ledger"):
            with pytest.raises(DatabaseError, match="rows of the ledger stay"):
                async with database.writing() as connection:
                    await connection.execute(text(statement))
        async with database.reading() as connection:
            assert (await connection.execute(select(ledger.c.amount))).scalars().all() == [5]


def test_processes_that_start_together_create_the_schema_once(empty_address: Address) -> None:
    processes = [start(empty_address) for _ in range(3)]
    ended = [process.communicate(timeout=60) for process in processes]
    assert [out for out, _ in ended] == [f"{newest_version()}\n"] * 3, ended


def test_a_killed_migration_leaves_no_tables_and_can_be_repeated(empty_address: Address) -> None:
    killed = start(empty_address, KILLED)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert asyncio.run(_tables(empty_address)) == []
    assert asyncio.run(migrate(empty_address)) == newest_version()


async def _tables(address: Address) -> list[str]:
    async with Database(address) as database, database.reading() as connection:
        return await connection.run_sync(lambda sync: inspect(sync).get_table_names())


async def test_another_schema_version_is_rejected_with_the_remedy(
    empty_address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await open_database(empty_address) as database:
        async with database.writing() as connection:
            await connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
        for refused in (open_database, migrate, check_version, see_version):
            with pytest.raises(StoreError, match="a newer version of Podium wrote"):
                await refused(empty_address)
        async with database.writing() as connection:
            await connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0001'"))
    monkeypatch.setattr("serving.database.migrate.newest_version", lambda: "0002")
    for refused in (open_database, check_version, see_version):
        with pytest.raises(StoreError, match="may keep running"):
            await refused(empty_address)


async def test_an_incompatible_migration_is_rejected_online(empty_address: Address) -> None:
    await migrate(empty_address, to="0012")
    for refused in (check_version, lambda address: migrate(address, online=True)):
        with pytest.raises(StoreError, match="stop the servers"):
            await refused(empty_address)
    assert await migrate(empty_address, online=True, to="0013") == "0013"
    assert await migrate(empty_address) == newest_version()


async def test_additive_migrations_do_not_affect_older_servers(empty_address: Address) -> None:
    def columns(connection: Connection) -> dict[tuple[str, str], str]:
        inspector = inspect(connection)
        return {
            (table, str(column["name"])): f"{column['type']} {column['nullable']} {column['default']}"
            for table in inspector.get_table_names()
            for column in inspector.get_columns(table)
        }

    before: dict[tuple[str, str], str] = {}
    for script in reversed([*_scripts().walk_revisions()]):
        await migrate(empty_address, to=script.revision)
        async with Database(empty_address) as database, database.reading() as connection:
            now = await connection.run_sync(columns)
        if not getattr(script.module, ONLY_ADDS):  # each migration declares it
            before = now
            continue
        assert before.items() <= now.items(), f"{script.revision} changes a column"
        tables = {table for table, _ in before}
        added = {place: how for place, how in now.items() if place not in before and place[0] in tables}
        needed = [place for place, how in added.items() if how.split()[-2:] == ["False", "None"]]
        assert needed == [], f"{script.revision} adds columns that older servers do not fill"
        before = now
    assert before


async def test_tables_of_another_program_are_not_changed(empty_address: Address) -> None:
    if empty_address.kind == "sqlite":
        empty_address.path.parent.mkdir()
    async with Database(empty_address) as database, database.writing() as connection:
        await connection.execute(text("CREATE TABLE team (id INTEGER)"))
    with pytest.raises(StoreError, match="table 'team' that Podium did not create"):
        await open_database(empty_address)
    assert await _tables(empty_address) == ["team"]


async def test_writers_wait_for_each_other_and_a_broken_constraint_is_not_an_outage(
    empty_address: Address,
) -> None:
    async with await open_database(empty_address) as database:

        async def add(name: str) -> None:
            async with database.writing() as connection:
                teams = (await connection.execute(select(team))).all()
                await connection.execute(insert(team).values(id=f"{name}{len(teams)}", name=name, made_us=1))

        await asyncio.gather(*(add(name) for name in "abcd"))
        with pytest.raises(DatabaseError):
            await add("a")


async def test_the_database_file_is_private_to_its_owner(tmp_path: Path) -> None:
    address = sqlite_address(tmp_path / "data" / "podium.db")
    with pytest.raises(StoreError, match="Create it with `podium store migrate`"):
        await check_version(address)
    assert not address.path.parent.exists()
    async with await open_database(address) as database, database.writing() as connection:
        await connection.execute(insert(team).values(id="a", name="a", made_us=1))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in address.path.parent.iterdir()}
    assert set(modes.values()) == {0o600}, modes
    assert stat.S_IMODE(address.path.parent.stat().st_mode) == 0o700


async def test_a_file_that_is_not_a_database_is_named_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "podium.db"
    path.write_text("not a database, whatever it is called")
    for refused in (open_database, migrate, check_version, see_version):
        with pytest.raises(StoreError, match=r"podium\.db is not a SQLite database, or is damaged"):
            await refused(sqlite_address(path))


async def test_an_unwritable_database_file_is_reported() -> None:
    with pytest.raises(StoreError, match=r"cannot be written: .*store\.path"):
        await open_database(sqlite_address(Path(__file__) / "podium.db"))


async def test_an_unavailable_or_missing_database_is_reported_without_its_password(
    postgres: Postgres,
) -> None:
    away = parse_address("postgresql://podium:hunter2@127.0.0.1:1/x")
    with pytest.raises(StoreUnavailable) as unavailable:
        await open_database(away)
    assert "127.0.0.1:1/x" in unavailable.value.detail
    assert "127.0.0.1" not in unavailable.value.message
    place = f"postgresql://podium:hunter2@127.0.0.1:{postgres.port}"
    for address, why in (
        (f"{place}/absent", "does not exist; create it with `createdb`"),
        (f"{place}/postgres?sslmode=hunter2", "has an invalid option in its address"),
        (f"{place.replace('podium', 'nobody')}/postgres", "rejects the user"),
    ):
        with pytest.raises(StoreError, match=why) as refused:
            await open_database(parse_address(address))
        assert "hunter2" not in repr(refused.value) + refused.value.detail
    assert "hunter2" not in repr(unavailable.value) + unavailable.value.detail
