"""Paged list of stored runs, with a bounded time per request.

The search starts with the newest runs. It goes back in windows of many runs, until the page is full or the
time is up. If a filter matches only one old run among a million, the client therefore sends several short
requests instead of one long one.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, case, func, literal, select, tuple_

from serving.accounts.caller import Caller
from serving.database.schema import ledger, run, run_text, suspended_run
from serving.store.queries import among, conditions, visible
from serving.store.run_filter import RunFilter
from serving.store.store import Place

FIRST_RUNS = 1_000
"""Number of runs in the first window. It is small, because most searches are for recent runs."""
MOST_RUNS = 50_000
"""Maximum number of runs in a window. Each window is four times as large as the one before."""
ENOUGH_S = 0.3
"""Seconds after which no further window is searched."""

Ask = Callable[[Select[*tuple[Any, ...]]], Awaitable[Sequence[Row[Any]]]]
"""Function that executes a query."""


async def list_rows(
    ask: Ask,
    limit: int,
    caller: Caller,
    before: Place | None,
    run_filter: RunFilter,
    enough_s: float = ENOUGH_S,
) -> tuple[list[Row[Any]], Place | None]:
    """Return the newest runs that `caller` may see, before `before`, and where the next page starts, or None
    at the end.

    The rows have the columns `status`, `numbers`, `made_us`, `id`, `billed` and `question`. After `enough_s`, no further
    window is searched.
    """
    base = (visible(caller), *among(run_filter))
    filters = conditions(run_filter)
    rows: list[Row[Any]] = []
    began_s, window = time.monotonic(), FIRST_RUNS
    while True:
        end = await _end_of_window(ask, base, before, window) if filters else None
        query = _newest_first(*base, *filters, *_between(end, before)).limit(limit + 1 - len(rows))
        rows += await ask(query)
        if len(rows) > limit:
            return rows[:limit], (rows[limit - 1].made_us, rows[limit - 1].id)
        if end is None or time.monotonic() - began_s >= enough_s:
            return rows, end
        before, window = end, min(4 * window, MOST_RUNS)


async def _end_of_window(
    ask: Ask, base: tuple[ColumnElement[bool], ...], before: Place | None, n_runs: int
) -> Place | None:
    """Return the position of the last run in a window of `n_runs` runs, or None if fewer runs are left."""
    query = select(run.c.made_us, run.c.id).where(*base, *_between(None, before))
    query = query.order_by(run.c.made_us.desc(), run.c.id.desc()).offset(n_runs - 1).limit(1)
    row = next(iter(await ask(query)), None)
    return (row.made_us, row.id) if row else None


def _newest_first(*where: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    billed = select(func.sum(ledger.c.amount)).where(ledger.c.run_id == run.c.id).scalar_subquery()
    is_lost = case((run.c.status == "lost", billed)).label("billed")
    ended, waiting = (
        select(table.c.question).where(table.c.run_id == run.c.id).scalar_subquery()
        for table in (run_text, suspended_run)
    )
    columns = (
        run.c.status,
        run.c.numbers,
        run.c.made_us,
        run.c.id,
        is_lost,
        func.coalesce(ended, waiting).label("question"),
    )
    query = select(*columns).where(*where)
    return query.order_by(run.c.made_us.desc(), run.c.id.desc())


def _between(end: Place | None, before: Place | None) -> list[ColumnElement[bool]]:
    """Return the SQL conditions for runs from the position `end` (inclusive) up to `before` (exclusive)."""
    position = tuple_(run.c.made_us, run.c.id)
    bounds: list[ColumnElement[bool]] = []
    if end is not None:
        bounds.append(position >= tuple_(literal(end[0]), literal(end[1])))
    if before is not None:
        bounds.append(position < tuple_(literal(before[0]), literal(before[1])))
    return bounds
