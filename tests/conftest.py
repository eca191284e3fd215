"""Servers that tests share, each started once for the whole session and only where a test asks for it.

`local` is the embedded default: real Ray Serve, two real vLLM engines, in a Ray that this process leads, so
that a test can also ask an engine what it still works on. `scripted_server` is a Podium of its own, started
as `make serve` starts one.
"""

import tests.clock  # isort: skip # noqa: F401 # first: it replaces the functions of `time`

import asyncio
import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import settings

from cluster.local.environment import serve_environment
from cluster.local.processes import free_port
from serving.database.address import Address
from tests.databases import Postgres, make_address, make_store, running_postgres
from tests.otlp import Receiver, receiving

os.environ.update(serve_environment())  # before anything imports Ray, which reads some of it at import
os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(
    prefix="podium-tests-"
)  # no test's run is stored in this account's folder
atexit.register(shutil.rmtree, os.environ["XDG_DATA_HOME"], ignore_errors=True)
for profile, examples in (("fast", 25), ("slow", 1000)):
    settings.register_profile(profile, max_examples=examples, deadline=None)  # a busy machine is slow
settings.load_profile("fast")
pytest_plugins = ["tests.virtual_time"]
ROOT = Path(__file__).parent.parent
PODIUM = str(Path(sys.executable).with_name("podium"))
"""The installed command."""


def pytest_exception_interact(call: pytest.CallInfo[Any]) -> None:
    """A test that hung says where: pytest-timeout shows what threads do, and not what tasks wait for."""
    if call.excinfo is not None and str(call.excinfo.value).startswith("Timeout"):
        for task in [each for each in gc.get_objects() if isinstance(each, asyncio.Task) and not each.done()]:
            task.print_stack(file=sys.stderr)


def pytest_collection_finish() -> None:
    """What has been imported stays, so that who collects garbage or looks at all objects need not go through it each time."""
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes a database on SQLite, and on PostgreSQL too if it is marked `postgresql`."""
    if "database" in metafunc.fixturenames:
        both = metafunc.definition.get_closest_marker("postgresql") is not None
        metafunc.parametrize("database", ["sqlite", "postgresql"] if both else ["sqlite"], scope="function")


@dataclass(frozen=True)
class Local:
    """The embedded default, running."""

    url: str
    spans: Receiver
    metrics_port: int

    def unfinished(self, deployment: str) -> int:
        """Requests in the engine of `deployment`, as the engine counts them."""
        from ray import serve

        handle: Any = serve.get_deployment_handle(deployment, "default")
        return handle.n_unfinished.remote().result(timeout_s=10)


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    import ray
    from ray import serve

    with receiving() as spans:
        os.environ.update(
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{spans.port}",
            OTEL_BSP_SCHEDULE_DELAY="200",
            OTEL_SERVICE_NAME="podium-proxy",
        )
        from serving.app import build_app

        port, metrics_port = free_port(), free_port()
        ray.init(
            "local",
            namespace="serve",
            num_cpus=2,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            _metrics_export_port=metrics_port,
        )
        try:
            serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
            serve.run(build_app({"settings": str(_with_room_for_adapters(tmp_path_factory.mktemp("local")))}))
            yield Local(f"http://127.0.0.1:{port}", spans, metrics_port)
        finally:
            serve.shutdown()
            ray.shutdown()


def _with_room_for_adapters(folder: Path) -> Path:
    """The embedded default's settings, its conductor's engine started for adapters: not every test is to start one of its own."""
    settings = yaml.safe_load((ROOT / "cluster/local.yaml").read_text())
    conductor = next(worker for worker in settings["workers"] if worker["name"] == "conductor")
    conductor["engine"] = conductor["engine"] | {"enable_lora": True, "speculative_config": None}
    path = folder / "local.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.fixture(scope="session")
def scripted_server() -> Iterator[str]:
    from cluster.local.server import Server

    with Server(settings=ROOT / "cluster/scripted.yaml", port=0) as server:
        yield server.url


@pytest.fixture(scope="session")
def server_url(scripted_server: str) -> str:
    """For the examples."""
    return scripted_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running


@pytest.fixture
def postgres_or_none(request: pytest.FixtureRequest, database: str) -> Postgres | None:
    """The PostgreSQL server of a test that runs on PostgreSQL, or None on SQLite."""
    return request.getfixturevalue("postgres") if database == "postgresql" else None


@pytest.fixture
def store_address(postgres_or_none: Postgres | None, tmp_path: Path) -> Address:
    """A store of each kind in which nothing is kept yet."""
    return make_store(tmp_path, postgres_or_none)


@pytest.fixture
def empty_address(postgres_or_none: Postgres | None, tmp_path: Path) -> Address:
    """A database of each kind in which there is nothing, no schema either."""
    return make_address(tmp_path, postgres_or_none)


@pytest.fixture(scope="module")
def without_collector() -> Iterator[None]:
    """For modules that parse Python: up to 3.11.7 that fails when the garbage collector logs a traceback in the
    middle of it (python/cpython#106905)."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
