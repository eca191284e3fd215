"""Ray cluster of three nodes on this machine that runs Podium. It is started with `ray start`, as on three
machines.

The head node runs Ray's own processes, Serve's controller and the proxy, but no replica. Each of the two
worker nodes has a router and a replica of each engine.

Each process inherits two variables: the cluster's tag, by which the process is found and stopped, and the
number of its node. All nodes share one loopback address, so there is only one proxy, on the head.
"""

import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import aiohttp
import psutil
import yaml

from cluster.local.environment import fast_environment, serve_environment
from cluster.local.folder import ServerFolder, make_folder, record_shared_memory, sweep_folders
from cluster.local.processes import HAPROXY_PORTS, HOST, ROOT, TAG, end, free_port, processes_of
from loadtest.rig import Json, RigError
from loadtest.rig.routers import LOGS

NODE = "PODIUM_PROVE_NODE"
"""Environment variable with the number of the node that a process belongs to."""
ADDRESS = "127.0.0.2"
"""Address of every node. Ray replaces 127.0.0.1 with the address of the network card."""
HEAD, WORKERS = 0, (1, 2)
APPLICATION = "application"
"""Name of the program that deploys the application. It runs on the head."""
STARTS_WITHIN_S = 300.0
ENDS_WITHIN_S = 10.0
OF_ONE_MACHINE = (
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",  # tells Ray that the node is the whole cluster
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S",
)
"""Variables that `make serve` sets but a cluster does not."""


