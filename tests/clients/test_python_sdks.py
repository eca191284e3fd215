"""Run the shared table with the official Python SDKs against scripted pools, over a real socket."""

from pathlib import Path

import pytest

from loadtest.rig.routers import make_key, running_router
from serving.database.address import Address, parse_address
from tests.clients.python_sdks import CLIENTS, Client
from tests.clients.table import KILLED, TABLE, Scenario
from tests.serving.api.served import served


@pytest.mark.parametrize("scenario", TABLE, ids=lambda each: each.name)
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS.keys())
async def test_a_client_gets_the_result_in_the_shared_table(client: Client, scenario: Scenario) -> None:
    async with served(scenario.settings) as api:

        async def same() -> str:
            return api.url

        assert await client(api.url, scenario.ask, same, "none") == scenario.output


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS.keys())
async def test_another_router_resumes_a_run_whose_router_was_killed(client: Client, tmp_path: Path) -> None:
    address: Address = parse_address(f"sqlite:///{tmp_path / 'podium.db'}")
    key = await make_key(address)
    async with (
        running_router("client-first", address, KILLED.settings) as first,
        running_router("client-second", address, KILLED.settings) as second,
    ):

        async def other() -> str:
            if first.process.returncode is None:
                first.kill()
                await first.process.wait()
            return second.url

        assert await client(first.url, KILLED.ask, other, key.secret) == KILLED.output
