"""Reloads of an edited settings file while requests run. No request may fail."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.health import Health
from serving.pool import build_pool
from serving.sessions.live_settings import LiveSettings
from serving.settings.settings import SettingsError
from serving.settings.source import SettingsSource
from tests.serving.api.served import Json, Served, scripted, served
from tests.wires.openai import OpenAIWire
from tests.wires.server import serving

pytestmark = pytest.mark.real_time

NOTHING: Mapping[str, str] = {}


@dataclass
class Live:
    """A server that follows a settings file."""

    api: Served
    settings: LiveSettings
    path: Path

    def write(self, settings: Json | str) -> None:
        self.path.write_text(settings if isinstance(settings, str) else yaml.safe_dump(settings))

    async def wait_until_applied(self) -> None:
        """Wait until the next change is served."""
        before = self.api.service.pool
        while self.api.service.pool is before:
            await asyncio.sleep(0.01)

    async def wait_until_rejected(self) -> str:
        while self.api.service.refused is None:
            await asyncio.sleep(0.01)
        return self.api.service.refused


@asynccontextmanager
async def live(folder: Path, settings: Json) -> AsyncGenerator[Live]:
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump(settings))
    source, health = SettingsSource.of(path, None, None), Health()
    async with served(source.read(), NOTHING) as api:
        follows = LiveSettings(
            api.service, source.read(), lambda new: build_pool(new, NOTHING, {}, health), source, poll_s=0.02
        )
        follows.start()
        try:
            yield Live(api, follows, path)
        finally:
            await follows.aclose()
            await api.service.pool.aclose()


def one(url: str, **worker: Any) -> Json:
    return {
        "workers": [
            {"name": "w", "kind": "openai", "model": "m", "base_url": f"{url}/v1", "retry": {"attempts": 1}}
            | worker
        ]
    }


async def test_a_worker_moves_to_another_server_under_load_without_failures(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        old, new = [await stack.enter_async_context(serving(OpenAIWire())) for _ in range(2)]
        it = await stack.enter_async_context(live(tmp_path, one(old.url)))
        ended, statuses = asyncio.Event(), Counter[int]()

        async def load() -> None:
            while not ended.is_set():
                statuses[(await it.api.post({"model": "w"})).status_code] += 1

        load_tasks = [asyncio.create_task(load()) for _ in range(8)]
        for server in (new, old, new):
            n_before = len(server.requests)
            task = asyncio.create_task(it.wait_until_applied())
            it.write(one(server.url))
            await task
            while len(server.requests) < n_before + 20:
                await asyncio.sleep(0.01)
        ended.set()
        await asyncio.gather(*load_tasks)
        assert set(statuses) == {200}
        n_old = len(old.requests)
        await it.api.ok({"model": "w"})
        assert len(old.requests) == n_old, "the last one in the file is the one that is asked"


async def test_current_calls_end_with_the_old_settings(tmp_path: Path) -> None:
    def slow(answer: str) -> Json:
        return {"workers": [scripted("w", answer, tokens_per_s=30)]}

    async with live(tmp_path, slow("the old worker says all of this " * 3)) as it:
        before = asyncio.create_task(it.api.ok({"model": "w"}))
        while not it.api.service.running:
            await asyncio.sleep(0.01)
        it.write(slow("the new one"))
        await it.wait_until_applied()
        after = await it.api.ok({"model": "w"})
        assert not before.done(), "the new one answers while the old one is still at it"
        assert after["choices"][0]["message"]["content"] == "the new one"
        assert (await before)["choices"][0]["message"]["content"].startswith(
            "the old worker says all of this"
        )


async def test_a_new_price_applies_to_the_next_request(tmp_path: Path) -> None:
    async with serving(OpenAIWire()) as wire, live(tmp_path, one(wire.url)) as it:
        assert (await it.api.ok({"model": "w"}))["podium"]["cost_usd"] is None
        it.write(one(wire.url, price={"input_usd_per_mtok": 1, "output_usd_per_mtok": 1}))
        await it.wait_until_applied()
        assert (await it.api.ok({"model": "w"}))["podium"]["cost_usd"] == pytest.approx(19e-6)


async def test_a_rotated_key_file_is_used_by_the_next_request(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_text("first-key")
    async with serving(OpenAIWire()) as wire, live(tmp_path, one(wire.url, api_key_file=str(key))) as it:
        await it.api.ok({"model": "w"})
        fresh = tmp_path / "fresh"
        fresh.touch(0o600)
        fresh.write_text("second-key")
        fresh.rename(key)
        await it.wait_until_applied()
        await it.api.ok({"model": "w"})
        assert [request.headers["authorization"] for request in wire.requests] == [
            "Bearer first-key",
            "Bearer second-key",
        ]


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        ("workers: [", "is not valid YAML"),
        ({"workers": []}, "workers"),
        ({"workers": [scripted("w", prise={})]}, "is not a known setting"),
        ({"workers": [{"name": "w", "kind": "openai", "model": "m", "api_key_env": "NOT_THERE"}]}, "NOT_THERE"),
        ({"workers": [{"name": "w", "kind": "vllm", "model": "m"}]}, "changes an engine"),
        ({"workers": [scripted("w")], "router": {"max_replicas": 3}}, "changes an engine or the size"),
    ],
)  # fmt: skip
async def test_an_invalid_file_is_rejected_and_the_old_settings_stay(
    bad: Json | str, fault: str, tmp_path: Path
) -> None:
    async with live(tmp_path, {"workers": [scripted("w", "still here")]}) as it:
        before = it.api.service.pool
        it.write(bad)
        assert fault in await it.wait_until_rejected()
        assert fault in (await it.api.http.get("/readyz")).json()["refused_user_config"]
        assert it.api.service.pool is before
        assert (await it.api.ok({"model": "w"}))["choices"][0]["message"]["content"] == "still here"
        with pytest.raises(SettingsError, match=fault):
            await it.settings.reload()
        it.write({"workers": [scripted("w", "better")]})
        await it.wait_until_applied()
        assert "refused_user_config" not in (await it.api.http.get("/readyz")).json()


async def test_a_missing_or_incomplete_file_changes_nothing(tmp_path: Path) -> None:
    async with live(tmp_path, {"workers": [scripted("w", "one")]}) as it:
        before = it.api.service.pool
        it.path.unlink()
        await asyncio.sleep(0.2)
        assert it.api.service.pool is before
        assert it.api.service.refused is None
        for n in range(15):  # an editor in the middle of writing never shows the same file twice
            it.write(f"workers: [{'x' * n}")
            await asyncio.sleep(0.01)
        it.write({"workers": [scripted("w", "two")]})
        await it.wait_until_applied()


async def test_a_user_configs_patches_stay_when_the_file_changes(tmp_path: Path) -> None:
    async with live(tmp_path, {"workers": [scripted("w", "one"), scripted("v")]}) as it:
        await it.settings.patch({"workers": [{"name": "v", "replies": ["patched"]}]})
        it.write({"workers": [scripted("w", "two"), scripted("v")]})
        await it.wait_until_applied()
        texts = [
            (await it.api.ok({"model": name}))["choices"][0]["message"]["content"] for name in ("w", "v")
        ]
        assert texts == ["two", "patched"]


async def test_a_replica_that_starts_after_an_edit_uses_the_edited_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump({"workers": [scripted("w", "as deployed")]}))
    source = SettingsSource.of(path, None, None)
    deployed = source.read()
    path.write_text(yaml.safe_dump({"workers": [scripted("w", "as edited")]}))
    os.utime(path)
    async with served(deployed) as api:
        follows = LiveSettings(
            api.service, deployed, lambda new: build_pool(new, NOTHING, {}), source, poll_s=0.02
        )
        it = Live(api, follows, path)
        task = asyncio.create_task(it.wait_until_applied())
        follows.start()
        await task
        assert (await api.ok({"model": "w"}))["choices"][0]["message"]["content"] == "as edited"
        await follows.aclose()
