"""`make prove-chaos`: processes of a real local Ray Serve are killed (SIGKILL) while workflows run: a router replica, an engine's
replica, the proxy, the controller.

A row for each kind. Exit 1 where an answer that broke off looked whole, or a run that is to outlive its client did not
finish.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from rich.table import Table

from cluster.local.server import Server
from program.options import count
from program.process import machine, wide_console
from prove.audit import one, rows
from prove.chaos_load import Found, Load
from prove.chaos_victims import VICTIMS, kill_one, processes, wait_until_replaced
from prove.routers import Json, open_session, prepare_process
from serving.database.address import sqlite_address
from serving.database.database import Database
from serving.database.migrate import open_database

ENGINE_WORDS = 30
WORDS = " ".join(f"word{n}" for n in range(30))
SETTINGS: Json = {
    "workers": [
        {"name": "first", "kind": "scripted", "replies": ["A reason."], "delay_s": 0.05, "max_concurrency": 1000},
        {"name": "slow", "kind": "scripted", "replies": [WORDS], "tokens_per_s": 10, "max_concurrency": 1000},
        {
            "name": "engine",
            "kind": "vllm",
            "model": "none",  # never read: a stand-in
            "max_concurrency": 1000,
            "stand_in": {"first_token_s": 0.05, "tokens_per_s": 10, "slots": 1000, "answer_tokens": ENGINE_WORDS},
            "scale": {"min_replicas": 2, "max_replicas": 2, "num_cpus": 0.1, "max_ongoing_requests": 1000},
        },
    ],
    "workflows": {
        "scripted": [{"worker": "first"}, {"worker": "slow", "subtask": "Say it.", "access": [0]}],
        "with-engine": [{"worker": "first"}, {"worker": "engine", "subtask": "Say it.", "access": [0]}],
    },
    "router": {"min_replicas": 2, "max_replicas": 2, "num_cpus": 0.1, "drain_s": 5},
    "limits": {"first_byte_s": 0},
}  # fmt: skip
KILLED_AFTER_S = 4.0
"""From the first request on: most answers have begun by then."""
SETTLES_WITHIN_S = 60.0
UNDER_WAY = "SELECT count(*) FROM run WHERE ended_us IS NULL"
KEPT = "SELECT status, count(*) FROM run WHERE kept = 1 GROUP BY status"
STATUS = "SELECT status FROM run WHERE id = :id"


async def _settle(database: Database) -> None:
    """Until no run is under way, on any router."""
    async with asyncio.timeout(SETTLES_WITHIN_S):
        while await one(database, UNDER_WAY):
            await asyncio.sleep(0.5)


async def play_round(server: Server, database: Database, kind: str, workflows: int) -> Found:
    """Kill one process of `kind` among so many workflows."""
    before, alive = dict(await rows(database, KEPT)), len(processes(server.tag, kind))
    async with open_session() as session:
        load = Load(session, server.url)
        work = asyncio.create_task(load.run(workflows))
        await asyncio.sleep(KILLED_AFTER_S)
        load.note_kill(kill_one(server.tag, kind))
        load.found.replaced_s = await wait_until_replaced(server.tag, kind, alive)
        await work
    found = load.found
    try:
        await _settle(database)
    except TimeoutError:
        found.still_running = await one(database, UNDER_WAY)
    after = dict(await rows(database, KEPT))
    found.kept = {name: n - before.get(name, 0) for name, n in after.items() if n > before.get(name, 0)}
    for id in found.broken_ids:
        (status,) = [each[0] for each in await rows(database, STATUS, id=id)] or ["no record"]
        found.records[status or "running"] += 1
    return found


async def prove(kinds: Sequence[str], rounds: int, workflows: int) -> list[tuple[str, Found]]:
    """So many rounds of each kind, on one server."""
    told: list[tuple[str, Found]] = []
    with TemporaryDirectory() as folder:
        settings = Path(folder) / "settings.yaml"
        settings.write_text(yaml.safe_dump(SETTINGS))
        with Server(settings=settings, port=0) as server:
            assert server.folder is not None, "it runs"
            async with await open_database(sqlite_address(server.folder.path / "podium.db")) as database:
                for kind in kinds:
                    found = [await play_round(server, database, kind, workflows) for _ in range(rounds)]
                    told += [(kind, each) for each in found]
    return told


HEADINGS = (
    *("killed", "workflows", "finished", "clear error", "broken transfers", "not let in", "looked whole"),
    *("records of broken", "kept", "recovered", "service back, s", "replaced, s"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="make prove-chaos", description=__doc__)
    parser.add_argument("--rounds", type=count, default=3, help="of each kind (%(default)s)")
    parser.add_argument("--workflows", type=count, default=200, help="of each round (%(default)s)")
    parser.add_argument("--kinds", default=",".join(VICTIMS), help="whom to kill (%(default)s)")
    options = parser.parse_args(argv)
    kinds: list[str] = options.kinds.split(",")
    if unknown := set(kinds) - set(VICTIMS):
        parser.error(f"--kinds: {', '.join(sorted(unknown))}: must be among {', '.join(VICTIMS)}")
    prepare_process()
    told = asyncio.run(prove(kinds, options.rounds, options.workflows))
    table = Table(title=f"Killed among {options.workflows} workflows; {machine()}")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for kind, found in told:
        table.add_row(kind, *found.cells)
    wide_console().print(table)
    return 0 if all(found.is_right for _, found in told) else 1


if __name__ == "__main__":
    sys.exit(main())
