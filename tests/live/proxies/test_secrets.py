"""Remains of a server: no secret in a file, no port beyond loopback, no file and no process.

`pytest tests/test_start.py tests/live -k secret` runs the whole search: with Serve's proxy, with HAProxy, with keys,
with a start that fails, and with the embedded default and its engines. These tests end their servers, so they are the
last of their folder.
"""

import asyncio
import stat
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from cluster.local.folder import folders
from cluster.local.processes import ROOT, processes_of
from tests import secrets
from tests.live.proxies.conftest import Proxied

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


async def ask(url: str, model: str) -> int:
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "Why?"}]}
    async with httpx.AsyncClient(timeout=60) as client:
        return (await client.post(f"{url}/v1/chat/completions", json=body)).status_code


def folder_of(port: int) -> Path:
    (folder,) = [path for path in folders() if (path / "tag").read_text().startswith(f"{ROOT}:{port}:")]
    return folder


def in_rays_usual_folder(pid: int, since_s: float) -> bool:
    """Return whether the process has a session in Ray's default folder since `since_s`. Older sessions belong to
    other processes with the same number.
    """
    return any(path.stat().st_mtime >= since_s for path in Path("/tmp/ray").glob(f"session_*_{pid}"))


async def test_a_server_uses_its_secrets_and_leaves_none_in_any_file(proxied: Proxied) -> None:
    server, planted, began_s = proxied.server, proxied.planted, proxied.began_s
    statuses = [await ask(proxied.url, model) for model in ("gpt", "claude", "gemini", "podium-mini")]
    assert statuses == [200, 502, 502, 200]
    assert proxied.upstream.requests[0].headers["authorization"] == f"Bearer {planted['OPENAI_API_KEY']}"
    folder = folder_of(server.port)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    sockets = {stat.S_IMODE(path.stat().st_mode) for path in folder.glob("h/*/admin.sock")}
    assert sockets == ({0o600} if proxied.fast else set())
    running = processes_of(server.tag)
    assert len(running) > 5
    assert secrets.listening_beyond_loopback(running) == []
    assert not any(secret in " ".join(each.cmdline()) for each in running for secret in planted.values())
    assert secrets.files_with(planted, began_s) == [], "while it runs"

    assert await asyncio.to_thread(server.stop), f"{server.killed} had to be killed"
    assert secrets.files_with(planted, began_s) == [], "after its end"
    assert (processes_of(server.tag), folder.exists()) == ([], False)
    assert not [each.pid for each in running if in_rays_usual_folder(each.pid, began_s)]
    assert stat.S_IMODE(server.log.stat().st_mode) == 0o600
