"""Scaling from no replica to several and back, on Ray Serve with a stand-in engine: no request is lost."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx2
import pytest
import yaml

from cluster.local.processes import HOST, free_port
from cluster.local.server import Server
from tests.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(480)]
ASK: dict[str, Any] = {
    "model": "writer",
    "messages": [{"role": "user", "content": "Tell me."}],
    "stream": True,
}


SCALING = {
    "min_replicas": 0, "max_replicas": 3, "target_ongoing_requests": 4, "upscale_delay_s": 0, "downscale_delay_s": 2,
    "downscale_to_zero_delay_s": 4, "look_back_period_s": 2, "metrics_interval_s": 0.5,
    "policy": {"policy_function": "serving.deployments.autoscaling:by_load"},
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve with a Serve config whose number of replicas differs from the settings', as on a cluster."""
    config, port = tmp_path_factory.mktemp("scaled") / "serve.yaml", free_port()
    application = {
        "name": "podium", "import_path": "serving.app:build_app", "args": {"settings": str(ROOT / "tests/live/scaled.yaml")},
        "deployments": [{"name": "vllm-writer", "autoscaling_config": SCALING}],
    }  # fmt: skip
    config.write_text(
        yaml.safe_dump({"http_options": {"host": HOST, "port": port}, "applications": [application]})
    )
    with Server(config=config, port=port) as server:
        yield server.url


async def running(http: httpx2.AsyncClient) -> int:
    replicas = (await http.get("/v1/replicas")).json()["replicas"]
    return replicas["vllm-writer"].get("running", 0)


async def until(what: Callable[[], Awaitable[bool]], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not await what():
        assert time.monotonic() < deadline, "that state never came"
        await asyncio.sleep(0.2)


async def stream(http: httpx2.AsyncClient, **more: Any) -> list[Any]:
    async with http.stream("POST", "/v1/chat/completions", json=ASK | more) as answer:
        assert answer.status_code == 200
        lines = [
            line.removeprefix("data: ") async for line in answer.aiter_lines() if line.startswith("data: ")
        ]
    assert lines[-1] == "[DONE]", lines[-1]
    return [json.loads(line) for line in lines[:-1]]


def words(chunks: list[Any]) -> int:
    texts = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    return len("".join(texts).split())


async def test_replicas_scale_with_the_load_and_no_stream_is_interrupted(server: str) -> None:
    async with httpx2.AsyncClient(base_url=server, timeout=120) as http:
        await until(lambda: at_most(http, 0), 60)
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "ready"), (
            "an engine that sleeps is waited for by its calls"
        )
        assert await running(http) == 0, "and is not woken by being looked after"

        first = await stream(http, podium={"progress": "events"})
        events = [chunk["podium"] for chunk in first if not chunk["choices"]]
        assert [event["why"] for event in events if event["type"] == "waits"] == [
            "No replica is running. The first one is starting."
        ]
        assert words(first) == 40

        streams = [asyncio.create_task(stream(http)) for _ in range(16)]
        await until(lambda: at_least(http, 2), 60)
        answers = await asyncio.gather(*streams)
        assert [words(chunks) for chunks in answers] == [40] * 16

        while (now := await running(http)) > 0:  # streams are also complete while replicas are removed
            if now > 1:
                assert words(await stream(http)) == 40
            await asyncio.sleep(0.5)


async def at_most(http: httpx2.AsyncClient, count: int) -> bool:
    return await running(http) <= count


async def at_least(http: httpx2.AsyncClient, count: int) -> bool:
    return await running(http) >= count