class ChaosCluster:
    """Cluster of three nodes that serves Podium while the block runs.

    Args:
        replicas: the number of replicas of each deployment, at most one per worker node.
        uses_haproxy: whether the cluster uses HAProxy, as real clusters do, and not Serve's own proxy.
        redis: the URL of the Redis that stores the head's state. With "", killing the head ends the cluster.

    Raises:
        RigError: the cluster or a node did not start.
    """

    def __init__(
        self, settings: Json, replicas: Mapping[str, int], *, uses_haproxy: bool = True, redis: str = ""
    ) -> None:
        self._settings, self._replicas, self.uses_haproxy = settings, replicas, uses_haproxy
        self.log = LOGS / "chaos.log"
        """File for the output of all processes."""
        self._redis = urlsplit(redis).netloc
        self._expected = {name: {"running": n} for name, n in replicas.items()}
        self._gcs, self._port = free_port(), free_port()
        self.url = f"http://{HOST}:{self._port}"
        self.tag = f"{ROOT}:{self._port}:{uuid.uuid4().hex}"
        self._folder: ServerFolder | None = None
        self._started: dict[int | str, subprocess.Popen[bytes]] = {}

    async def __aenter__(self) -> Self:
        sweep_folders()
        self._folder = make_folder(self.tag)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.unlink(missing_ok=True)
        # `ray start`, unlike a local server, creates no token on a machine where Ray never ran.
        self._token.write_text(secrets.token_hex(32))
        self._token.chmod(0o600)
        try:
            await self._start()
        except BaseException:
            self._stop(has_failed=True)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop(has_failed=kind is not None)

    @property
    def store(self) -> Path:
        """Database that the routers share."""
        assert self._folder is not None, "the cluster is running"
        return self._folder.path / "podium.db"

    @property
    def _token(self) -> Path:
        assert self._folder is not None
        return self._folder.path / "auth_token"

    def processes(self, node: int | None = None) -> list[psutil.Process]:
        return [each for each in processes_of(self.tag) if node is None or _node_of(each) == node]

    def replace_node(self, node: int) -> None:
        """Start a new node in place of a killed one. The program that deployed dies with the first head, and
        is not needed again.
        """
        self._started[node].wait()
        if node in WORKERS:
            self._start_worker(node)
        else:
            if (program := self._started.pop(APPLICATION, None)) is not None:
                program.wait()
            assert self._folder is not None
            # A fresh machine does not have this file.
            (self._folder.path / "ray" / "ray_current_cluster").unlink()
            self._start_head()

    def start_again(self, node: int) -> None:
        """Restart a worker node that failed to start. A busy machine may need more than Ray's limit."""
        if self._started[node].poll() is not None:
            self._start_worker(node)

    def _start_head(self) -> None:
        options = ["--head", f"--port={self._gcs}", "--num-cpus=0", "--include-dashboard=false"]
        self._start_node(HEAD, [*options, f"--ray-client-server-port={free_port()}"])

    def _start_worker(self, node: int) -> None:
        self._start_node(node, [f"--address={ADDRESS}:{self._gcs}", "--num-cpus=2"])

    async def _start(self) -> None:
        self._start_head()
        await self._wait(lambda: self._nodes_up() == 1, "Ray's head")
        for node in WORKERS:
            self._start_worker(node)
            # Start one node at a time. Two concurrent starts would choose the same socket name, because Ray
            # counts those in its folder, and a slow machine needs Ray's whole limit for one start.
            await self._wait(lambda node=node: self._nodes_up() > node, f"node {node}")
        run = ["-m", "ray.serve.scripts", "run", "--app-dir", str(ROOT), str(self._write_config())]
        self._run(APPLICATION, run, {NODE: f"{HEAD}", "RAY_ADDRESS": f"{ADDRESS}:{self._gcs}"})
        await self.wait_until_whole()

    def _nodes_up(self) -> int:
        """Return how many nodes have logged that they are up."""
        return self.log.read_bytes().count(b"Ray runtime started.")

    def _write_config(self) -> Path:
        assert self._folder is not None
        settings, config = self._folder.path / "settings.yaml", self._folder.path / "serve.yaml"
        settings.write_text(yaml.safe_dump(self._settings))
        application = {
            "name": "podium", "route_prefix": "/", "import_path": "serving.app:build_app", "args": {"settings": str(settings)},
            "deployments": [{"name": name, "max_replicas_per_node": 1} for name in self._replicas],
        }  # fmt: skip
        http = {"host": HOST, "port": self._port}
        config.write_text(
            yaml.safe_dump(
                {"proxy_location": "HeadOnly", "http_options": http, "applications": [application]}
            )
        )
        return config

    def _start_node(self, node: int, options: Sequence[str]) -> None:
        ports = ("metrics-export-port", "dashboard-agent-listen-port")
        ray = [
            "-m", "ray.scripts.scripts", "start", "--block", f"--node-ip-address={ADDRESS}", "--num-gpus=0",
        ]  # fmt: skip
        ray += ["--object-store-memory=104857600", "--disable-usage-stats"]
        more = {NODE: str(node)}
        if self._redis and node == HEAD:
            more["RAY_REDIS_ADDRESS"] = self._redis
        self._run(node, [*ray, *options, *(f"--{name}={free_port()}" for name in ports)], more)

    def _run(self, name: int | str, command: Sequence[str], more: dict[str, str]) -> None:
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env=self._environment() | more,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C goes only to the proof, which then stops them
            )
        self._started[name] = process

    def _environment(self) -> dict[str, str]:
        assert self._folder is not None
        usual = {**os.environ, **serve_environment(), **(fast_environment() if self.uses_haproxy else {})}
        usual.pop("RAY_ADDRESS", None)
        ports = (*HAPROXY_PORTS, "AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT")
        loopback = f"{usual['no_proxy']},{ADDRESS}"
        return {
            **{name: value for name, value in usual.items() if name not in OF_ONE_MACHINE},
            **{name: str(free_port()) for name in ports},
            **self._folder.environment,
            "no_proxy": loopback,
            "NO_PROXY": loopback,
            "VLLM_HOST_IP": HOST,
            "RAY_AUTH_TOKEN_PATH": str(self._token),
            TAG: self.tag,
            "PODIUM_STORE_URL": f"sqlite:///{self.store}",
        }

    async def wait_until_whole(self) -> None:
        """Wait until each node has its replicas and the application is ready, or raise RigError."""
        until = asyncio.get_running_loop().time() + STARTS_WITHIN_S
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while not (
                await _is_ready(session, self.url) and await _replicas(session, self.url) == self._expected
            ):
                self._check(asyncio.get_running_loop().time() < until, "the application")
                await asyncio.sleep(0.5)

    async def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        until = asyncio.get_running_loop().time() + STARTS_WITHIN_S
        while not is_so():
            self._check(asyncio.get_running_loop().time() < until, what)
            await asyncio.sleep(0.25)

    def _check(self, is_in_time: bool, what: str) -> None:
        if not is_in_time or any(each.poll() is not None for each in self._started.values()):
            raise RigError(f"{what[:1].upper()}{what[1:]} did not start. See the log: {self.log}")

    def _stop(self, has_failed: bool) -> None:
        """Stop every process, including those that are started while this method runs."""
        assert self._folder is not None
        record_shared_memory(self._folder.path)
        for _ in range(3):
            if not (rest := self.processes()):
                break
            end(rest, within_s=ENDS_WITHIN_S)
        for each in self._started.values():
            each.wait()
        self._folder.remove(keep_logs=self.log.with_suffix(".ray") if has_failed else None)


async def _is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError, ValueError):
        async with session.get(f"{url}/readyz") as answer:
            return (await answer.json())["status"] == "ready"
    return False


async def _replicas(session: aiohttp.ClientSession, url: str) -> Json:
    """Return the number of replicas by deployment and state."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError, ValueError):
        async with session.get(f"{url}/v1/replicas") as answer:
            return (await answer.json()).get("replicas", {})
    return {}


def _node_of(process: psutil.Process) -> int | None:
    with contextlib.suppress(psutil.Error, OSError):
        return int(process.environ().get(NODE, "-1"))
    return None
