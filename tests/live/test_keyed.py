"""Server that requires keys and is reachable from other machines. Secrets from its keys, prompts and settings must
not appear in its logs, records, traces and errors. A prompt is meant to be in the record of its run, and so in the
store's own files. The store compresses records, so the tests also read them through the API. The last test ends the
server.
"""

import asyncio
import json
import re
import signal
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psutil
import pytest
import yaml
from anyio.from_thread import start_blocking_portal

from cluster.local.processes import ROOT, free_port, processes_of
from serving.accounts.keys import ApiKey
from tests import secrets
from tests.keys import OPEN_AND_CLOSED, make_key, open_and_closed, status
from tests.otlp import Receiver, receiving
from tests.states import until
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, Request, WireServer, serving

pytestmark = [pytest.mark.live, pytest.mark.timeout(800)]


ECHOES = "echoes-the-key"


def word() -> str:
    return f"planted-{uuid.uuid4().hex}"


def settings_with(folder: Path, url: str, words: dict[str, str]) -> Path:
    """Write the scripted team, with API workers that have a secret in each possible setting."""
    settings = yaml.safe_load((ROOT / "cluster/scripted.yaml").read_text())
    api: dict[str, Any] = {"kind": "openai", "api_key_env": "OPENAI_API_KEY", "extra_body": {"token": words["extra_body"]}, "retry": {"attempts": 1}}  # fmt: skip
    places = {"gpt": ("m", f"{url}/v1"), "wrong": (ECHOES, f"{url}/v1"), "gone": ("m", "http://127.0.0.1:1/v1"), "metadata": ("m", "http://169.254.169.254/v1")}  # fmt: skip
    settings["workers"] += [
        api | {"name": name, "model": model, "base_url": base} for name, (model, base) in places.items()
    ]
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def answer_with_the_key(request: Request) -> Answer:
    """Quote the sent key, as some providers do."""
    if request.body["model"] != ECHOES:
        return Answer()
    return Answer(status=401, error=f"Incorrect API key provided: {request.headers.get('authorization')}")


@dataclass
class Keyed:
    """Server as `make serve` starts it beyond loopback, with an administrator's key and an application's key."""

    process: subprocess.Popen[str]
    port: int
    settings: Path
    store: dict[str, str]
    keys: dict[str, str]
    planted: dict[str, str]
    words: dict[str, str]
    spans: Receiver
    upstream: WireServer
    began_s: float

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    began_s, planted, port, folder = secrets.now_s(), secrets.planted(), free_port(), tmp_path_factory.mktemp("keyed")  # fmt: skip
    words, store = {"extra_body": word()}, {"PODIUM_STORE_URL": f"sqlite:///{folder / 'podium.db'}"}
    keys = {"boss": make_key(store, "boss", "--scopes", "admin"), "app": make_key(store, "app")}
    keys["unknown"] = ApiKey.make().reveal()
    with (
        receiving() as spans,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serving(OpenAIWire())) as upstream,
    ):
        upstream.respond = answer_with_the_key
        settings = settings_with(folder, upstream.url, words)
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{spans.port}", "OTEL_BSP_SCHEDULE_DELAY": "200"}  # fmt: skip
        with secrets.serving(settings, port, planted | store | env, "--host", "0.0.0.0") as process:
            yield Keyed(process, port, settings, store, keys, planted, words, spans, upstream, began_s)


def test_a_server_beyond_loopback_requires_a_key(keyed: Keyed) -> None:
    assert open_and_closed(keyed.url, keyed.keys["boss"]) == OPEN_AND_CLOSED
    sockets = [each for process in processes_of(f"{ROOT}:{keyed.port}:") for each in process.net_connections("inet")]  # fmt: skip
    listening = [each.laddr for each in sockets if each.status == psutil.CONN_LISTEN]
    assert {each.ip for each in listening if each.port == keyed.port} == {"0.0.0.0"}
    beyond = {each.port for each in listening if each.ip not in secrets.LOOPBACK}
    assert beyond == {keyed.port}, "the replicas' own ports are HAProxy's alone"
    headers = {"authorization": f"Bearer {keyed.keys['app']}", "host": "podium.example.com"}
    assert httpx.get(f"{keyed.url}/v1/models", headers=headers).status_code == 200, "any name is served"


