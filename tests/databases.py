"""Real databases for tests: one PostgreSQL for the session, a database of its own for each test; a SQLite
file.
"""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg

from cluster.local.processes import free_port
from serving.database.address import Address, parse_address, sqlite_address

REMEDY = "These tests need PostgreSQL's own programs (initdb, pg_ctl). Debian: `apt-get install postgresql`."
SETTINGS = "-c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off -c max_connections=60"


def programs() -> Path:
    """The folder of PostgreSQL's programs; installed where this account may do so without being asked."""
    found = _find_programs()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "-y", "postgresql"]):
            subprocess.run(["apt-get", *command], env=environment, capture_output=True, check=False)
        found = _find_programs()
    assert found is not None, REMEDY
    return found


def _find_programs() -> Path | None:
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(":")]
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((each for each in folders if (each / "initdb").exists() and (each / "pg_ctl").exists()), None)


class Postgres:
    """A running PostgreSQL.

    Args:
        folder: that its account can reach.
    """

    def __init__(self, folder: Path) -> None:
        self._bin, self._data, self.port = programs(), folder / "data", free_port()
        as_root = os.geteuid() == 0  # whom initdb refuses
        self._as = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"] if as_root else []
        if as_root:
            shutil.chown(folder, "postgres", "postgres")
        options = [
            "-A",
            "trust",
            "-U",
            "podium",
            "--no-sync",
            "--no-instructions",
            "--locale=C.UTF-8",
            "-E",
            "UTF8",
        ]
        self._run("initdb", "-D", str(self._data), *options)
        self.start()

    def start(self) -> None:
        """Start it, on the port it has had."""
        log = self._data.with_name("log")
        self._run(
            "pg_ctl", "-D", str(self._data), "-w", "-l", str(log), "-o", f"-p {self.port} {SETTINGS}", "start"
        )

    def stop(self) -> None:
        """End it at once, as a crash would."""
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")

    def make_database(self) -> Address:
        """A new one."""
        return asyncio.run(self._make_database())

    async def _make_database(self) -> Address:
        connection = await asyncpg.connect(self._dsn("postgres"))
        count = await connection.fetchval("SELECT count(*) FROM pg_database")
        await connection.execute(f"CREATE DATABASE store_{count}")
        await connection.close()
        return parse_address(self._dsn(f"store_{count}"))

    def _dsn(self, database: str) -> str:
        return f"postgresql://podium@127.0.0.1:{self.port}/{database}"

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as, str(self._bin / program), *arguments]
        subprocess.run(command, cwd="/", check=True, stdout=subprocess.DEVNULL, timeout=60)


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """One with a folder of its own, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="podium-postgres-"))
    postgres = Postgres(folder)
    try:
        yield postgres
    finally:
        postgres.stop()
        shutil.rmtree(folder)


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
