"""`podium prove lists`: time to read a page of the list of runs if a million runs are stored.

The proof measures each filter, and a page after the first 500,000 runs. The rows are copies of one real run,
written by the database itself. One row per database and query. Exits with 1 if the 95th percentile of a query
is above `--limit-ms`.
"""

import asyncio
import functools
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from sqlalchemy import text
from typer import Option

from conductor.run.record import Account, Record, RunRecords
from conductor.run.task import Task
from loadtest import percentile
from loadtest.rig.databases import DatabaseKind, running_postgres
from podium.command_line.options import parse_count
from podium.command_line.process import machine
from podium.command_line.program import Program
from podium.command_line.terminal import console, table
from serving.accounts.caller import ANONYMOUS, DEFAULT_SCOPES, Caller
from serving.accounts.replica_store import ReplicaStore
from serving.database.address import Address, sqlite_address
from serving.settings.sections import LimitSettings
from serving.store.database_store import DatabaseStore
from serving.store.rows import run_row
from serving.store.run_filter import ANY_RUN, RunFilter

PAGE = 50
MADE_US = 1_700_000_000_000_000
COLUMNS = "id, team_id, key_id, model, status, owner, made_us, ended_us, cost, input_tokens, output_tokens, kept, body_bytes, numbers"
VALUES = """'wf_' || {n}, 'team_' || ({n} % 100), 'key_' || ({n} % 500), 'm' || ({n} % 7),
    CASE WHEN {n} % 50 = 0 THEN 'failed' ELSE 'finished' END, 'r', {made} + {n} * 1000, {made} + {n} * 1000 + 5, ({n} % 1000) * 1000000000,
    100, 50, 0, 0, {numbers}"""
SERIES = {
    "sqlite": "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {most}) ",
    "postgresql": "WITH s AS (SELECT generate_series(1::bigint, {most}) AS n) ",
}
FILL = (
    "{series} INSERT INTO run ({columns}) SELECT {values} FROM s",
    "{series} INSERT INTO run_worker (run_id, worker, made_us) SELECT 'wf_' || n, 'w' || (n % 5), {made} + n * 1000 FROM s",
    "{series} INSERT INTO run_text (run_id, text, question) SELECT 'wf_' || n, 'question number ' || n || ' about the sky', 'Question number ' || n FROM s",
)


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Query of the list of runs that `caller` may see.

    Args:
        page: 0 for the first page, or any other value for a page in the middle of the list.
    """

    name: str
    run_filter: RunFilter = ANY_RUN
    caller: Caller = ANONYMOUS
    page: int = 0


MINE = Caller(Account("key_7", "team_7"), DEFAULT_SCOPES)
QUESTIONS = (
    ListQuery("newest runs, as administrator"),
    ListQuery("newest runs, as a team", caller=MINE),
    ListQuery("after 500,000 runs", page=-1),
    ListQuery("status failed", RunFilter(status="failed")),
    ListQuery("model", RunFilter(model="m3")),
    ListQuery("model that has no runs", RunFilter(model="none")),
    ListQuery("worker", RunFilter(worker="w3")),
    ListQuery("cost at least", RunFilter(min_cost_usd=Decimal("0.99"))),
    ListQuery("team", RunFilter(team_id="team_42")),
    ListQuery("text in many runs", RunFilter(words="about the sky")),
    ListQuery("text in one old run", RunFilter(words="number 777 about")),
    ListQuery("text in one old run of a team", RunFilter(words="number 707 about"), MINE),
    ListQuery("rated runs, no matches", RunFilter(rated=True)),
)


async def fill(store: ReplicaStore, n_runs: int) -> None:
    kind = store.address.kind
    record = Record("wf_0", Task(()), 0.0)
    row = run_row(RunRecords(record), is_kept=False)
    numbers = f"x'{row.numbers.hex()}'" if kind == "sqlite" else f"'\\x{row.numbers.hex()}'::bytea"
    values = VALUES.format(n="n", made=MADE_US, numbers=numbers)
    series = SERIES[kind].format(most=n_runs)
    async with (await store.database()).writing() as connection:
        for statement in FILL:
            sql = statement.format(series=series, columns=COLUMNS, values=values, made=MADE_US)
            await connection.exec_driver_sql(sql)
        await connection.execute(text("ANALYZE"))


async def measure(store: DatabaseStore, question: ListQuery, n_runs: int, n_times: int) -> list[float]:
    """Read the page `n_times`, and return the milliseconds of each reading."""
    middle = (MADE_US + n_runs // 2 * 1000, "wf_")
    took: list[float] = []
    for _ in range(n_times):
        began_s = time.perf_counter()
        await store.newest(PAGE, question.caller, middle if question.page else None, question.run_filter)
        took.append(1000 * (time.perf_counter() - began_s))
    return took


async def prove(
    address: Address, n_runs: int, n_times: int, show: Callable[[str, list[float]], None]
) -> None:
    """Fill a database and run every query."""
    store = ReplicaStore(address)
    records = DatabaseStore(store, LimitSettings)
    try:
        await store.ledger()
        await fill(store, n_runs)
        for question in QUESTIONS:
            show(question.name, await measure(records, question, n_runs, n_times))
    finally:
        await records.aclose()
        await store.aclose()


main = Program("podium prove lists")


@main.command(
    help=(__doc__ or "").split("\n\n")[0], epilog="Example: podium prove lists --only sqlite --runs 10000"
)
def run(
    runs: Annotated[int, Option(parser=parse_count, help="number of stored runs")] = 1_000_000,
    times: Annotated[int, Option(parser=parse_count, help="number of readings per query")] = 20,
    limit_ms: Annotated[float, Option(help="maximum 95th percentile in milliseconds")] = 1000.0,
    only: Annotated[DatabaseKind | None, Option(help="test only this database")] = None,
) -> int:
    rows = table("database", "query", right=("p50 ms", "p95 ms"), title=f"{runs} runs; {machine()}")
    slow: list[str] = []

    def show(kind: str, name: str, took: list[float]) -> None:
        p50, p95 = percentile(took, 50), percentile(took, 95)
        rows.add_row(kind, name, f"{p50:.1f}", f"{p95:.1f}")
        slow.extend([f"{kind}: {name}"] * (p95 > limit_ms))

    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        for kind in (only,) if only else ("sqlite", "postgresql"):
            if kind == "sqlite":
                address = sqlite_address(folder / "runs.db")
            else:
                address = stack.enter_context(running_postgres(is_durable=False)).make_database()
            asyncio.run(prove(address, runs, times, functools.partial(show, kind)))
    console().print(rows)
    for each in slow:
        print(f"Query above --limit-ms: {each}", file=sys.stderr)
    return 1 if slow else 0
