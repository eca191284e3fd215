"""Faults that stop a server before or while Ray starts: each check separately, and one through the command."""

import asyncio
import os
import socket
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from cluster.local.child import check
from cluster.local.processes import HOST, ROOT, ServeError, claim, free_port, processes_of
from cluster.local.server import APP, Server
from serving import edge
from serving.database.address import StoreError, sqlite_address
from serving.database.migrate import VERSION_TABLE, migrate
from serving.settings.settings import SettingsError
from tests.conftest import PODIUM
from tests.serving.api_pools import KEYS

SCRIPTED = [APP, f"settings={ROOT}/cluster/scripted.yaml"]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a new store, with no provider's key set."""
    path = tmp_path / "podium.db"
    monkeypatch.setenv("PODIUM_STORE_URL", f"sqlite:///{path}")
    monkeypatch.setenv(edge.VARIABLE, "")
    for variable in KEYS.values():
        monkeypatch.delenv(variable, raising=False)
    return path


def test_invalid_settings_are_rejected_with_their_fault(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("workers: [{name: a, kind: scripted, colour: red}]")
    with pytest.raises(SettingsError, match="colour"):
        check(HOST, [APP, f"settings={path}"])
    check(HOST, SCRIPTED)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("claude", ", because its API key is not set. Set ANTHROPIC_API_KEY."),
        ("clod", ". No worker has this name."),
    ],
)
def test_an_unsuitable_conductor_is_rejected_with_the_remedy(
    name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    with pytest.raises(SettingsError) as refused:
        check(HOST, [APP, f"settings={ROOT}/cluster/api.yaml", f"conductor={name}"])
    expected = f"'{name}' cannot be the conductor{reason} These workers can be the conductor: gpt (API key: OPENAI_API_KEY), gpt-fast"
    assert expected in refused.value.message


def test_a_store_with_another_schema_version_is_rejected(store: Path) -> None:
    address = sqlite_address(store)
    asyncio.run(migrate(address, to="0005"))
    with pytest.raises(StoreError, match="`podium store migrate`"):
        check(HOST, SCRIPTED)
    asyncio.run(migrate(address))
    check(HOST, SCRIPTED)
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(StoreError, match="a newer version of Podium wrote"):
        check(HOST, SCRIPTED)


def test_a_port_in_use_is_reported_with_its_process_and_the_remedy() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ServeError, match=rf"(?s)pid {os.getpid()} .*PORT={port + 1}"):
            Server(port=port).__enter__()


def test_two_servers_cannot_start_on_one_port_at_the_same_time() -> None:
    port = free_port()
    with claim(port), pytest.raises(ServeError, match=f"is using or starting on port {port}.\nServe on another port: make serve PORT={port + 1}"):  # fmt: skip
        Server(port=port).__enter__()
    with claim(port):
        pass


@pytest.mark.live
def test_a_slow_start_of_ray_ends_with_a_message_and_no_processes(tmp_path: Path) -> None:
    no_time = {"RAY_gcs_server_port_wait_time_s": "0"}
    server = Server(settings=f"{ROOT}/cluster/scripted.yaml", port=0, env=no_time, log=tmp_path / "serve.log")
    with pytest.raises(ServeError, match="this machine is too busy or too slow"):
        server.__enter__()
    assert "Traceback" not in server.log.read_text()
    assert processes_of(server.tag) == []


def test_podium_serve_beyond_loopback_without_a_key_ends_before_ray_starts(store: Path) -> None:
    port = free_port()
    command = [PODIUM, "serve", "--settings", "cluster/scripted.yaml", "--host", "0.0.0.0", "--port", str(port)]  # fmt: skip
    ended = subprocess.run([*command, "--fast"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "podium keys create NAME --scopes admin" in ended.stderr
    assert not store.exists()
    assert "local Ray instance" not in (ROOT / "build" / f"serve-{port}.log").read_text(), "as Ray says first"
