"""Kill a migration before each of its writing statements, in turn, while another process writes to the
database.

No kill may leave a partially changed schema or lose a row whose write was acknowledged. `python -m
loadtest.prove.migration` reads a database address from standard input. It forks a process that kills itself
before the first writing statement, then one that does so before the second, and so on, until one finishes. It
prints how many were killed.
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
"""First words of statements that change nothing."""


async def kill_migrations(address: Address) -> tuple[int, int, int]:
    """Kill migrations at each writing statement. Return the killed, those that changed the schema, and lost
    rows.
    """
    await migrate(address, to=FIRST)
    async with Database(address) as database, _writing(database) as acknowledged:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadtest.prove.migration"),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate(url_of(address).encode() + b"\n")
        if process.returncode:
            raise RigError("The migrations could not be started.")
        killed, half = json.loads(output)
    async with Database(address) as database:
        stored = {row[0] for row in await rows(database, "SELECT id FROM team")}
    return killed, half, len(set(acknowledged) - stored)


@asynccontextmanager
async def _writing(database: Database) -> AsyncGenerator[list[str]]:
    """Add rows without a pause while the block runs. Yield the ids of the acknowledged rows."""
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
    """Start the migration, and kill this process before the given writing statement."""
    executed = 0

    def count(_: object, __: object, sql: str, *___: object) -> None:
        nonlocal executed
        executed += not sql.lstrip().upper().startswith(READING)
        if executed == statement:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", count)
    asyncio.run(migrate(address))


async def _version(address: Address) -> str | None:
    async with Database(address) as database, database.reading() as connection:
        return await connection.run_sync(find_version)


def main() -> None:
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
