"""`podium prove records`: many runs on two routers, then one router is killed.

Durable runs are runs that must continue without their router: streams with an idempotency key, and background
runs. The other router must show the record of every run, finish the durable runs, and not repeat their finished
steps. Clients resume their streams there. One row per database. Exits with 1 if a record, a run or a word is
missing or duplicated.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import aiohttp
import orjson
from typer import Option

from loadtest.prove.audit import one, rows, wait_until_settled
from loadtest.prove.proof import Stores, conclude, for_each_store
from loadtest.rig import Json, RigError, poll
from loadtest.rig.client import open_session
from loadtest.rig.routers import (
    PRICE,
    RouterProcess,
    ask,
    make_key,
    prepare_process,
    running_routers,
    scripted,
)
from podium.command_line.options import parse_count
from podium.command_line.program import Program
from serving.database.address import Address
from serving.database.database import Database
from serving.database.migrate import open_database

WORDS = " ".join(f"word{n}" for n in range(80))
SECONDS = 8
"""Duration of the slow answer in seconds."""
HALVES_WITHIN_S = 60.0
STEPS = [
    {"worker": "first", "subtask": "Find a reason."},
    {"worker": "slow", "subtask": "Say it.", "access": [0]},
]
SETTINGS: Json = {
    "workers": [
        scripted("first", "A reason.", price=PRICE, max_output_tokens=20),
        scripted("quick", "An answer.", price=PRICE, max_output_tokens=20),
        scripted("slow", WORDS, tokens_per_s=80 / SECONDS, price=PRICE, max_output_tokens=100),
    ],
    "workflows": {
        "slow-pair": STEPS,
        "pair": [STEPS[0], {"worker": "quick", "subtask": "Say it.", "access": [0]}],
    },
    "limits": {"first_byte_s": 0},
}
HALF_WAY = """SELECT count(*) FROM run r WHERE r.ended_us IS NULL AND (SELECT max(e.last_seq) FROM run_event e WHERE e.run_id = r.id) >= 8
AND EXISTS (SELECT 1 FROM ledger l WHERE l.run_id = r.id AND l.worker = 'first')"""
"""Kept runs whose first step has ended and is on record, and whose answer has started."""
AGAIN = "SELECT count(*) FROM (SELECT 1 FROM hold WHERE worker = 'first' AND state = 'posted' GROUP BY run_id HAVING count(*) > 1) AS twice"


@dataclass
class RecordReader:
    """Client that reads an answer, and resumes reading if its router breaks."""

    run_id: str = ""
    text: str = ""
    n_resumed: int = 0


@dataclass(frozen=True)
class RecordsResult:
    database: str
    runs: int
    records_found: int
    durable_runs: int
    finished: int
    steps_called_again: int
    resumed_streams: int
    lost_or_duplicate_words: int
    seconds: float

    @property
    def is_right(self) -> bool:
        """True if nothing is missing or duplicated."""
        whole = self.records_found == self.runs and self.finished == self.durable_runs
        return (
            whole
            and not self.steps_called_again
            and not self.lost_or_duplicate_words
            and self.resumed_streams > 0
        )


async def read_stream(
    session: aiohttp.ClientSession, routers: Sequence[RouterProcess], number: int
) -> RecordReader:
    """Read a chat stream with an `Idempotency-Key`. If it breaks, the next router must start with the text
    read so far.
    """
    reader = RecordReader()
    for router in routers:
        headers = {"idempotency-key": f"stream-{number}"}
        answer = await ask(session, router.url, "slow-pair", stream=True, headers=headers)
        reader.run_id = answer.run_id or reader.run_id
        begins_alike = answer.text.startswith(reader.text)
        reader.text = answer.text if begins_alike else f"{reader.text}|{answer.text}"
        if answer.is_whole:
            break
        reader.n_resumed += 1
    return reader


async def read_events(session: aiohttp.ClientSession, routers: Sequence[RouterProcess]) -> RecordReader:
    """Follow a background run's events. After a break, continue at the next router."""
    started = await ask(session, routers[0].url, "slow-pair", background=True)
    reader, newest = RecordReader(started.run_id), "0"
    for router in routers:
        try:
            url = f"{router.url}/v1/workflows/{reader.run_id}/events"
            async with session.get(url, headers={"last-event-id": newest}) as response:
                async for line in response.content:
                    if line.startswith(b"id: "):
                        newest = line[4:].strip().decode()
                    elif line.startswith(b"data: "):
                        event = orjson.loads(line[6:])
                        reader.text += event.get("text", "") if event["type"] == "answer" else ""
                        if event["type"] == "end":
                            return reader
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass
        reader.n_resumed += 1
    return reader


