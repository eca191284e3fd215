"""Rolling update on Ray Serve. The old router finishes runs that are shorter than its drain time, hands over runs
that outlive their clients, and ends the others with an error.
"""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import yaml

from tests.live.default.local import Local, deploy

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
DRAIN_S, LONG_WORDS, SHORT_WORDS = 4, 250, 20
ASKED_EVERY_S = 0.3
WORKERS = [
    {"name": name, "kind": "scripted", "replies": [" ".join(["word"] * n)], "tokens_per_s": 10}
    for name, n in (("short", SHORT_WORDS), ("long", LONG_WORDS))
]
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "?"}]}


def deploy_version(path: Path) -> None:
    """Deploy the application with the settings of `path`. A new file is a new version, whose replica replaces the old
    one.
    """
    settings = {"workers": WORKERS, "router": {"num_cpus": 0.1, "drain_s": DRAIN_S}}
    store = {
        "path": str(path.parent / "draining.db")
    }  # not shared: routers with one store take over each other's runs
    path.write_text(yaml.safe_dump(settings | {"limits": {"first_byte_s": 0}, "store": store}))
    deploy("draining", path)


async def read(http: httpx.AsyncClient, model: str, begun: asyncio.Event) -> tuple[int, str, str]:
    """Return the number of words of a stream, its error code, and its last line."""
    n, code, last = 0, "", ""
    async with http.stream(
        "POST", "/v1/chat/completions", json=ASK | {"model": model, "stream": True}
    ) as response:
        async for line in response.aiter_lines():
            last = line or last
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                code = chunk.get("error", {}).get("code") or code
                text = "".join(choice["delta"].get("content") or "" for choice in chunk.get("choices", ()))
                n += len(text.split())
                begun.set() if n else None
    return n, code, last


async def wait_until_finished(http: httpx.AsyncClient, id: str) -> dict[str, Any]:
    """Return the record of a run once it has finished."""
    deadline = time.monotonic() + 90
    while True:
        response = await http.get(f"/v1/workflows/{id}")
        if response.status_code == 200 and response.json()["status"] == "finished":
            return response.json()
        assert time.monotonic() < deadline, response.text
        await asyncio.sleep(0.5)


async def test_a_replaced_router_finishes_short_runs_and_hands_over_background_runs(
    local: Local, tmp_path: Path
) -> None:
    await asyncio.to_thread(deploy_version, tmp_path / "old.yaml")
    async with httpx.AsyncClient(base_url=f"{local.url}/draining", timeout=120, trust_env=False) as http:
        body = ASK | {"model": "long", "podium": {"background": True}}
        background_id = (await http.post("/v1/chat/completions", json=body)).json()["id"]
        begun = asyncio.Event()
        long_one = asyncio.create_task(read(http, "long", begun))
        await begun.wait()
        deploying = asyncio.create_task(asyncio.to_thread(deploy_version, tmp_path / "new.yaml"))
        short_ones: list[asyncio.Task[tuple[int, str, str]]] = []
        while not deploying.done():  # so that some have just begun when the old router is removed
            short_ones.append(asyncio.create_task(read(http, "short", asyncio.Event())))
            await asyncio.sleep(ASKED_EVERY_S)

        long, *short = await asyncio.gather(long_one, *short_ones)
        assert {each[:2] for each in short} == {(SHORT_WORDS, "")}
        assert (long[0] < LONG_WORDS, long[1]) == (True, "interrupted"), "told, and not cut without a word"
        await deploying
        record = await wait_until_finished(http, background_id)
        assert len(record["answer"].split()) == LONG_WORDS
