"""`podium prove chaos`: kill processes (SIGKILL) of a real three-node Ray cluster on this machine while
workflows run.

The victims are a router, a replica of an engine, the process of a real engine, the proxy, the controller, or
a whole worker node, which is then replaced. With `--redis`, the whole head is killed too.

There is one row per kind of victim. The exit code is 1 if an incomplete answer looked complete, if the record
of a killed router's run is not `lost`, or if a run that must outlive its client did not finish.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated

import yaml
from typer import BadParameter, Option

from cluster.local.environment import Proxy
from cluster.local.server import SETTINGS as LOCAL_SETTINGS
from loadtest.prove.audit import UNDER_WAY, one, rows
from loadtest.prove.chaos_cluster import ChaosCluster
from loadtest.prove.chaos_load import ENDED, LOST, ChaosLoad, ChaosResult
from loadtest.prove.chaos_victims import NODE, kill_one, kinds_of, processes, wait_until_replaced
from loadtest.prove.proof import cells, conclude
from loadtest.rig import ROOT, Json, poll
from loadtest.rig.client import open_session
from loadtest.rig.databases import running_redis
from loadtest.rig.routers import LOGS, prepare_process, scripted
from podium.command_line.options import parse_count
from podium.command_line.program import Program
from serving.database.address import sqlite_address
from serving.database.database import Database
from serving.database.migrate import open_database

ENGINE_WORDS = 30
WORDS = " ".join(f"word{n}" for n in range(ENGINE_WORDS))
TWO: Json = {"min_replicas": 2, "max_replicas": 2, "num_cpus": 0.1}
STAND_IN: Json = {
    "name": "engine",
    "kind": "vllm",
    "model": "none",  # never read
    "max_concurrency": 1000,
    "stand_in": {"first_token_s": 0.05, "tokens_per_s": 10, "slots": 1000, "answer_tokens": ENGINE_WORDS},
    "scale": TWO | {"max_ongoing_requests": 1000},
}
SETTINGS: Json = {
    "workers": [scripted("first", "A reason.", delay_s=0.05), scripted("slow", WORDS, tokens_per_s=10)],
    "workflows": {
        "scripted": [{"worker": "first"}, {"worker": "slow", "subtask": "Say it.", "access": [0]}],
        "with-engine": [{"worker": "first"}, {"worker": "engine", "subtask": "Say it.", "access": [0]}],
    },
    "router": TWO | {"drain_s": 5},
}
ROUTER, ENGINE = "router", "vllm-engine"
OF_LOCAL_SETTINGS = "writer"
"""Name of the worker in cluster/local.yaml that runs the real engine."""
KILLED_AFTER_S = 4.0
"""Seconds from the first request to the kill. Most answers have started by then."""
SETTLES_WITHIN_S = 60.0
WITH_ITS_ROUTER = frozenset({"router", NODE})
"""Kinds of victims that take a router with them, and so interrupt the connections of its runs."""
DURABLE_RUNS = "SELECT status, count(*) FROM run WHERE kept = 1 GROUP BY status"
STATUS = "SELECT status FROM run WHERE id = :id"
UNFINISHED = "SELECT id FROM run WHERE kept = 1 AND made_us > :since AND status <> 'finished'"
UNFINISHED_RECORDS = LOGS / "chaos-unfinished.jsonl"
"""File with the records of runs that should have outlived their clients but did not finish, one per line."""


@dataclass(frozen=True)
class ChaosRow:
    """Result of a round, and the kind of its victim."""

    killed: str
    result: ChaosResult

    @property
    def is_right(self) -> bool:
        """True if the round kept all promises."""
        return self.result.is_right(LOST if self.killed in WITH_ITS_ROUTER else ENDED)


def settings_with(worker: Json) -> Json:
    return SETTINGS | {"workers": [*SETTINGS["workers"], worker]}


def replicas_of(settings: Json) -> dict[str, int]:
    (engine,) = [each for each in settings["workers"] if each["kind"] == "vllm"]
    return {ROUTER: settings["router"]["min_replicas"], ENGINE: engine["scale"].get("min_replicas", 1)}


def engine_settings() -> Json:
    """Return settings with the shipped model, configured as for `make serve` with a fallback."""
    local: list[Json] = yaml.safe_load((ROOT / LOCAL_SETTINGS).read_text())["workers"]
    (worker,) = [each for each in local if each["name"] == OF_LOCAL_SETTINGS]
    more = {
        "name": "engine",
        "max_output_tokens": ENGINE_WORDS,
        "max_concurrency": 1000,
        "fallbacks": ["slow"],
        "try_first": [],
    }
    return worker | more


async def play_round(cluster: ChaosCluster, database: Database, kind: str, workflows: int) -> ChaosResult:
    """Kill one process of `kind` while `workflows` workflows run."""
    await cluster.wait_until_whole()
    before, alive = dict(await rows(database, DURABLE_RUNS)), len(processes(cluster, kind))
    began_us = time.time_ns() // 1000
    async with open_session() as session:
        load = ChaosLoad(session, cluster.url)
        work = asyncio.create_task(load.run(workflows))
        await asyncio.sleep(KILLED_AFTER_S)
        kill = kill_one(cluster, kind)
        load.killed_s = kill.at_s
        load.result.process_replaced_s = await wait_until_replaced(cluster, kind, alive, kill)
        await work
    result = load.result
    result.still_running = await poll(
        lambda: one(database, UNDER_WAY), lambda n: n == 0, within_s=SETTLES_WITHIN_S, every_s=0.5
    )
    after = dict(await rows(database, DURABLE_RUNS))
    result.durable_runs = {
        name: n - before.get(name, 0) for name, n in after.items() if n > before.get(name, 0)
    }
    for ids, counted in (
        (result.broken_ids, result.records_of_broken_runs),
        (result.accepted_ids, result.accepted_background_runs),
    ):
        for id in ids:
            (status,) = [each[0] for each in await rows(database, STATUS, id=id)] or ["no record"]
            counted[status or "running"] += 1
    await _write_unfinished(cluster, database, began_us)
    return result


async def _write_unfinished(cluster: ChaosCluster, database: Database, since_us: int) -> None:
    """Append the records of this round's unfinished runs to `UNFINISHED_RECORDS` for diagnosis."""
    async with open_session() as session:
        for (id,) in await rows(database, UNFINISHED, since=since_us):
            async with session.get(f"{cluster.url}/v1/workflows/{id}") as answer:
                with UNFINISHED_RECORDS.open("ab") as file:
                    file.write(await answer.read() + b"\n")