async def test_every_run_is_a_json_line_in_the_servers_log(keyed: Keyed) -> None:
    body = {"model": "a", "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
    assert status(f"{keyed.url}/v1/chat/completions", keyed.keys["app"], body) == 200
    log = ROOT / "build" / f"serve-{keyed.port}.log"

    def lines() -> list[dict[str, Any]]:
        entries = [json.loads(line) for line in re.findall(r"(\{\"time\".*\})", log.read_text())]
        return [line for line in entries if line.get("model") == "a"]

    await until(lines, "a line of the run", within_s=60)
    assert lines()[0]["message"] == "workflow finished"
    assert re.fullmatch(r"[0-9a-f]{32}", lines()[0]["trace_id"])


async def test_secrets_appear_in_no_log_record_trace_or_error(keyed: Keyed) -> None:
    quoted = {"key in a prompt": f"sk-proj-{uuid.uuid4().hex}A1"}
    """Secret of a known form, which is redacted in all copies of the prompt."""
    prompts = {name: word() for name in ("question", "system prompt")}
    outputs = await ask_everything(keyed.url, keyed.keys, prompts, quoted["key in a prompt"])
    sent = keyed.upstream.requests
    assert sent[0].body["token"] == keyed.words["extra_body"], "it was sent where it should"
    texts = (prompts | quoted).values()
    assert all(any(prompt in str(each.body) for each in sent) for prompt in texts)
    await asyncio.to_thread(keyed.spans.wait_for, outputs.trace_id, lambda spans: len(spans) >= 2)
    all_secrets = keyed.planted | keyed.words | keyed.keys | quoted
    files = files_of(keyed.store["PODIUM_STORE_URL"])
    places = {keyed.settings: keyed.words, **dict.fromkeys(files, prompts)}
    assert found_elsewhere(all_secrets | prompts, places, keyed.began_s) == [], "while it runs"

    keyed.process.send_signal(signal.SIGINT)
    printed, _ = await asyncio.to_thread(keyed.process.communicate, timeout=90)
    assert (keyed.process.returncode, "No process is left running" in printed) == (0, True), printed
    assert leaks(printed, all_secrets | prompts) == [], "in what it printed"
    assert leaks("".join(map(repr, keyed.spans.spans)), all_secrets | prompts) == [], "in a trace"
    assert leaks(outputs.errors, all_secrets) == [], "in an error"
    assert leaks(outputs.records, all_secrets) == [], "in a record"
    assert found_elsewhere(all_secrets | prompts, places, keyed.began_s) == [], "after Ctrl-C"


def files_of(store_url: str) -> list[Path]:
    """Return the database of a SQLite store and the files that SQLite writes next to it."""
    database = store_url.removeprefix("sqlite:///")
    return [Path(database + end) for end in ("", "-wal", "-shm")]


def found_elsewhere(planted: dict[str, str], places: dict[Path, dict[str, str]], since_s: float) -> list[str]:
    """Return the files that contain a planted text outside its allowed place."""
    own = {f"{path}: {name}" for path, names in places.items() for name in names}
    return [each for each in secrets.files_with(planted, since_s) if each not in own]


class Outputs:
    def __init__(self) -> None:
        self.errors, self.records, self.trace_id = "", "", ""


async def ask_everything(url: str, keys: dict[str, str], prompts: dict[str, str], quoted: str) -> Outputs:
    """Start runs that answer, fail and are rejected, with each key. Collect their records with the administrator's
    key.
    """
    outputs = Outputs()
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
                statuses.setdefault(model, answer.status_code)  # a stream may start before it fails
                outputs.errors += answer.text
                if model == "gpt" and not stream:
                    outputs.trace_id = answer.json()["podium"]["trace_id"]
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
                outputs.errors += answer.text
        listed = (await ask(keys["boss"], "GET", "/v1/workflows?limit=100")).json()["data"]
        assert len(listed) >= 10
        for each in listed:
            for path in (f"/v1/workflows/{each['id']}", f"/v1/workflows/{each['id']}/events"):
                outputs.records += (await ask(keys["boss"], "GET", path)).text
    return outputs


def leaks(text: str, planted: dict[str, str]) -> list[str]:
    return [name for name, value in planted.items() if value.rpartition("=")[2] in text]
