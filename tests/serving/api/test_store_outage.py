"""A store that is unreachable or has a full disk: paid calls follow the settings meanwhile, and everything is
recorded once it recovers.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from serving.accounts.hold import key_subject
from serving.accounts.ledger_check import find_faults
from serving.database import database
from serving.database.address import Address, sqlite_address
from tests.databases import Postgres
from tests.serving.api.keyed import Keyed, keyed
from tests.serving.api.served import ASK, scripted, team
from tests.serving.api.test_run_charges import DEAR, spent_usd

COST_USD = Decimal("0.121")
"""Cost of one answer of `dear`."""
POOL = [DEAR, scripted("free")]
FULL = "max_page_count=1"
"""SQLite then uses the current number of pages as its limit."""


@dataclass
class Outage:
    address: Address
    begin: Callable[[], Awaitable[None]]
    end: Callable[[], Awaitable[None]]


@pytest.fixture(params=["full", pytest.param("stopped", marks=[pytest.mark.real_time, pytest.mark.slow])])
async def outage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Outage]:
    """Yield a PostgreSQL that is stopped, or a SQLite file whose disk is full."""
    if request.param == "stopped":
        postgres: Postgres = request.getfixturevalue("postgres")
        address, is_stopped = await asyncio.to_thread(postgres.make_database), False

        async def stop() -> None:
            nonlocal is_stopped
            await asyncio.to_thread(postgres.stop)
            is_stopped = True

        async def start() -> None:
            nonlocal is_stopped
            await asyncio.to_thread(postgres.start)
            is_stopped = False

        yield Outage(address, stop, start)
        if is_stopped:
            await start()
        return
    pragmas = database.PRAGMAS

    async def fill() -> None:
        monkeypatch.setattr(database, "PRAGMAS", (*pragmas, FULL))

    async def empty() -> None:
        monkeypatch.setattr(database, "PRAGMAS", pragmas)

    yield Outage(sqlite_address(tmp_path / "podium.db"), fill, empty)


async def ask(it: Keyed, model: str = "dear") -> Any:
    return await it.ask("mine", "POST", "/v1/chat/completions", ASK | {"model": model})


async def reconnect(it: Keyed) -> None:
    """Close the writer's connection, so that the next use opens a new one."""
    assert it.store._ledger is not None
    await it.store._ledger.writer._backend.aclose()


async def test_without_the_store_paid_calls_are_rejected_until_it_is_back(
    outage: Outage,
) -> None:
    async with keyed(outage.address, team(workers=POOL, workflows={})) as it:
        await it.directory.set_budget(key_subject(it.ids["mine"]), {"day": Decimal(1000)})
        paid = [(await ask(it)).status_code]
        assert "store" not in (await it.ask("mine", "GET", "/readyz")).json()
        await outage.begin()
        await reconnect(it)
        while (refused := await ask(it)).status_code == 200:  # uses up the last page of a full disk
            paid.append(200)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        assert "127.0.0.1" not in refused.text
        assert (await ask(it, "free")).status_code == 200, "what costs nothing goes on"
        assert (await it.ask("mine", "GET", "/readyz")).json()["store"] == "away"
        await outage.end()
        while (answer := await ask(it)).status_code == 503:
            await asyncio.sleep(0.05)
        paid.append(answer.status_code)
        assert set(paid) == {200}
        assert await spent_usd(it, "keys", it.ids["mine"]) == len(paid) * COST_USD
        assert await find_faults(await it.directory.open()) == []


async def test_with_the_setting_paid_calls_continue_without_the_store_and_are_entered_later(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    settings = team(workers=POOL, workflows={}, store={"when_away": "serve"})
    async with keyed(outage.address, settings) as it:
        await it.directory.set_budget(key_subject(it.ids["mine"]), {"day": 100 * COST_USD})
        n = 1
        assert (await ask(it)).status_code == 200
        await outage.begin()
        await reconnect(it)
        while "continues without a hold" not in caplog.text:
            assert (await ask(it)).status_code == 200
            n += 1
        assert "unreachable" in caplog.text
        for _ in range(101 - n):  # past the budget
            assert (await ask(it)).status_code == 200
            n += 1
        await outage.end()
        async with asyncio.timeout(20):
            while await spent_usd(it, "keys", it.ids["mine"]) < n * COST_USD:
                await asyncio.sleep(0.05)
        assert await spent_usd(it, "keys", it.ids["mine"]) == n * COST_USD
        assert await find_faults(await it.directory.open()) == []
        while (ready := await it.ask("mine", "GET", "/readyz")).json().get("store"):
            await asyncio.sleep(0.05)
        assert ready.status_code == 200
        assert (await ask(it)).status_code == 402, "the budget holds again, and what was served counts"
