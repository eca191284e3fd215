"""Secrets planted in keys, prompts and settings of a real server, and looked for in all that it writes and says: logs, records, traces,
errors. A prompt is in the record of its run on purpose, and so in the store's own files; a secret is in no file at all, but the store keeps records compressed, so they are read through the API too. `tests/live/test_secrets.py` plants
secrets in the environment and looks at what a server leaves behind.
"""

import asyncio
import os
import subprocess
import uuid
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import yaml

from cluster.local.processes import ROOT
from cluster.local.server import Server
from serving.accounts.keys import ApiKey
from tests import secrets
from tests.conftest import PODIUM
from tests.otlp import receiving
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, Request, serving

pytestmark = [pytest.mark.live, pytest.mark.timeout(800)]


def word() -> str:
    return f"planted-{uuid.uuid4().hex}"


def settings_with(folder: Path, url: str, words: dict[str, str]) -> Path:
    """The scripted team, and API workers with secrets wherever settings can hold one."""
    settings = yaml.safe_load((ROOT / "cluster/scripted.yaml").read_text())
    api: dict[str, Any] = {"kind": "openai", "api_key_env": "OPENAI_API_KEY", "extra_body": {"token": words["extra_body"]}, "retry": {"attempts": 1}}  # fmt: skip
    settings["workers"] += [
        api | {"name": "gpt", "model": "m", "base_url": f"{url}/v1"},
        api | {"name": "wrong", "model": "echoes-the-key", "base_url": f"{url}/v1"},
        api
        | {
            "name": "gone",
            "model": "m",
            "base_url": "http://127.0.0.1:1/v1",
        },
        api
        | {
            "name": "metadata",
            "model": "m",
            "base_url": "http://169.254.169.254/v1",
        },
    ]
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def answer_with_the_key(request: Request) -> Answer:
    """As providers do that quote what they were sent."""
    if request.body["model"] != "echoes-the-key":
        return Answer()
    return Answer(status=401, error=f"Incorrect API key provided: {request.headers.get('authorization')}")


async def test_secrets_in_keys_prompts_and_settings_are_in_no_log_record_trace_or_error(
    tmp_path: Path,
) -> None:
    began_s, planted = secrets.now_s(), secrets.planted()
    words = {"extra_body": word()}
    quoted = {"key in a prompt": f"sk-proj-{uuid.uuid4().hex}A1"}
    """A secret of a known form, which is taken out of all that is kept of the prompt that holds it."""
    prompts = {name: word() for name in ("question", "system prompt")}
    with receiving() as spans:
        async with serving(OpenAIWire()) as upstream:
            upstream.respond = answer_with_the_key
            path = settings_with(tmp_path, upstream.url, words)
            env = planted | {
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{spans.port}",
                "OTEL_BSP_SCHEDULE_DELAY": "200",
            }
            server = Server(settings=path, port=0, env=env, log=tmp_path / "server.log")
            await asyncio.to_thread(server.__enter__)
            try:
                store = {"PODIUM_STORE_URL": server.environment["PODIUM_STORE_URL"]}
                keys = {
                    name: await asyncio.to_thread(make_key, store, name, *more)
                    for name, *more in (("boss", "--scopes", "admin"), ("app",))
                }
                keys["unknown"] = ApiKey.make().reveal()
                said = await ask_everything(server.url, keys, prompts, quoted["key in a prompt"])
                assert upstream.requests[0].body["token"] == words["extra_body"], (
                    "it was sent where it should"
                )
                assert all(
                    any(prompt in str(each.body) for each in upstream.requests)
                    for prompt in (prompts | quoted).values()
                )
                await asyncio.to_thread(spans.wait_for, said.trace_id, lambda found: len(found) >= 2)
                all_secrets = planted | words | keys | quoted
                places = {path: words, **dict.fromkeys(files_of(store["PODIUM_STORE_URL"]), prompts)}
                assert found_elsewhere(all_secrets | prompts, places, began_s) == [], "while it runs"
            finally:
                await asyncio.to_thread(server.stop)
    assert spans.spans
    assert leaks("".join(map(repr, spans.spans)), all_secrets | prompts) == [], "in a trace"
    assert leaks(said.errors, all_secrets) == [], "in an error"
    assert leaks(said.records, all_secrets) == [], "in a record"
    assert found_elsewhere(all_secrets | prompts, places, began_s) == [], "after it has ended"


def files_of(store_url: str) -> list[Path]:
    """Of a SQLite store: the database and what SQLite writes beside it."""
    database = store_url.removeprefix("sqlite:///")
    return [Path(database + end) for end in ("", "-wal", "-shm")]


def found_elsewhere(planted: dict[str, str], places: dict[Path, dict[str, str]], since_s: float) -> list[str]:
    """The files that hold something planted, but for what is in its own place."""
    own = {f"{path}: {name}" for path, names in places.items() for name in names}
    return [each for each in secrets.files_with(planted, since_s) if each not in own]


class Said:
    """What the server answered."""

    def __init__(self) -> None:
        self.errors, self.records, self.trace_id = "", "", ""


async def ask_everything(url: str, keys: dict[str, str], prompts: dict[str, str], quoted: str) -> Said:
    """Runs that answer, fail and are refused, by every key; their records, as an administrator reads them."""
    said = Said()
    talk = [
        {"role": "system", "content": prompts["system prompt"]},
        {"role": "user", "content": f"{prompts['question']} My key is {quoted}."},
    ]
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:

        async def ask(key: str, method: str, path: str, body: Any = None) -> httpx.Response:
            return await client.request(method, path, json=body, headers={"authorization": f"Bearer {key}"})

        statuses: dict[str, int] = {}
        for model in ("gpt", "podium-mini", "wrong", "gone", "metadata", "nobody"):
            for stream in (False, True):
                answer = await ask(
                    keys["app"],
                    "POST",
                    "/v1/chat/completions",
                    {"model": model, "messages": talk, "stream": stream},
                )
                statuses.setdefault(model, answer.status_code)  # a stream may have begun before it failed
                said.errors += answer.text
                if model == "gpt" and not stream:
                    said.trace_id = answer.json()["podium"]["trace_id"]
        assert statuses == {
            "gpt": 200,
            "podium-mini": 200,
            "wrong": 502,
            "gone": 502,
            "metadata": 502,
            "nobody": 404,
        }
        for key in keys.values():
            for method, path in (
                ("GET", "/v1/admin/keys"),
                ("GET", "/v1/nothing"),
                ("POST", "/v1/chat/completions"),
            ):
                answer = await ask(key, method, path, {"model": 1} if method == "POST" else None)
                said.errors += answer.text
        listed = (await ask(keys["boss"], "GET", "/v1/workflows?limit=100")).json()["data"]
        assert len(listed) >= 10
        for each in listed:
            for path in (f"/v1/workflows/{each['id']}", f"/v1/workflows/{each['id']}/events"):
                said.records += (await ask(keys["boss"], "GET", path)).text
    return said


def leaks(text: str, planted: dict[str, str]) -> list[str]:
    return [name for name, value in planted.items() if value.rpartition("=")[2] in text]


def make_key(store: dict[str, str], *arguments: str) -> str:
    command = [PODIUM, "keys", "create", *arguments]
    return subprocess.run(
        command, env=os.environ | store, capture_output=True, text=True, check=True
    ).stdout.strip()
