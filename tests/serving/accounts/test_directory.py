"""Teams and keys in real stores, SQLite and PostgreSQL."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import select

from conductor.errors import BadTask, UnknownName
from serving.accounts.caller import Scope
from serving.accounts.directory import Directory
from serving.accounts.keys import ApiKey
from serving.database.address import Address, sqlite_address
from serving.database.migrate import open_database
from serving.database.schema import api_key
from tests.serving.accounts.clock import Clock


@asynccontextmanager
async def open_directory(
    address: Address, now_s: Callable[[], float] = time.time
) -> AsyncGenerator[Directory]:
    directory = Directory(address, now_s)
    try:
        yield directory
    finally:
        await directory.aclose()


async def test_a_key_is_found_by_its_hash_with_its_team_and_scopes(store_address: Address) -> None:
    async with open_directory(store_address) as directory:
        team = await directory.create_team("search")
        key, info = await directory.create_key("app", "search", {Scope.RUN})
        assert await directory.find(key.hash) == info
        assert (info.team, info.scopes, info.hint) == (team, {Scope.RUN}, key.reveal()[-4:])
        assert info.caller.account.team_id == team.id
        assert await directory.find(ApiKey.make().hash) is None


async def test_the_store_contains_no_part_of_a_keys_secret(
    store_address: Address,
) -> None:
    async with open_directory(store_address) as directory:
        key, _ = await directory.create_key("app")
        await directory.rotate("app", overlap_s=60)
    async with await open_database(store_address) as database, database.reading() as connection:
        row = str((await connection.execute(select(api_key))).one())
    assert key.reveal() not in row
    assert key.reveal()[3:-6] not in row


async def test_only_the_first_key_creates_the_file(tmp_path: Path) -> None:
    path = tmp_path / "data" / "podium.db"
    async with open_directory(sqlite_address(path)) as directory:
        assert not await directory.has_keys()
        assert await directory.find(ApiKey.make().hash) is None
        assert await directory.keys() == [] == await directory.teams()
        with pytest.raises(UnknownName):
            await directory.revoke("nobody")
        assert not path.parent.exists()
        await directory.create_key("app")
        assert await directory.has_keys()
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


async def test_another_process_sees_created_and_revoked_keys(store_address: Address) -> None:
    async with open_directory(store_address) as server, open_directory(store_address) as operator:
        assert not await server.has_keys()
        key, info = await operator.create_key("app")
        assert await server.has_keys()
        assert await server.find(key.hash) == info
        await operator.revoke(info.id)
        current = await server.find(key.hash)
        assert current is not None
        assert current.state(0) == "revoked"
        assert await server.has_keys(), "a server that had a key never asks for none again"


async def test_a_rotated_key_changes_only_its_secret_and_the_old_one_expires(
    store_address: Address,
) -> None:
    clock = Clock()
    async with open_directory(store_address, clock) as directory:
        await directory.create_team("search")
        first, info = await directory.create_key("app", "search")
        second, rotated = await directory.rotate(info.id, overlap_s=60)
        assert (rotated.id, rotated.team, rotated.scopes) == (info.id, info.team, info.scopes)
        assert await directory.find(first.hash) == await directory.find(second.hash) == rotated
        clock.now_s += 61
        assert await directory.find(first.hash) is None
        third, _ = await directory.rotate(info.id)
        assert await directory.find(second.hash) is None
        assert await directory.find(third.hash) is not None


async def test_both_secrets_of_a_revoked_rotated_key_are_invalid(
    store_address: Address,
) -> None:
    clock = Clock()
    async with open_directory(store_address, clock) as directory:
        first, info = await directory.create_key("app")
        second, _ = await directory.rotate(info.id, overlap_s=3600)
        revoked = await directory.revoke(info.id)
        assert await directory.find(first.hash) is None
        current = await directory.find(second.hash)
        assert current == revoked
        assert revoked.state(int(clock.now_s * 1e6)) == "revoked"
        with pytest.raises(BadTask, match="revoked"):
            await directory.rotate(info.id)
        clock.now_s += 10
        assert await directory.revoke(info.id) == revoked, "when it was first"


async def test_a_key_expires_and_is_inactive_while_its_team_is_disabled(
    store_address: Address,
) -> None:
    clock = Clock()
    now_us = int(clock.now_s * 1e6)
    async with open_directory(store_address, clock) as directory:
        await directory.create_team("search")
        _, info = await directory.create_key("app", "search", expires_us=now_us + 1)
        assert [info.state(now_us), info.state(now_us + 1)] == ["active", "expired"]
        await directory.switch_team("search", on=False)
        assert (await directory.key(info.id)).state(now_us) == "team off"
        await directory.switch_team("search", on=True)
        assert (await directory.key(info.id)).state(now_us) == "active"


async def test_lists_are_newest_first_paged_and_filtered_by_team(store_address: Address) -> None:
    clock = Clock()
    async with open_directory(store_address, clock) as directory:
        await directory.create_team("search")
        for number in range(6):
            clock.now_s += number // 2  # some keys are created at the same time
            await directory.create_key(f"k{number}", "search" if number % 2 else None)
        everything = await directory.keys()
        assert sorted((key.name for key in everything), reverse=True) == [f"k{n}" for n in range(5, -1, -1)]
        assert [key.made_us for key in everything] == sorted((k.made_us for k in everything), reverse=True)
        pages, after = list[str](), None
        while page := await directory.keys(limit=4, after=after):
            pages += [key.id for key in page]
            after = page[-1].id
        assert pages == [key.id for key in everything]
        assert {key.name for key in await directory.keys("search")} == {"k1", "k3", "k5"}


async def test_unknown_ambiguous_and_repeated_names_are_rejected(store_address: Address) -> None:
    async with open_directory(store_address) as directory:
        await directory.create_team("search")
        for name in ("search", "", " x", "x\n", "x" * 101):
            with pytest.raises(BadTask) as refused:
                await directory.create_team(name)
            assert refused.value.param == "name"
        for _ in range(2):
            await directory.create_key("app")
        with pytest.raises(BadTask, match="2 keys are named 'app'"):
            await directory.revoke("app")
        with pytest.raises(UnknownName, match="No team has the id or name 'nobody'"):
            await directory.create_key("app", "nobody")
        with pytest.raises(BadTask, match="admin"):
            await directory.create_key("app", "search", {Scope.ADMIN})
        with pytest.raises(BadTask, match="in the future"):
            await directory.create_key("app", expires_us=1)


async def test_an_id_takes_precedence_over_an_equal_name(store_address: Address) -> None:
    async with open_directory(store_address) as directory:
        team = await directory.create_team("search")
        _, key = await directory.create_key("app")
        await directory.create_team(team.id)
        await directory.create_key(key.id)
        assert await directory.team(team.id) == team
        assert await directory.key(key.id) == key


async def test_two_concurrent_creations_of_one_team_create_it_once(store_address: Address) -> None:
    async with open_directory(store_address) as one, open_directory(store_address) as other:
        outcomes = await asyncio.gather(
            *(each.create_team("search") for each in (one, other)), return_exceptions=True
        )
        assert sorted(type(each).__name__ for each in outcomes) == ["BadTask", "TeamInfo"]
        assert len(await one.teams()) == 1
