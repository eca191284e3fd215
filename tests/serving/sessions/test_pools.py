"""Replaced pools are closed and then collected."""

import asyncio
import gc
import weakref
from collections.abc import Generator

import pytest

from serving.pool import Pool, build_pool
from serving.sessions.pools import Pools
from serving.settings.settings import parse
from tests.serving.api.served import team
from tests.states import until


def pool() -> Pool:
    wires = [("openai", "/v1"), ("anthropic", ""), ("gemini", "")]
    workers = [
        {
            "name": kind,
            "kind": kind,
            "model": "m",
            "base_url": f"http://127.0.0.1:9{path}",
            "api_key_env": "KEY",
        }
        for kind, path in wires
    ]
    return build_pool(parse(team(workers=workers, workflows={})), {"KEY": "a-key"}, {})


@pytest.fixture(autouse=True)
def _without_automatic_collection() -> Generator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("is_used", [False, True])
async def test_an_unused_pool_is_collected_soon_after_it_is_closed(is_used: bool) -> None:
    pools = Pools(pool())
    alive = [weakref.ref(client) for client in pools.current.clients]
    if is_used:
        async with pools.using():
            await pools.swap(pool())
            assert all(each() is not None for each in alive)
    else:
        await pools.swap(pool())
    await until(lambda: all(each() is None for each in alive), "the clients of the first are gone")
    await pools.current.aclose()


async def test_several_pools_are_collected_together() -> None:
    """Each collection stops the loop. Five in a row would take longer than a worker may be silent."""
    pools = Pools(pool())
    alive = list[weakref.ref[object]]()
    for _ in range(5):
        alive += [weakref.ref(client) for client in pools.current.clients]
        await pools.swap(pool())
        await asyncio.sleep(0.2)
    full = gc.get_stats()[-1]["collections"]
    await until(lambda: all(each() is None for each in alive), "the clients of all are gone")
    await asyncio.sleep(1.2)
    assert gc.get_stats()[-1]["collections"] == full + 1
    await pools.current.aclose()
