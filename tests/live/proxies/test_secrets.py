"""What a server leaves on its machine: no secret in any file, no port beyond loopback, no file, no shared
memory.

`pytest tests/live/test_secrets.py tests/live/test_a_newcomer.py -k "secret"` is the whole search: with
Serve's proxy, with HAProxy, a start that fails, Ctrl-C, and the embedded default with its engines.
"""

import asyncio
import signal
import stat
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psutil
import pytest
import yaml

from cluster.local.folder import folders
from cluster.local.processes import ROOT as HERE
from cluster.local.processes import ServeError, free_port, processes_of, tag_of
from cluster.local.server import Server
from tests import secrets
from tests.wires.openai import OpenAIWire
from tests.wires.server import serving

pytestmark = [pytest.mark.live, pytest.mark.timeout(800)]
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
BEYOND_LOOPBACK: dict[str, str] = {}
"""Ports that listen on other addresses, and why they must; docs/operations.md names each. There are none."""


def settings_with_api_workers(folder: Path, url: str) -> Path:
    """The scripted team, one provider that answers and two that cannot be reached."""
    settings = yaml.safe_load((HERE / "cluster/scripted.yaml").read_text())
    settings["workers"] += [
        {"name": "gpt", "kind": "openai", "model": "m", "api_key_env": "OPENAI_API_KEY", "base_url": f"{url}/v1"},
        {"name": "claude", "kind": "anthropic", "model": "m", "api_key_env": "ANTHROPIC_API_KEY", "base_url": "http://127.0.0.1:1"},
        {"name": "gemini", "kind": "gemini", "model": "m", "api_key_env": "GEMINI_API_KEY", "base_url": "http://127.0.0.1:1"},
    ]  # fmt: skip
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


async def ask(port: int, model: str) -> int:
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "Why?"}]}
    async with httpx.AsyncClient(timeout=60) as client:
        return (await client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body)).status_code


def processes_on(port: int) -> list[psutil.Process]:
    return [process for process in processes_of(f"{HERE}:") if tag_of(process).startswith(f"{HERE}:{port}:")]


def folder_of(port: int) -> Path:
    (folder,) = [path for path in folders() if (path / "tag").read_text().startswith(f"{HERE}:{port}:")]
    return folder


def in_rays_usual_folder(pid: int, since_s: float) -> bool:
    """Whether the process has a session where Ray writes unless it is told where.

    Older sessions are other processes': numbers are used again.
    """
    return any(path.stat().st_mtime >= since_s for path in Path("/tmp/ray").glob(f"session_*_{pid}"))


def listening_beyond_loopback(processes: list[psutil.Process]) -> list[str]:
    return [
        f"{process.name()} {connection.laddr.ip}:{connection.laddr.port}"
        for process in processes
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.ip not in LOOPBACK
    ]


@pytest.mark.parametrize("flags", [(), ("--fast",)], ids=["serves-proxy", "haproxy"])
async def test_make_serve_uses_its_secrets_and_leaves_them_nowhere_and_nothing_else(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    began_s, planted, port = secrets.now_s(), secrets.planted(), free_port()
    async with serving(OpenAIWire()) as upstream:
        settings = settings_with_api_workers(tmp_path, upstream.url)
        started = secrets.serving(
            settings, port, planted | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, *flags
        )
        process = await asyncio.to_thread(started.__enter__)
        try:
            assert [await ask(port, model) for model in ("gpt", "claude", "gemini", "podium-mini")] == [
                200,
                502,
                502,
                200,
            ]
            assert upstream.requests[0].headers["authorization"] == f"Bearer {planted['OPENAI_API_KEY']}"
            folder = folder_of(port)
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert {stat.S_IMODE(path.stat().st_mode) for path in folder.glob("h/*/admin.sock")} == (
                {0o600} if flags else set()
            )
            running = processes_on(port)
            assert len(running) > 5
            assert set(listening_beyond_loopback(running)) == BEYOND_LOOPBACK.keys()
            assert not any(
                secret in " ".join(each.cmdline()) for each in running for secret in planted.values()
            )
            assert secrets.files_with(planted, began_s) == [], "while it runs"
            process.send_signal(signal.SIGINT)
            rest, _ = await asyncio.to_thread(process.communicate, timeout=90)
        finally:
            await asyncio.to_thread(started.__exit__, None, None, None)
    assert (process.returncode, "nothing is left running" in rest) == (0, True), rest
    assert secrets.files_with(planted, began_s) == [], "after Ctrl-C"
    assert (processes_on(port), folder.exists()) == ([], False)
    assert not [each.pid for each in running if in_rays_usual_folder(each.pid, began_s)]
    assert stat.S_IMODE((HERE / "build" / f"serve-{port}.log").stat().st_mode) == 0o600


def test_a_start_that_fails_leaves_rays_logs_without_secrets(tmp_path: Path) -> None:
    began_s, planted = secrets.now_s(), secrets.planted()
    path = settings_with_api_workers(tmp_path, "http://127.0.0.1:1")
    settings = yaml.safe_load(path.read_text())
    settings["workers"].append(
        {"name": "own", "kind": "python", "factory": "nowhere:make"}
    )  # the replica cannot import it
    path.write_text(yaml.safe_dump(settings))
    server = Server(settings=path, port=0, env=planted, log=tmp_path / "server.log", ready_within_s=120)
    with pytest.raises(ServeError, match="ended before it was ready") as failed:
        server.__enter__()
    assert "nowhere:make" in server.log.read_text()
    assert str(tmp_path / "server.ray") in str(failed.value)
    assert list((tmp_path / "server.ray").glob("raylet.*")), "Ray's logs are kept"
    assert stat.S_IMODE((tmp_path / "server.ray").stat().st_mode) == 0o700
    assert secrets.files_with(planted, began_s) == []
    assert not processes_of(server.tag)
