"""Keys on a real Ray Serve: made by command while it runs, asked for on both paths, and no address beyond
this machine without one.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2 as httpx
import psutil
import pytest

from cluster.local.processes import ROOT, free_port, processes_of
from cluster.local.server import Server
from serving.accounts.keys import ApiKey
from tests import secrets
from tests.conftest import PODIUM

pytestmark = [pytest.mark.live, pytest.mark.timeout(800)]
SETTINGS = ROOT / "cluster/scripted.yaml"
ASK = {"model": "podium-mini", "messages": [{"role": "user", "content": "Why?"}]}


def make_key(store: dict[str, str], *arguments: str) -> str:
    command = [PODIUM, "keys", "create", *arguments]
    made = subprocess.run(command, env=os.environ | store, capture_output=True, text=True, check=True)
    return ApiKey(made.stdout.strip()).reveal()


def status(url: str, key: str | None = None, body: object = None) -> int:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(timeout=60, trust_env=False) as client:
        return client.request("POST" if body else "GET", url, json=body, headers=headers).status_code


@pytest.mark.parametrize("flags", [(), ("--fast",)], ids=["serves-proxy", "haproxy"])
async def test_a_server_beyond_loopback_takes_a_key_and_asks_for_it(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    store = {"PODIUM_STORE_URL": f"sqlite:///{tmp_path / 'podium.db'}"}
    port, began_s = free_port(), secrets.now_s()
    command = [PODIUM, "serve", "--settings", str(SETTINGS), "--port", str(port), "--host", "0.0.0.0"]
    refused = await asyncio.to_thread(
        subprocess.run, [*command, *flags], env=os.environ | store, cwd=ROOT, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert refused.returncode == 1
    assert "podium keys create NAME --scopes admin" in refused.stderr
    assert not (tmp_path / "podium.db").exists()
    boss = await asyncio.to_thread(make_key, store, "boss", "--scopes", "admin")
    started = secrets.serving(SETTINGS, port, store, "--host", "0.0.0.0", *flags)
    process = await asyncio.to_thread(started.__enter__)
    try:
        url = f"http://127.0.0.1:{port}"
        asked = [
            await asyncio.to_thread(status, url + path, key, body)
            for path, body in (("/healthz", None), ("/readyz", None), ("/v1/models", None), ("/v1/chat/completions", ASK))
            for key in (None, boss)
        ]  # fmt: skip
        assert asked == [200, 200, 200, 200, 401, 200, 401, 200]
        listening = {
            connection.laddr.ip
            for each in processes_of(f"{ROOT}:{port}:")
            for connection in each.net_connections(kind="inet")
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
        }
        assert listening == {"0.0.0.0"}
        assert secrets.files_with({"boss": boss}, began_s) == [], "while it runs"
        process.send_signal(signal.SIGINT)
        rest, _ = await asyncio.to_thread(process.communicate, timeout=90)
    finally:
        await asyncio.to_thread(started.__exit__, None, None, None)
    assert (process.returncode, "nothing is left running" in rest) == (0, True), rest
    assert secrets.files_with({"boss": boss}, began_s) == [], "after Ctrl-C"


def test_the_first_key_closes_a_running_server_and_its_revocation_shuts_its_holder_out(
    tmp_path: Path,
) -> None:
    store = {"PODIUM_STORE_URL": f"sqlite:///{tmp_path / 'podium.db'}"}
    with Server(settings=SETTINGS, port=0, env=store, log=tmp_path / "log") as server:
        chat = f"{server.url}/v1/chat/completions"
        assert status(chat, body=ASK) == 200
        key = make_key(store, "app")
        until_401(chat)
        assert status(chat, key, ASK) == 200
        subprocess.run([PODIUM, "keys", "revoke", "app"], env=os.environ | store, check=True)
        until_401(chat, key)
        assert key not in server.log.read_text()
    check = [PODIUM, "ledger", "check"]
    assert subprocess.run(check, env=os.environ | store, stdout=sys.stderr, check=False).returncode == 0


def until_401(url: str, key: str | None = None) -> None:
    """Within the 10 s that are promised."""
    began_s = secrets.now_s()
    while status(url, key, ASK) != 401:
        assert secrets.now_s() - began_s < 10
