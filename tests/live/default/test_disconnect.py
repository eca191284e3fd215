"""Clients that disconnect at each event of a run on the real Serve app: nothing continues. The workers call a
loopback server in this process, which sees each connection close. The last step never ends, so only the disconnect
can end it. `make bench` measures how fast.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx2 as httpx
import pytest
import pytest_asyncio
import yaml

from tests.live.default.local import Local, deploy
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, WireServer, serving

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

PLAN = "\n".join([
    '{"worker": "a", "subtask": "One.", "access": []}', '{"worker": "b", "subtask": "Two.", "access": []}',
    '{"worker": "c", "subtask": "Both.", "access": [0, 1]}',
])  # fmt: skip
EVENTS = 14
"""More events than such a run has before its last step stalls."""


@dataclass
class Podium:
    url: str
    upstreams: dict[str, WireServer]

    @property
    def open_calls(self) -> int:
        return sum(upstream.open_requests for upstream in self.upstreams.values())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def podium(local: Local, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Podium]:
    wires = {name: serving(OpenAIWire()) for name in ("conductor", "a", "b", "c")}
    upstreams = {name: await wire.__aenter__() for name, wire in wires.items()}
    workers = [
        {
            "name": name,
            "kind": "openai",
            "model": name,
            "base_url": f"{upstream.url}/v1",
            "in_pool": name != "conductor",
        }
        for name, upstream in upstreams.items()
    ]
    path = tmp_path_factory.mktemp("disconnect") / "settings.yaml"
    settings = {"conductor": {"worker": "conductor"}, "workers": workers, "models": {"m": {}}}
    own = {"router": {"num_cpus": 0.1}, "store": {"path": str(path.with_suffix(".db"))}}
    path.write_text(yaml.safe_dump(settings | own))
    await asyncio.to_thread(deploy, "disconnect", path)
    yield Podium(f"{local.url}/disconnect", upstreams)
    for wire in wires.values():
        await wire.__aexit__(None, None, None)


def script(podium: Podium) -> None:
    """Set the upstreams' answers to the next run: a plan, two answers, and a last step that never ends."""
    for upstream in podium.upstreams.values():
        upstream.answers.clear()
    podium.upstreams["conductor"].answers.append(Answer(text=PLAN))
    podium.upstreams["c"].answers.append(Answer(text="never ends", stall_after=3))


async def check_nothing_continues(podium: Podium, client: httpx.AsyncClient, workflow_id: str | None) -> None:
    """Assert that no upstream call is open, that no run continues, and that the record has no open step."""
    async with asyncio.timeout(10):
        while podium.open_calls or (await client.get("/readyz")).json()["running"]:
            await asyncio.sleep(0.01)
        if workflow_id:
            record = (await client.get(f"/v1/workflows/{workflow_id}")).json()
            assert record["status"] == "cancelled"
            assert not [step for step in record["steps"] if step["status"] in ("planned", "running")]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("events", range(EVENTS))
async def test_nothing_continues_after_a_client_leaves_a_stream(podium: Podium, events: int) -> None:
    script(podium)
    body = {
        "model": "m",
        "stream": True,
        "messages": [{"role": "user", "content": "?"}],
        "podium": {"progress": "events"},
    }
    async with httpx.AsyncClient(base_url=podium.url, timeout=20) as client:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            n_events = 0
            async for line in response.aiter_lines():
                n_events += line.startswith("data: ")
                if n_events > events:
                    break
        await check_nothing_continues(podium, client, response.headers["x-podium-workflow-id"])


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("waits_for", ["conductor", "a", "c"])
async def test_nothing_continues_after_a_client_leaves_without_a_stream(
    podium: Podium, waits_for: str
) -> None:
    script(podium)
    if waits_for != "c":
        text = PLAN if waits_for == "conductor" else "never ends"
        podium.upstreams[waits_for].answers.clear()
        podium.upstreams[waits_for].answers.append(Answer(text=text, stall_after=2))
    stalled = podium.upstreams[waits_for]
    body = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
    async with httpx.AsyncClient(base_url=podium.url, timeout=20) as client:
        request = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        async with asyncio.timeout(10):
            while not stalled.open_requests:
                await asyncio.sleep(0.01)
        request.cancel()
        await asyncio.wait([request])
        await check_nothing_continues(podium, client, None)
