"""A private PostgreSQL or Redis server for a proof, the bench or a test."""
# asyncpg has no types of its own.
# pyright: reportMissingTypeStubs=false

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import asyncpg

from cluster.local.processes import free_port
from serving.database.address import Address, parse_address, sqlite_address

KINDS = ("postgresql", "sqlite")
REMEDY = "PostgreSQL's own programs are needed (initdb, pg_ctl). Debian: `apt-get install postgresql`."
__all__ = ["Postgres", "empty_databases", "running_postgres", "sqlite_address"]
SETTINGS = "-c listen_addresses=127.0.0.1 -c unix_socket_directories= -c max_connections=60"


def programs() -> Path:
    """The folder of PostgreSQL's programs; installed where this account may do so without being asked."""
    found = _find_programs()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "-y", "postgresql"]):
            subprocess.run(["apt-get", *command], env=environment, capture_output=True, check=False)
        found = _find_programs()
    if found is None:
        raise SystemExit(REMEDY)
    return found


def _find_programs() -> Path | None:
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(":")]
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((each for each in folders if (each / "initdb").exists() and (each / "pg_ctl").exists()), None)


class Postgres:
    """A running PostgreSQL.

    Args:
        folder: that its account can reach.
        is_durable: whether a commit survives a power cut, and takes as long as one that does.
    """

    def __init__(self, folder: Path, *, is_durable: bool = True) -> None:
        self._settings = SETTINGS if is_durable else f"{SETTINGS} -c fsync=off"
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
            "pg_ctl",
            "-D",
            str(self._data),
            "-w",
            "-l",
            str(log),
            "-o",
            f"-p {self.port} {self._settings}",
            "start",
        )

    def stop(self) -> None:
        """End it at once, as a crash would."""
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")

    def make_database(self, template: str = "template1") -> Address:
        """A new one, with what the database `template` has."""
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
    """One with a folder of its own, gone afterwards; see `Postgres`."""
    folder = Path(tempfile.mkdtemp(prefix="podium-postgres-"))
    postgres = Postgres(folder, is_durable=is_durable)
    try:
        yield postgres
    finally:
        postgres.stop()
        shutil.rmtree(folder)


async def empty_database(kind: str, postgres: Postgres | None, folder: Path) -> Address:
    """One of that kind, in `postgres` or in `folder`."""
    if kind == "sqlite" or postgres is None:
        return sqlite_address(folder / "podium.db")
    return await asyncio.to_thread(postgres.make_database)


async def empty_databases(kinds: Sequence[str], each: int = 1) -> AsyncGenerator[tuple[str, int, Address]]:
    """So many of each kind, one after another; a proof is about each: its kind, its number from 1 on, its address."""
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
    """One with nothing on disk, gone afterwards; gives its address, as a URL."""
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
    if found is None:
        raise SystemExit("redis-server is needed. Debian: `apt-get install redis-server`.")
    return found
