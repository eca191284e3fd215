"""Compare Podium with other gateways, which are the bench's peers. `proxies.py` describes a round.

Every gateway is in front of the same upstream on the same machine, and they take turns. Podium runs in
production mode, behind HAProxy.

* LiteLLM's proxy is compared with Podium's pass-through. Each has one worker process. `litellm.lock` lists
  its packages explicitly. Its `proxy` extra requires packages that the proxy does not need and that a mirror
  may lack (granian).
* smg, a gateway in Rust, is compared with Podium with every feature that costs time. The comparison is not
  like for like. Podium checks a key, reserves and settles a team's budget, and records every run (SQLite).
  smg passes requests on, on as many threads as there are cores, without any of that and without
  orchestration.
* The empty ingress of Ray Serve reads the body and answers a constant of the answer's size. No ingress of Ray
  Serve can serve more requests. It is behind the same HAProxy as Podium.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import aiohttp
import yaml

from loadtest.bench.figures import Figure, figure
from loadtest.bench.proxies import (
    BODY,
    CLIENTS,
    ROUND_S,
    SEQUENTIAL,
    Processes,
    ProxyRound,
    ProxySide,
    compare,
    measure_round,
    warm_up,
)
from loadtest.rig import HOST, ROOT
from loadtest.rig.client import CHAT, BenchClient, open_session
from loadtest.rig.closed_loop import rate_per_s, times_ms
from loadtest.rig.databases import sqlite_address
from loadtest.rig.processes import BUILD, echo_upstream, free_port, make_environment, subprocess_server
from loadtest.rig.ray_server import (
    BASELINE,
    BenchServer,
    fill_settings,
    listening_at,
    podium,
    production_environment,
    production_server,
    running,
)
from loadtest.rig.routers import make_key, url_of

ROUNDS = 5
CAP_USD = Decimal(1_000_000)
MODEL = "m"


@dataclass(frozen=True)
class Peer:
    """Gateway in an environment of its own. This module imports nothing from it.

    Args:
        ready: the path that answers with 200 once it is up.
        options: a function that returns its command line from the address of the upstream and its own port.
        env: additional environment variables.
    """

    name: str
    ready: str
    options: Callable[[str, int], list[str]]
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def lock(self) -> Path:
        """Lock file, which names every package with the hashes of its files."""
        return Path(__file__).with_name(f"{self.name}.lock")

    @property
    def venv(self) -> Path:
        """Environment, which `install` makes."""
        return ROOT / "build" / self.name

    async def install(self) -> None:
        """Make the environment if it does not exist yet. Call this before a server is started, because it
        needs the CPU for minutes.

        Raises:
            RigError: the packages cannot be installed.
        """
        locked = ("--no-deps", "--require-hashes", "-r", str(self.lock))
        await asyncio.to_thread(make_environment, self.venv, *locked)

    @asynccontextmanager
    async def serve(self, upstream: str) -> AsyncGenerator[str]:
        """Run the gateway as one process in front of `upstream`, and yield its address.

        It serves the upstream as the model `m`. The environment must exist.
        """
        port = free_port()
        command = [str(self.venv / "bin" / self.name), *self.options(upstream, port)]
        async with subprocess_server(
            self.name, command, port, path=self.ready, env=self.env, within_s=120
        ) as url:
            yield url


def _litellm_options(upstream: str, port: int) -> list[str]:
    config = BUILD / "litellm.yaml"
    parameters = {"model": f"openai/{MODEL}", "api_base": f"{upstream}/v1", "api_key": "none"}
    served = [{"model_name": MODEL, "litellm_params": parameters}]
    config.write_text(yaml.safe_dump({"model_list": served, "litellm_settings": {"telemetry": False}}))
    where = ["--config", str(config), "--host", HOST, "--port", str(port)]
    return [*where, "--num_workers", "1", "--telemetry", "False"]


def _smg_options(upstream: str, port: int) -> list[str]:
    where = ["--host", HOST, "--port", str(port), "--worker-urls", upstream]
    # The echo upstream lists no models. smg calls the model of such a worker `unknown`.
    alias = ["--model-alias", f"{MODEL}=unknown"]
    quiet = ["--history-backend", "none", "--log-level", "warn"]
    metrics = ["--prometheus-host", HOST, "--prometheus-port", str(free_port())]
    return ["launch", *where, *alias, *quiet, *metrics]


LITELLM = Peer(
    "litellm",
    "/health/liveliness",
    _litellm_options,
    {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise it fetches prices from GitHub at start
        "LITELLM_LOG": "ERROR",
        "DO_NOT_TRACK": "1",
    },
)
SMG = Peer("smg", "/readiness", _smg_options)


def litellm_figures(rounds: Sequence[ProxyRound]) -> list[Figure]:
    """Compute the ratios of each round and their medians."""
    upstream = figure("upstream_rps", [each["upstream"].rps for each in rounds])
    return [*compare("podium", "litellm", rounds), upstream]


def smg_figures(rounds: Sequence[ProxyRound]) -> list[Figure]:
    """Compute the ratios of each round and their medians."""
    added_ms = [each["ingress"].p50_ms - each["upstream"].p50_ms for each in rounds]
    return [
        *compare("metered", "smg", rounds),
        figure("metered_rps_over_ingress", [each["metered"].rps / each["ingress"].rps for each in rounds]),
        figure("ingress_rps_over_smg", [each["ingress"].rps / each["smg"].rps for each in rounds]),
        figure("ingress_rps", [each["ingress"].rps for each in rounds]),
        figure("ingress_added_p50_ms", added_ms),
        figure("smg_upstream_rps", [each["upstream"].rps for each in rounds]),
    ]


async def measure_litellm(session: aiohttp.ClientSession, tick: Callable[[], None]) -> list[Figure]:
    """Compare Podium with LiteLLM for `ROUNDS` rounds, after a warm-up."""
    await LITELLM.install()
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(echo_upstream())
        server = await stack.enter_async_context(running(production_server(f"{upstream}/v1")))
        peer = await stack.enter_async_context(LITELLM.serve(upstream))
        urls = {"podium": server.url, "litellm": peer, "upstream": upstream}
        clients = {name: BenchClient(session, url) for name, url in urls.items()}
        processes: dict[str, Processes] = {
            "podium": lambda: [server.router()],
            "litellm": lambda: listening_at(peer),
        }
        for client in clients.values():
            await warm_up(client)
        rounds: list[ProxyRound] = []
        for number in range(ROUNDS):
            rounds.append(await measure_round(clients, processes, number))
            tick()
    return litellm_figures(rounds)


async def measure_smg(tick: Callable[[], None]) -> list[Figure]:
    """Compare Podium with smg and the empty ingress for `ROUNDS` rounds. Takes about three minutes."""
    await SMG.install()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        upstream = await stack.enter_async_context(echo_upstream())
        ours, bare, server = await stack.enter_async_context(_running_podium(f"{upstream}/v1", folder))
        peer = await stack.enter_async_context(SMG.serve(upstream))
        urls = {"smg": peer, "upstream": upstream}
        clients = {"metered": ours} | {name: BenchClient(bare.session, url) for name, url in urls.items()}
        processes: dict[str, Processes] = {
            "metered": lambda: [server.router()],
            "smg": lambda: listening_at(peer),
        }
        for client in clients.values():
            await warm_up(client)
        path = f"/bare/{len(await clients['upstream'].post(CHAT, BODY))}"
        rounds: list[ProxyRound] = []
        for number in range(ROUNDS):
            sides = await measure_round(clients, processes, number)
            rounds.append({**sides, "ingress": await _measure_ingress(bare, path)})
            tick()
    return smg_figures(rounds)


@asynccontextmanager
async def _running_podium(
    upstream: str, folder: Path
) -> AsyncGenerator[tuple[BenchClient, BenchClient, BenchServer]]:
    """Run Podium and the empty ingress. Yield a client with a key, one of the ingress, and the server."""
    address = sqlite_address(folder / "podium.db")
    key = await make_key(address, CAP_USD)
    settings = fill_settings("paid.yaml", UPSTREAM=upstream)
    env = production_environment() | {"PODIUM_STORE_URL": url_of(address)}
    server = BenchServer("paid", [podium("podium", "/", settings), BASELINE], env=env)
    async with running(server), open_session(key.headers) as paying, open_session() as session:
        yield BenchClient(paying, server.url), BenchClient(session, server.url), server


async def _measure_ingress(client: BenchClient, path: str) -> ProxySide:
    """Measure the empty ingress, which has no streams."""
    p50_ms = median(await times_ms(lambda: client.post(path, BODY), SEQUENTIAL))
    rps = await rate_per_s(lambda: client.post(path, BODY), CLIENTS, ROUND_S)
    return ProxySide(p50_ms, first_token_ms=0.0, rps=rps, streams_per_s=0.0)
