"""The database writer: group commits, isolated faults, and recovery after an outage."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from conductor.errors import StoreUnavailable
from serving.database.address import Address
from serving.database.database import Database
from serving.database.inserts import RowInsert
from serving.database.migrate import open_database
from serving.database.schema import team
from serving.database.writer import Operation, Writer
from tests.databases import Postgres, running_postgres
from tests.virtual_time import keeps_real_time

pytestmark = pytest.mark.postgresql

batches: list[int] = []
INSERT = RowInsert(team, ["id", "name", "made_us"])


def insert(connection: Connection, names: Sequence[str]) -> list[str]:
    batches.append(len(names))
    if any("\0" in name for name in names):
        raise ValueError("no text")
    INSERT.execute(connection, [(name, name, 1) for name in names])
    return list(names)


ADD: Operation[str, str] = Operation("team", insert)
ADD_LATER: Operation[str, str] = Operation("team", insert, is_kept=True)
ADD_PATIENTLY: Operation[str, str] = Operation("team", insert, is_kept=True, patience_s=0.3)


@pytest.fixture
async def writer(store_address: Address) -> AsyncGenerator[Writer]:
    batches.clear()
    await (await open_database(store_address)).aclose()
    async with Writer(store_address) as opened:
        yield opened


async def names(address: Address) -> list[str]:
    async with Database(address) as database, database.reading() as connection:
        return list((await connection.execute(text("SELECT name FROM team ORDER BY name"))).scalars())


async def test_concurrent_writes_are_committed_together(writer: Writer) -> None:
    entries = [f"{number:03}" for number in range(300)]
    assert await asyncio.gather(*(writer.do(ADD, name) for name in entries)) == entries
    assert await names(writer.address) == entries
    assert batches == [256, 44]


async def test_deferred_writes_are_batched_after_urgent_ones(writer: Writer) -> None:
    patient = [writer.post(ADD_PATIENTLY, name) for name in "ab"]
    await writer.do(ADD, "c")
    await asyncio.gather(*patient)
    assert batches == [1, 2]


async def test_deferred_writes_are_written_when_hurried_or_closing(
    store_address: Address,
) -> None:
    batches.clear()
    await (await open_database(store_address)).aclose()
    async with Writer(store_address) as writer:
        assert not writer.hurry(), "nothing waits"
        writer.post(ADD_PATIENTLY, "a")
        assert writer.hurry()
        await writer.do(ADD, "b")
        assert await names(store_address) == ["a", "b"]
        writer.post(ADD_PATIENTLY, "c")
    assert await names(store_address) == ["a", "b", "c"]


async def test_a_faulty_item_does_not_fail_the_others(writer: Writer) -> None:
    results = await asyncio.gather(
        *(writer.do(ADD, name) for name in ("a", "b\0", "c")), return_exceptions=True
    )
    assert [isinstance(each, Exception) for each in results] == [False, True, False]
    assert not isinstance(results[1], StoreUnavailable)
    assert await names(writer.address) == ["a", "c"]
    assert not writer.is_away


async def test_a_write_cancelled_before_it_starts_writes_nothing(writer: Writer) -> None:
    given_up = writer.post(ADD, "a")
    given_up.cancel()
    await writer.do(ADD, "b")
    assert await names(writer.address) == ["b"]


async def test_queued_writes_are_written_before_the_writer_closes(store_address: Address) -> None:
    await (await open_database(store_address)).aclose()
    async with Writer(store_address) as writer:
        writer.post(ADD_LATER, "a")
    assert await names(store_address) == ["a"]


async def test_a_write_after_closing_fails_with_a_message(
    store_address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    async with Writer(store_address) as writer:
        pass
    for operation in (ADD, ADD_LATER):
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(writer.do(operation, "late"), 5)
    lines = [record.message for record in caplog.records if record.name == "podium"]
    assert [line.split(":")[0] for line in lines] == ["Store operation 'team' failed"]


async def test_a_restarted_server_is_reconnected_without_an_error(
    own_postgres: Postgres,
) -> None:
    address = await asyncio.to_thread(own_postgres.make_database)
    await (await open_database(address)).aclose()
    async with Writer(address) as writer:
        await writer.do(ADD, "before")
        await asyncio.to_thread(own_postgres.stop)
        await asyncio.to_thread(own_postgres.start)
        await writer.do(ADD, "after")
    assert await names(address) == ["after", "before"]


async def test_without_the_server_urgent_writes_fail_and_durable_ones_are_kept(
    own_postgres: Postgres,
) -> None:
    address = await asyncio.to_thread(own_postgres.make_database)
    await (await open_database(address)).aclose()
    async with Writer(address) as writer:
        await writer.do(ADD, "before")
        await asyncio.to_thread(own_postgres.stop)
        write = writer.post(ADD_LATER, "kept")
        with pytest.raises(StoreUnavailable) as caught:
            await writer.do(ADD, "lost")
        assert "127.0.0.1" in caught.value.detail
        assert writer.is_away
        await asyncio.to_thread(own_postgres.start)
        assert await write == "kept"
        assert not writer.is_away
    assert await names(address) == ["before", "kept"]


async def test_a_file_locked_for_too_long_counts_as_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.database.database.BUSY_MS", 50)
    monkeypatch.setattr("serving.database.database.PRAGMAS", ())
    address = Address("sqlite", str(tmp_path / "podium.db"))
    await (await open_database(address)).aclose()
    other = sqlite3.connect(address.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with Writer(address) as writer:
        write = writer.post(ADD_LATER, "kept")
        with pytest.raises(StoreUnavailable):
            await writer.do(ADD, "lost")
        other.close()
        assert await write == "kept"
    assert await names(address) == ["kept"]


@pytest.fixture
@keeps_real_time
async def own_postgres() -> AsyncGenerator[Postgres]:
    """Run a PostgreSQL that the test may stop."""
    context = running_postgres()
    running = await asyncio.to_thread(context.__enter__)
    yield running
    await asyncio.to_thread(context.__exit__, None, None, None)


async def test_the_error_says_if_all_connections_are_in_use(
    store_address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.database.database.CONNECT_S", 0.5)
    async with await open_database(store_address) as database, AsyncExitStack() as connections:

        async def take_all() -> None:
            for _ in range(20):
                await connections.enter_async_context(database.reading())

        with pytest.raises(StoreUnavailable, match="All connections to the store are in use"):
            await take_all()
