"""Every fault of a provider, wherever it stands in a run: the client sees what the table says, and nothing hangs."""

import asyncio
import socket
from contextlib import AsyncExitStack

import pytest

from tests.conftest import ROOT
from tests.serving.api.fault_servers import answering, open_places
from tests.serving.api.play_defaults import FAULTS
from tests.serving.api.play_faults import see_everything
from tests.serving.api.provider_faults import CASES, POSITIONS
from tests.serving.api.served import left_tasks
from tests.serving.spans import SPANS
from tests.serving.states import until


@pytest.mark.timeout(400)
async def test_every_fault_of_a_provider_ends_as_expected_in_every_position():
    assert len(CASES) >= 60
    seen = await asyncio.wait_for(see_everything(half=True), 300)
    assert [each for each in seen if not each.is_expected] == []
    await until(lambda: not left_tasks(), "no task is left")
    await until(lambda: not SPANS.open, "no span is left")


async def test_the_port_where_nobody_listens_refuses_and_is_given_to_no_other_server():
    async with open_places() as at, AsyncExitStack() as servers:
        closed = at.addresses["closed"].removeprefix("http://")
        for _ in range(100):
            assert await servers.enter_async_context(answering(b"")) != closed
        host, _, port = closed.partition(":")
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((host, int(port)))
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, int(port))


def test_the_page_of_faults_says_of_each_what_clients_see():
    page, _, by_default = (ROOT / "docs/faults.md").read_text("utf-8").partition("\n## Where nothing is set")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")][2:]
    assert [name for name, *_ in rows] == list(CASES), "run `make faults`"
    for name, *cells in rows:
        for position, cell in zip(POSITIONS, cells, strict=True):
            expected = [CASES[name].outcome(position, stream=stream) for stream in (False, True)]
            assert cell.split(" (")[0] == " / ".join(dict.fromkeys(expected)), "run `make faults`"
    assert [line.split(" | ")[0].strip("| ") for line in by_default.splitlines() if line.startswith("| ")][
        2:-1
    ] == list(FAULTS), "run `make faults`"