async def prove(
    kinds: Sequence[str], rounds: int, workflows: int, settings: Json, uses_haproxy: bool, redis: str = ""
) -> list[ChaosRow]:
    """Run `rounds` rounds of each kind, on one cluster."""
    rows: list[ChaosRow] = []
    async with (
        ChaosCluster(settings, replicas_of(settings), uses_haproxy=uses_haproxy, redis=redis) as cluster,
        await open_database(sqlite_address(cluster.store)) as database,
    ):
        for kind in (kind for _ in range(rounds) for kind in kinds):
            rows.append(ChaosRow(kind, await play_round(cluster, database, kind, workflows)))
            print(*cells(rows[-1]), sep=" | ", flush=True)
    return rows


main = Program("podium prove chaos")


@main.command(help=__doc__, epilog="Example: podium prove chaos --workflows 50")
def run(
    rounds: Annotated[int, Option(parser=parse_count, help="rounds per kind of process")] = 1,
    workflows: Annotated[int, Option(parser=parse_count, help="workflows per round")] = 200,
    kinds: Annotated[
        str | None, Option(help="kinds of processes to kill, separated by commas", show_default="all")
    ] = None,
    real_engine: Annotated[
        bool, Option("--real-engine", help="run vLLM instead of a scripted engine")
    ] = False,
    proxy: Annotated[Proxy, Option(help="proxy in front of the routers")] = "haproxy",
    redis: Annotated[
        bool, Option("--redis", help="store the head's state in Redis, and also kill the head")
    ] = False,
) -> int:
    has_haproxy = proxy == "haproxy"
    allowed = kinds_of(has_haproxy=has_haproxy, has_engine=real_engine, has_redis=redis)
    names = kinds.split(",") if kinds else allowed
    if unknown := set(names) - set(allowed):
        raise BadParameter(
            f"unknown kinds: {', '.join(sorted(unknown))}. Choose from {', '.join(allowed)}.",
            param_hint="--kinds",
        )
    prepare_process()
    settings = settings_with(engine_settings() if real_engine else STAND_IN)
    with running_redis() if redis else nullcontext("") as address:
        results = asyncio.run(prove(names, rounds, workflows, settings, has_haproxy, address))
    return conclude(results, f"Processes killed while {workflows} workflows ran")
