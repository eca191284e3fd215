"""From no replica to several and back, on real Ray Serve with a stand-in for the engine: nothing that was asked is lost."""

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
    """By a Serve config that says other than the settings how many replicas there are, as on a cluster."""
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
    """Replicas of the stand-in that are up."""
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


async def test_replicas_come_with_the_load_and_go_with_it_and_no_stream_is_cut(server: str) -> None:
    async with httpx2.AsyncClient(base_url=server, timeout=120) as http:
        await until(lambda: at_most(http, 0), 60)
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "ready"), (
            "an engine that sleeps is waited for by its calls"
        )
        assert await running(http) == 0, "and is not woken by being looked after"

        first = await stream(http, podium={"progress": "events"})
        told = [chunk["podium"] for chunk in first if not chunk["choices"]]
        assert [event["why"] for event in told if event["type"] == "waits"] == [
            "no replica is up; the first one is being started"
        ]
        assert words(first) == 40

        asked = [asyncio.create_task(stream(http)) for _ in range(16)]
        await until(lambda: at_least(http, 2), 60)
        answers = await asyncio.gather(*asked)
        assert [words(chunks) for chunks in answers] == [40] * 16

        while (
            now := await running(http)
        ) > 0:  # streams that run while replicas are taken away are whole too
            if now > 1:
                assert words(await stream(http)) == 40
            await asyncio.sleep(0.5)


def test_loads_are_told_several_times_within_what_they_are_averaged_over() -> None:
    from serving.deployments.autoscaling import autoscaling
    from serving.settings.scale import Scaling

    assert autoscaling(Scaling(look_back_period_s=2)).metrics_interval_s == 0.5
    assert autoscaling(Scaling(look_back_period_s=300)).metrics_interval_s == 10


async def at_most(http: httpx2.AsyncClient, count: int) -> bool:
    return await running(http) <= count


async def at_least(http: httpx2.AsyncClient, count: int) -> bool:
    return await running(http) >= count


async def test_many_streams_that_a_queue_holds_up_ask_for_more_replicas_than_calls_alone_would() -> None:
    from ray.serve.config import AutoscalingConfig, AutoscalingContext

    from serving.deployments.autoscaling import LOAD, by_load

    def wanted(calls: float, loads: list[float], replicas: int) -> float:
        metrics: Any = {LOAD: dict(enumerate(loads))} if loads else {}
        context = AutoscalingContext(
            deployment_id=None, deployment_name="d", app_name="a", current_num_replicas=replicas, target_num_replicas=replicas,
            running_replicas=[], total_num_requests=calls, total_queued_requests=0, aggregated_metrics=metrics, raw_metrics={},
            capacity_adjusted_min_replicas=0, capacity_adjusted_max_replicas=9, policy_state={}, last_scale_up_time=None,
            last_scale_down_time=None, current_time=0, config=AutoscalingConfig(target_ongoing_requests=10, max_replicas=9),
        )  # type: ignore[arg-type]  # fmt: skip
        return by_load(context)[0]

    assert wanted(20, [0.5, 0.5], 2) == 2, "calls alone"
    assert wanted(4, [1.5, 1.5], 2) == 3, (
        "few calls, and each replica's queue is half as long again as what it serves"
    )
    assert wanted(4, [3.0], 3) == 3, "what nobody reported asks for no more"
    assert wanted(4, [0.5], 2) == 2, "and takes nobody away"
    assert wanted(0, [0.0, 0.0], 2) == 0
    assert wanted(30, [], 0) == 0, "from none, Serve's own rule starts the first one"