async def prove(kind: str, address: Address, runs: int, n_kept: int) -> RecordsResult:
    """Run the proof over the empty database at `address`."""
    began_s = time.monotonic()
    async with await open_database(address) as database:
        key = await make_key(address)
        async with (
            running_routers(f"records-{kind}", address, SETTINGS, 2) as routers,
            open_session(key.headers) as session,
        ):
            ended = await _ask_all(session, routers, runs - n_kept)
            readers = [
                asyncio.create_task(
                    read_stream(session, routers, number) if number % 2 else read_events(session, routers)
                )
                for number in range(n_kept)
            ]
            await _wait_until_half_way(database, n_kept)
            routers[0].kill()
            read = await asyncio.gather(*readers)
            await wait_until_settled(database)
            ids = [*ended, *(reader.run_id for reader in read)]
            statuses = await asyncio.gather(*(_status(session, routers[1], id) for id in ids))
        finished = await rows(database, "SELECT id FROM run WHERE kept = 1 AND status = 'finished'")
        return RecordsResult(
            kind,
            len(set(ids)),
            statuses.count("finished"),
            n_kept,
            len(finished),
            await one(database, AGAIN),
            sum(reader.n_resumed > 0 for reader in read),
            sum(reader.text != WORDS for reader in read),
            time.monotonic() - began_s,
        )


async def _ask_all(session: aiohttp.ClientSession, routers: Sequence[RouterProcess], n: int) -> list[str]:
    """Send `n` short runs, 32 at a time, to both routers in turn. Return their ids."""
    places = asyncio.Semaphore(32)

    async def ask_one(number: int) -> str:
        async with places:
            answer = await ask(session, routers[number % 2].url, "pair")
            if not answer.is_whole:
                raise RigError(f"A run failed before the router was killed: {answer}")
            return answer.run_id

    return await asyncio.gather(*(ask_one(number) for number in range(n)))


async def _wait_until_half_way(database: Database, n_kept: int) -> None:
    n = await poll(
        lambda: one(database, HALF_WAY), lambda n: n >= n_kept, within_s=HALVES_WITHIN_S, every_s=0.1
    )
    if n < n_kept:
        raise RigError(
            f"Not all {n_kept} durable runs were half finished within {HALVES_WITHIN_S:g} s. Use a lower --kept."
        )


async def _status(session: aiohttp.ClientSession, router: RouterProcess, id: str) -> str:
    """Return a run's status from its record on `router`."""
    async with session.get(f"{router.url}/v1/workflows/{id}") as response:
        if response.status != 200:
            return str(response.status)
        record = orjson.loads(await response.read())
        if "answer" not in record:
            raise RigError(f"The record of {id!r} has no answer: {record}")
        return str(record["status"]) if record["answer"] else "without an answer"


main = Program("podium prove records")


@main.command(epilog="Example: podium prove records --store sqlite")
def run(
    store: Stores = None,
    runs: Annotated[int, Option(parser=parse_count, help="total number of runs")] = 500,
    kept: Annotated[
        int, Option(parser=parse_count, help="number of durable runs in progress when the router is killed")
    ] = 100,
) -> int:
    """Prove that runs survive when their router is killed."""
    prepare_process()
    rows = asyncio.run(for_each_store(store, partial(prove, runs=runs, n_kept=kept)))
    return conclude(rows, "Two routers, one killed")
