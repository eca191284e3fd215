"""A migration that is killed before each of its statements that change something, in turn, while others write to the
database: nobody is left with half a schema, and nothing that was written is lost.

`python -m loadtest.prove.migration`, told an address on its standard input, kills itself before the first such statement, the
second and so on, each time in a process of its own, until one comes to its end; it prints how many were killed.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from sqlalchemy import event, text
from sqlalchemy.engine import Engine

from conductor.errors import StoreUnavailable
from loadtest.prove.audit import rows
from loadtest.rig import ROOT, RigError
from loadtest.rig.routers import url_of
from serving.database.address import Address, parse_address
from serving.database.database import Database
from serving.database.migrate import find_version, migrate, newest_version

FIRST = "0001"
ADD = "INSERT INTO team (id, name, made_us) VALUES (:id, :id, 1)"
PAUSE_S = 0.005
READING = ("SELECT", "PRAGMA")
"""Statements that change nothing."""


async def kill_migrations(address: Address) -> tuple[int, int, int]:
    """Over the empty database at `address`: how many migrations were killed, how many left another schema than the
    one of before, and how many rows are lost that were acknowledged meanwhile.
    """
    await migrate(address, to=FIRST)
    async with Database(address) as database, _writing(database) as acknowledged:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadtest.prove.migration"),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await process.communicate(url_of(address).encode() + b"\n")
        if process.returncode:
            raise RigError("the migrations could not be started")
        killed, half = json.loads(said)
    async with Database(address) as database:
        found = {row[0] for row in await rows(database, "SELECT id FROM team")}
    return killed, half, len(set(acknowledged) - found)


@asynccontextmanager
async def _writing(database: Database) -> AsyncGenerator[list[str]]:
    """Somebody who adds rows without a pause; gives those that were acknowledged."""
    acknowledged: list[str] = []

    async def write() -> None:
        while True:
            id = f"team_{len(acknowledged)}"
            async with database.writing() as connection:
                await connection.execute(text(ADD), {"id": id})
            acknowledged.append(id)
            await asyncio.sleep(PAUSE_S)

    task = asyncio.create_task(write())
    try:
        yield acknowledged
    finally:
        await asyncio.sleep(0.1)
        task.cancel()
        with suppress(asyncio.CancelledError, StoreUnavailable):
            await task


def _migrate_until(statement: int, address: Address) -> None:
    """Migrate, and die before that statement of those that change something."""
    executed = 0

    def count(_: object, __: object, written: str, *___: object) -> None:
        nonlocal executed
        executed += not written.lstrip().upper().startswith(READING)
        if executed == statement:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", count)
    asyncio.run(migrate(address))


async def _version(address: Address) -> str | None:
    async with Database(address) as database, database.reading() as connection:
        return await connection.run_sync(find_version)


def main() -> None:
    """See the module."""
    address = parse_address(sys.stdin.readline().strip())
    killed = half = 0
    while True:
        child = os.fork()
        if child == 0:
            _migrate_until(killed + 1, address)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            break
        killed += 1
        half += asyncio.run(_version(address)) != FIRST
    half += asyncio.run(_version(address)) != newest_version()
    sys.stdout.write(json.dumps([killed, half]) + "\n")


if __name__ == "__main__":
    main()
