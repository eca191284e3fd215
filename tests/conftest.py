"""Fixtures and hooks of all tests: Hypothesis profiles, virtual time, databases, and the API in this process.
tests/live has the servers.
"""

from tests.virtual_time import keeps_real_time, pytest_asyncio_loop_factories, pytest_runtest_setup  # isort: skip # noqa: F401 # before all others: it replaces the functions of `time`

import asyncio
import atexit
import gc
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from cluster.local.environment import serve_environment
from serving.database.address import Address
from tests.databases import Postgres, make_address, make_store, running_postgres

os.environ.update(serve_environment())  # before any import of Ray, which reads some of it
os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(
    prefix="podium-tests-"
)  # keeps the tests' runs out of this account's folder
atexit.register(shutil.rmtree, os.environ["XDG_DATA_HOME"], ignore_errors=True)
for profile, examples in (("fast", 25), ("slow", 1000)):
    settings.register_profile(
        profile, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )  # a busy machine is slow
settings.load_profile("fast")
ROOT = Path(__file__).parent.parent
PODIUM = str(Path(sys.executable).with_name("podium"))
"""The installed command."""


def pytest_exception_interact(call: pytest.CallInfo[Any]) -> None:
    """Print where each task waits if a test timed out. pytest-timeout shows the threads only."""
    if call.excinfo is not None and str(call.excinfo.value).startswith("Timeout"):
        for task in [each for each in gc.get_objects() if isinstance(each, asyncio.Task) and not each.done()]:
            task.print_stack(file=sys.stderr)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests, so that the other processes do not wait for them at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(("tests/test_start.py", "tests/test_types.py")))


def pytest_collection_finish() -> None:
    """Exclude what was imported from garbage collections, which the tests of memory run often."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run the files of each folder of tests/live in one process, because they share a server."""
    from xdist.scheduler import LoadScopeScheduling

    class ByServer(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            shared = re.match("tests/live/[^/.]+/", nodeid)
            return shared[0] if shared else super()._split_scope(nodeid)

    return ByServer(config, log) if config.getoption("dist") == "loadscope" else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes a database on SQLite and on PostgreSQL. PostgreSQL is slow unless it is marked `postgresql`."""
    if "database" in metafunc.fixturenames:
        both = metafunc.definition.get_closest_marker("postgresql") is not None
        marks = () if both else (pytest.mark.slow,)
        kinds = ["sqlite", pytest.param("postgresql", marks=marks)]
        metafunc.parametrize("database", kinds, scope="function")


@pytest.fixture(scope="session")
def scripted_url() -> Iterator[str]:
    """Serve the API with the scripted team on a socket of this process."""
    from anyio.from_thread import start_blocking_portal

    from serving.settings.settings import load
    from tests.serving.api.served import served

    team = served(load(ROOT / "cluster/scripted.yaml"))
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(team) as api:
        yield api.url


@pytest.fixture(scope="session")
@keeps_real_time
def postgres() -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running


@pytest.fixture
def postgres_or_none(request: pytest.FixtureRequest, database: str) -> Postgres | None:
    """Return the PostgreSQL server, or None if the test runs on SQLite."""
    return request.getfixturevalue("postgres") if database == "postgresql" else None


@pytest.fixture
def store_address(postgres_or_none: Postgres | None, tmp_path: Path) -> Address:
    """Return a store without rows, on SQLite or PostgreSQL."""
    return make_store(tmp_path, postgres_or_none)


@pytest.fixture
def empty_address(postgres_or_none: Postgres | None, tmp_path: Path) -> Address:
    """Return a database without a schema, on SQLite or PostgreSQL."""
    return make_address(tmp_path, postgres_or_none)


@pytest.fixture(scope="module")
def without_collector() -> Iterator[None]:
    """Turn the garbage collector off for tests that parse Python. Up to 3.11.7, parsing fails if the collector logs a
    traceback during it (python/cpython#106905).
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
