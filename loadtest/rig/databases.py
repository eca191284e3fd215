"""Private PostgreSQL or Redis server, for a proof, the bench or a test."""
# asyncpg has no types of its own.
# pyright: reportMissingTypeStubs=false

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import asyncpg

from cluster.local.processes import free_port
from loadtest.rig.processes import install
from serving.database.address import Address, parse_address, sqlite_address


class DatabaseKind(StrEnum):
    """Kind of database in which a router can store its runs."""

    POSTGRESQL = "postgresql"
    SQLITE = "sqlite"


KINDS = tuple(DatabaseKind)
REMEDY = "The PostgreSQL programs initdb and pg_ctl are not installed. On Debian, run `apt-get install postgresql`."
__all__ = ["Postgres", "empty_databases", "running_postgres", "sqlite_address"]
SETTINGS = "-c listen_addresses=127.0.0.1 -c unix_socket_directories= -c max_connections=60"


def programs() -> Path:
    """Return the folder of PostgreSQL's programs. Install missing ones, if this account may."""
    folder = _find_programs()
    if folder is None:
        install("postgresql")
        folder = _find_programs()
    if folder is None:
        raise SystemExit(REMEDY)
    return folder


def _find_programs() -> Path | None:
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(":")]
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((each for each in folders if (each / "initdb").exists() and (each / "pg_ctl").exists()), None)


class Postgres:
    """PostgreSQL server of this process. If it is durable, commits survive a power cut (fsync)."""

    def __init__(self, folder: Path, *, is_durable: bool = True) -> None:
        self._settings = SETTINGS if is_durable else f"{SETTINGS} -c fsync=off"
        self._bin, self._data, self.port = programs(), folder / "data", free_port()
        as_root = os.geteuid() == 0  # initdb refuses to run as root
        self._as = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"] if as_root else []
        if as_root:
            shutil.chown(folder, "postgres", "postgres")
        options = [
            "-A", "trust", "-U", "podium", "--no-sync", "--no-instructions", "--locale=C.UTF-8", "-E", "UTF8",
        ]  # fmt: skip
        self._run("initdb", "-D", str(self._data), *options)
        self.start()

    def start(self) -> None:
        log = self._data.with_name("log")
        options = ("-l", str(log), "-o", f"-p {self.port} {self._settings}")
        self._run("pg_ctl", "-D", str(self._data), "-w", *options, "start")

    def stop(self) -> None:
        """Stop the server immediately, as in a crash."""
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")

    def make_database(self, template: str = "template1") -> Address:
        return asyncio.run(self._make_database(template))

    async def _make_database(self, template: str) -> Address:
        connect: Any = asyncpg.connect  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        connection: Any = await connect(self._dsn("postgres"))
        count = await connection.fetchval("SELECT count(*) FROM pg_database")
        await connection.execute(f"CREATE DATABASE store_{count} TEMPLATE {template}")
        await connection.close()
        return parse_address(self._dsn(f"store_{count}"))

    def _dsn(self, database: str) -> str:
        return f"postgresql://podium@127.0.0.1:{self.port}/{database}"

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as, str(self._bin / program), *arguments]
        subprocess.run(command, cwd="/", check=True, stdout=subprocess.DEVNULL, timeout=60)


@contextmanager
def running_postgres(*, is_durable: bool = True) -> Generator[Postgres]:
    """Run a PostgreSQL server in a temporary folder while the block runs. See `Postgres` for the argument."""
    folder = Path(tempfile.mkdtemp(prefix="podium-postgres-"))
    postgres = Postgres(folder, is_durable=is_durable)
    try:
        yield postgres
    finally:
        postgres.stop()
        shutil.rmtree(folder)


async def empty_database(kind: str, postgres: Postgres | None, folder: Path) -> Address:
    if kind == "sqlite" or postgres is None:
        return sqlite_address(folder / "podium.db")
    return await asyncio.to_thread(postgres.make_database)


async def empty_databases(kinds: Sequence[str], each: int = 1) -> AsyncGenerator[tuple[str, int, Address]]:
    """Yield `each` empty databases of every kind, with their number from 1. One is valid until the next."""
    with ExitStack() as stack:
        postgres: Postgres | None = None
        if "postgresql" in kinds:
            postgres = await asyncio.to_thread(stack.enter_context, running_postgres())
        for kind in kinds:
            for number in range(1, each + 1):
                with tempfile.TemporaryDirectory() as folder:
                    yield kind, number, await empty_database(kind, postgres, Path(folder))


@contextmanager
def running_redis() -> Generator[str]:
    """Run a Redis server without persistence while the block runs. Yield its URL."""
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
    """Return the path of `redis-server`. Install Redis if it is missing and this account may do so."""
    install("redis-server")
    path = shutil.which("redis-server")
    if path is None:
        raise SystemExit("redis-server is not installed. On Debian, run `apt-get install redis-server`.")
    return path
