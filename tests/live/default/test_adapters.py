"""Adapters on a real engine: changes under load, rejected adapters, and no answers from the cache of another adapter."""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio

from loadtest.bench.adapters import WORDS, Switch, load_while, make_adapters, wrong
from loadtest.rig.client import BenchClient, open_session
from serving.lora.adapters import publish
from tests.live.default.local import Local
from tests.serving.adapter_files import adapter, lora

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(800),
    pytest.mark.asyncio(loop_scope="module"),
]
WORKER = "conductor"


@dataclass
class SwitchableServer:
    """Embedded default whose conductor's adapter can be changed."""

    url: str
    adapters: dict[str, str]

    async def use(self, adapter: str | None) -> None:
        """Reconfigure the router's replica, as Serve does for a config with another `user_config`."""
        from ray import serve

        handle: Any = serve.get_deployment_handle("router", "default")
        await handle.reconfigure.remote({"workers": [{"name": WORKER, "adapter": adapter}]})

    async def ask(self, question: str) -> dict[str, Any]:
        body = {"model": WORKER, "messages": [{"role": "user", "content": question}], "max_tokens": 6, "temperature": 0}  # fmt: skip
        async with httpx.AsyncClient(timeout=120) as client:
            return (await client.post(f"{self.url}/v1/chat/completions", json=body)).json()

    async def get(self, path: str) -> dict[str, Any]:
        async with httpx.AsyncClient(timeout=30) as client:
            return (await client.get(f"{self.url}{path}")).json()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def switchable(
    local: Local, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SwitchableServer]:
    switchable = SwitchableServer(local.url, await make_adapters(tmp_path_factory.mktemp("adapters")))
    yield switchable
    await switchable.use(None)


async def test_switching_adapters_under_load_loses_no_request_and_mixes_no_answer(switchable: SwitchableServer) -> None:  # fmt: skip
    a, b, a2 = WORDS
    await switchable.use(switchable.adapters[a])

    async def switching() -> list[Switch]:
        switches: list[Switch] = []
        for before, after in ((a, b), (b, a), (a, a2)):
            asked_s = time.monotonic()
            await switchable.use(switchable.adapters[after])
            switches.append(Switch(before, after, asked_s, time.monotonic()))
            answer = await switchable.ask(f"Which word is it after {before}?")
            assert set(answer["choices"][0]["message"]["content"].split()) == {after}
        return switches

    async with open_session() as session:
        answers, switches = await load_while(
            BenchClient(session, switchable.url), WORKER, switching, lambda: None
        )
    assert not [answer for answer in answers if answer.text is None]
    assert not wrong(answers, switches)


async def test_the_record_names_the_adapter_and_caches_are_separate(
    switchable: SwitchableServer,
) -> None:
    question = "In other words, and at length, what was said before? " * 20
    for word in (*WORDS, None):
        path = switchable.adapters[word] if word else None
        await switchable.use(path)
        first, again = await switchable.ask(question), await switchable.ask(question)
        cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (first, again)]
        assert cached[0] == 0 < cached[1], "the first answer of an adapter stands on its own work"
        model = "models/smollm2-135m-conductor" + (f"+{Path(path).name}" if path else "")
        record = await switchable.get(f"/v1/workflows/{first['podium']['workflow_id']}")
        listed = await switchable.get(f"/v1/models/{WORKER}")
        assert record["steps"][0]["model"] == listed["podium"]["model"] == model
        text = first["choices"][0]["message"]["content"]
        assert (word in text) if word else not any(each in text for each in WORDS)


FAULTY: dict[str, Callable[[Path], str]] = {
    "does not exist": lambda where: str(where / "conductor@1a2b3c4d"),
    "has the digest": lambda where: str(
        adapter(publish(adapter(where / "x"), where / "s", "conductor"), fill=9)
    ),
    "DoRA": lambda where: str(publish(adapter(where / "x", use_dora=True), where / "s", "conductor")),
    "Its rank is 64": lambda where: str(publish(adapter(where / "x", r=64), where / "s", "conductor")),
    "trained on a different model": lambda where: str(
        publish(adapter(where / "x", lora(hidden=512)), where / "s", "conductor")
    ),
    "must end in a name": lambda where: str(where),
    "cannot be opened": lambda where: "ftp://nowhere/conductor@1a2b3c4d",
}


@pytest.mark.parametrize("why", FAULTY)
async def test_an_invalid_adapter_is_reported_and_the_previous_one_stays(
    switchable: SwitchableServer, why: str, tmp_path: Path
) -> None:
    await switchable.use(switchable.adapters[WORDS[0]])
    await switchable.use(FAULTY[why](tmp_path))
    ready = await switchable.get("/readyz")
    assert why in ready["refused_user_config"]
    assert WORDS[0] in (await switchable.ask("Hello"))["choices"][0]["message"]["content"]
    await switchable.use(switchable.adapters[WORDS[0]])
    assert "refused_user_config" not in await switchable.get("/readyz")
