"""`make demo` and `make serve`, as a newcomer types them (set-up aside). Named to run before the shared engines are up."""

import asyncio
import os
import sqlite3
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psutil
import pytest
import yaml

from cluster.local.processes import ServeError, free_port, processes_of
from cluster.local.server import Server
from serving.database.address import sqlite_address
from serving.database.migrate import VERSION_TABLE, migrate
from tests import secrets
from tests.conftest import PODIUM, ROOT
from tests.live.test_secrets import listening_beyond_loopback

pytestmark = [pytest.mark.live, pytest.mark.timeout(800)]


def watch_ports(demo: "subprocess.Popen[str]", tag: str) -> tuple[str, set[str], set[str]]:
    """What a program says until it ends; the names of its processes that listen, and which of them beyond loopback."""
    names, beyond = set[str](), set[str]()
    while True:
        try:
            return demo.communicate(timeout=2)[0], names, beyond
        except subprocess.TimeoutExpired:
            for process in processes_of(tag):
                with suppress(psutil.Error):
                    names |= {process.name()} if process.net_connections(kind="tcp") else set()
                    beyond |= set(listening_beyond_loopback([process]))


def test_the_demo_shows_plan_answer_cost_and_trace_ends_0_and_leaves_no_secret_and_no_memory(
    tmp_path: Path,
) -> None:
    settings = yaml.safe_load((ROOT / "cluster/local.yaml").read_text())
    for worker in settings["workers"]:
        if "api_key_env" in worker:
            worker["in_pool"] = False  # no plan is to ask a provider with a planted key
    path = tmp_path / "local.yaml"
    path.write_text(yaml.safe_dump(settings))
    began_s, planted, unused = secrets.now_s(), secrets.planted(), secrets.unused_shared_memory()
    port = free_port()
    command = [PODIUM, "demo", "--port", str(port), "--settings", str(path)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | planted, **pipes) as demo:
        said, names, beyond = watch_ports(demo, f"{ROOT}:{port}:")
    assert demo.returncode == 0, said
    for shown in ("step", "answer", "cost", "trace"):
        assert shown in said.lower()
    assert any("VLLM" in name for name in names), names
    assert beyond == set()
    assert secrets.files_with(planted, began_s) == []
    assert secrets.unused_shared_memory() <= unused


def test_a_port_in_use_is_named_with_the_process_that_holds_it_and_the_remedy() -> None:
    with Server(settings=ROOT / "cluster/scripted.yaml", port=0) as server:
        with pytest.raises(ServeError, match=r"(?s)pid \d+.*PORT="):
            Server(settings=ROOT / "cluster/scripted.yaml", port=server.port).__enter__()
        assert httpx.get(f"{server.url}/healthz").status_code == 200
    assert not processes_of(server.tag)


def test_of_two_servers_started_at_once_on_one_port_one_is_refused() -> None:
    port = free_port()

    def start(_: int) -> str | None:
        try:
            with Server(settings=ROOT / "cluster/scripted.yaml", port=port) as server:
                other_is_told.wait(60)
                return None if server.is_ready() else "it is not ready"
        except ServeError as error:
            other_is_told.set()
            return str(error)

    other_is_told = threading.Event()
    with ThreadPoolExecutor() as both:
        told = list(both.map(start, range(2)))
    assert sorted(word is None for word in told) == [False, True], told
    assert f"PORT={port + 1}" in next(filter(None, told))


def test_settings_that_cannot_be_used_end_the_start_with_their_fault() -> None:
    path = ROOT / "build" / f"bad-{os.getpid()}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text("workers: [{name: a, kind: scripted, colour: red}]")
    try:
        with pytest.raises(ServeError, match="colour"):
            Server(settings=path, port=0).__enter__()
    finally:
        path.unlink()


def test_a_store_of_another_version_ends_the_start_before_ray_is_started(tmp_path: Path) -> None:
    address = sqlite_address(tmp_path / "podium.db")
    env = {"PODIUM_STORE_URL": f"sqlite:///{address.path}"}
    for to, said in (("0005", "`podium store migrate`"), (None, "a newer one wrote it")):
        asyncio.run(migrate(address, to=to))
        if to is None:
            with closing(sqlite3.connect(address.path)) as connection, connection:
                connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
        server = Server(settings=ROOT / "cluster/scripted.yaml", port=0, env=env, log=tmp_path / "log")
        with pytest.raises(ServeError, match=said):
            server.__enter__()
        assert "ray" not in server.log.read_text().lower()
