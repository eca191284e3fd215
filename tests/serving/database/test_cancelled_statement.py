"""Statements of a cancelled caller. Their thread ends before the event loop closes, and no lock remains."""

import asyncio
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import aiosqlite
import pytest

from serving.database.address import sqlite_address
from serving.database.database import Database
from tests.databases import make_file


@pytest.mark.parametrize("cancelled_after_s", [0, 0.01])
def test_a_loop_closes_only_after_a_cancelled_statements_thread(tmp_path: Path, cancelled_after_s: float):
    from tests.virtual_time import CarefulLoop

    async def cancel_a_slow_statement() -> None:
        connection = await aiosqlite.connect(tmp_path / "store.db")
        await connection.create_function("pause", 0, lambda: time.sleep(0.2))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.execute("SELECT pause()"), cancelled_after_s)
        connection.stop()

    before = set(threading.enumerate())  # another test's server may have connections open
    with asyncio.Runner(loop_factory=CarefulLoop) as runner:
        runner.run(cancel_a_slow_statement())
    until_s = time.monotonic() + 10
    while set(threading.enumerate()) - before:
        assert time.monotonic() < until_s
        time.sleep(0.01)


async def test_a_connection_closed_during_a_query_leaves_no_write_lock(tmp_path: Path):
    make_file(tmp_path / "store.db")
    async with (
        Database(sqlite_address(tmp_path / "store.db")) as database,
        database.engine.connect() as connection,
    ):
        driver: aiosqlite.Connection = (await connection.get_raw_connection()).driver_connection
        await driver.execute("BEGIN IMMEDIATE")
        under_way = await driver.execute("SELECT 1 UNION ALL SELECT 2")
        await driver.close()
        with closing(sqlite3.connect(tmp_path / "store.db", timeout=0)) as other:
            other.execute("BEGIN IMMEDIATE")
        await connection.invalidate()
    assert under_way is not None, "its statement lives as long as it"
