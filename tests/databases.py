"""Real databases for tests: one PostgreSQL for the session, a database of its own for each test; a SQLite
file.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.local.processes import free_port
from prove.databases import Postgres
from prove.databases import running_postgres as running_durable_postgres
from serving.database.address import Address, sqlite_address


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """One with a folder of its own, gone afterwards. It survives no power cut, and is faster for it."""
    with running_durable_postgres(is_durable=False) as postgres:
        yield postgres


@contextmanager
def running_redis() -> Iterator[str]:
    """A Redis with nothing on disk, gone afterwards; gives its address."""
    program = shutil.which("redis-server") or _install_redis()
    port = free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(command, cwd="/tmp", stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "Ready to accept connections" in line:
                break
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def _install_redis() -> str:
    """Where this account may install it without being asked, it does."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "-y", "redis-server"]):
            subprocess.run(["apt-get", *command], env=environment, capture_output=True, check=False)
    found = shutil.which("redis-server")
    assert found is not None, "These tests need redis-server. Debian: `apt-get install redis-server`."
    return found


def make_address(folder: Path, postgres: Postgres | None) -> Address:
    """An empty database: in `postgres`, else a SQLite file in `folder`."""
    return postgres.make_database() if postgres else sqlite_address(folder / "data" / "podium.db")
