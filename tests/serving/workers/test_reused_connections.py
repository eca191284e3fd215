"""Kept-alive connections that the server resets before it reads the request. The request is repeated once on a new
connection.
"""

import asyncio
import time

import pytest

from conductor.errors import WorkerUnavailable
from tests.serving.workers.test_http import PROVIDERS, Provider, ask, failing
from tests.wires.server import Answer


@pytest.fixture(params=PROVIDERS.values(), ids=PROVIDERS.keys())
def provider(request: pytest.FixtureRequest) -> Provider:
    return request.param


@pytest.mark.parametrize("n_idle", [1, 5])
async def test_a_reset_idle_connection_is_replaced_immediately(provider: Provider, n_idle: int):
    async with provider() as (worker, server):
        server.respond = lambda _: Answer(late_s=0.2)
        await asyncio.gather(*(ask(worker) for _ in range(n_idle)))
        assert server.connections == n_idle
        server.resets_used, server.respond = True, lambda _: Answer()
        began_s = time.monotonic()
        assert (await ask(worker))[0] == "It is four."
        assert time.monotonic() - began_s < 0.2
        assert len(server.requests) == n_idle + 1, "no request was read twice"


async def test_a_reset_call_is_repeated_once_and_never_after_an_answer_started(provider: Provider):
    async with provider() as (worker, server):
        await ask(worker)
        server.respond = lambda _: Answer(cut_after=0)  # breaks after its headers
        assert isinstance(await failing(worker), WorkerUnavailable)
        assert len(server.requests) == 2


async def test_a_broken_new_connection_is_left_to_the_retries(provider: Provider):
    async with provider() as (worker, server):
        server.resets_new = True
        assert isinstance(await failing(worker), WorkerUnavailable)
        assert server.connections == 1
        server.resets_new = False
        await ask(worker)
        server.resets_used = server.resets_new = True
        assert isinstance(await failing(worker), WorkerUnavailable)
        assert server.connections == 3, "a kept one, and one new one in its place"
