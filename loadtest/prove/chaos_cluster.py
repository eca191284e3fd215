"""Ray on three nodes of this machine, started as `ray start` does on three machines, with Podium on them. The head runs Ray's own
processes, Serve's controller and the proxy, and no replica; each of the two workers has a router and a replica of each engine.

Each process inherits two variables: the cluster's tag, by which it is found and ended, and the number of its node. All nodes have
one address, of loopback; so there is one proxy, on the head. Knows nothing of workflows, nor of who is killed.
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
from cluster.local.processes import (
    HAPROXY_PORTS,
    HOST,
    ROOT,
    TAG,
    end,
    free_port,
    processes_of,
)
from loadtest.rig import Json, RigError
from loadtest.rig.routers import LOGS

NODE = "PODIUM_PROVE_NODE"
"""The variable with a process's node."""
ADDRESS = "127.0.0.2"
"""Of every node. Ray takes 127.0.0.1 for "this machine", and puts the address of its network card in its place."""
HEAD, WORKERS = 0, (1, 2)
APPLICATION = "application"
"""The program that deploys it; it runs on the head."""
STARTS_WITHIN_S = 300.0
ENDS_WITHIN_S = 10.0
OF_ONE_MACHINE = (
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",  # that a node is all of its cluster
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S",
)
"""What `make serve` sets and no cluster does."""


class ChaosCluster:
    """Three nodes that serve, until the end of the block.

    Args:
        settings: what is served.
        replicas: of each deployment; no worker node has two of one.
        uses_haproxy: as clusters do; else Serve's own proxy.
        redis: the URL of the Redis that keeps what the head knows; empty: a killed head ends the cluster.
        log: gets the output of all.

    Raises:
        RigError: it did not start, or a node did not.
    """

    def __init__(
        self,
        settings: Json,
        replicas: Mapping[str, int],
        *,
        uses_haproxy: bool = True,
        redis: str = "",
        log: Path = LOGS / "chaos.log",
    ) -> None:
        self._settings, self._replicas, self.uses_haproxy, self.log = settings, replicas, uses_haproxy, log
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
        # A token of its own: `ray start`, other than a local server, makes none on a machine where Ray never ran.
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
        """The database that the routers share."""
        assert self._folder is not None, "it runs"
        return self._folder.path / "podium.db"

    @property
    def _token(self) -> Path:
        assert self._folder is not None
        return self._folder.path / "auth_token"

    def processes(self, node: int | None = None) -> list[psutil.Process]:
        """Those that live, of one node or of all."""
        return [each for each in processes_of(self.tag) if node is None or _node_of(each) == node]

    def replace_node(self, node: int) -> None:
        """Start a new node in the place of one whose processes were all killed. The head has no need of the program that
        deployed the application, and died with it.
        """
        self._started[node].wait()
        if node in WORKERS:
            self._start_worker(node)
        else:
            if (program := self._started.pop(APPLICATION, None)) is not None:  # it died with the first head
                program.wait()
            assert self._folder is not None
            (self._folder.path / "ray" / "ray_current_cluster").unlink()  # a new machine has none
            self._start_head()

    def start_again(self, node: int) -> None:
        """Start a worker node again whose start has ended by itself, as whoever keeps machines up does: Ray gives a node
        half a minute for it, which a machine that is busy may not do it in.
        """
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
            # Two that start at once would take the same name for their socket, since Ray counts those in its folder; and a node
            # is given half a minute for its start, which a slow machine needs for one.
            await self._wait(lambda node=node: self._nodes_up() > node, f"node {node}")
        run = ["-m", "ray.serve.scripts", "run", "--app-dir", str(ROOT), str(self._write_config())]
        self._run(APPLICATION, run, {NODE: f"{HEAD}", "RAY_ADDRESS": f"{ADDRESS}:{self._gcs}"})
        await self.wait_until_whole()

    def _nodes_up(self) -> int:
        """How many have said so."""
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
            "-m",
            "ray.scripts.scripts",
            "start",
            "--block",
            f"--node-ip-address={ADDRESS}",
            "--num-gpus=0",
        ]
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
                start_new_session=True,  # Ctrl-C is for the proof, which ends them
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
        """Until each node has its replicas again, and nothing is missing.

        Raises:
            RigError: it took too long.
        """
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
            raise RigError(f"{what} did not start; the log is {self.log}")

    def _stop(self, has_failed: bool) -> None:
        """Every process, and what is started while they end."""
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
    """By deployment and state."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError, ValueError):
        async with session.get(f"{url}/v1/replicas") as answer:
            return (await answer.json()).get("replicas", {})
    return {}


def _node_of(process: psutil.Process) -> int | None:
    with contextlib.suppress(psutil.Error, OSError):
        return int(process.environ().get(NODE, "-1"))
    return None
