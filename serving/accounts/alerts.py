"""Budget alerts in the store that all replicas share.

An alert is recorded when the spending of a key or a team passes a threshold, for example 80 % of its budget.
Each threshold is recorded once per day or month. Its delivery is retried by `budget_webhooks.py`.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from serving.accounts.hold import Window, WindowId, days_and_months
from serving.database.database import Database
from serving.database.inserts import RowInsert, insert_into
from serving.database.schema import api_key, budget, budget_alert, spend_window, team
from serving.database.writer import Operation

KEPT_US = 62 * 86_400_000_000
"""Microseconds until an alert is deleted: longer than a month, so that each threshold is recorded once."""
MOST_AT_ONCE = 20
KEY = budget_alert.c["subject", "period", "starts", "percent"]


@dataclass(frozen=True, slots=True)
class Alert:
    """Alert that the spending in a budget window has passed a threshold.

    Args:
        percent: the threshold in percent of the budget.
        cap, spent: the budget and the amount spent when the alert was recorded, in pico-dollars.
    """

    window: WindowId
    percent: int
    cap: int
    spent: int
    made_us: int
    tries: int
    name: str


async def notice(database: Database, percents: Collection[int]) -> int:
    """Record an alert for each threshold that was passed and has none yet. Return their number."""
    now_us = time.time_ns() // 1000
    alerts = await _new_alerts(database, percents, now_us)
    if not alerts:
        return 0
    insert = insert_into(database.address.kind, budget_alert)
    async with database.writing() as connection:
        await connection.execute(insert.on_conflict_do_nothing(), alerts)
        await connection.execute(delete(budget_alert).where(budget_alert.c.made_us < now_us - KEPT_US))
    return len(alerts)


async def _new_alerts(database: Database, percents: Collection[int], now_us: int) -> list[dict[str, object]]:
    day, month = days_and_months(now_us)
    window, alert = spend_window.c, budget_alert.c
    is_under_way = or_(
        and_(window.period == "day", window.starts == day),
        and_(window.period == "month", window.starts == month),
    )
    is_its = and_(window.subject == budget.c.subject, window.period == budget.c.period)
    least = budget.c.cap // 100 * min(percents)  # not spent * 100, which may overflow its column
    spending_query = (
        select(window.subject, window.period, window.starts, window.spent, budget.c.cap)
        .select_from(spend_window.join(budget, is_its))
        .where(is_under_way, budget.c.cap > 0, window.spent >= least)
    )
    async with database.reading() as connection:
        rows = (await connection.execute(spending_query)).mappings().all()
        if not rows:
            return []
        subjects = {row["subject"] for row in rows}
        recent_alerts = select(*KEY).where(alert.subject.in_(subjects), alert.made_us >= now_us - KEPT_US)
        recorded = {tuple(row) for row in await connection.execute(recent_alerts)}
    return [
        {**row, "percent": percent, "made_us": now_us, "next_us": now_us}
        for row in rows
        for percent in percents
        if row["spent"] * 100 >= row["cap"] * percent
        and (row["subject"], row["period"], row["starts"], percent) not in recorded
    ]


async def take_due(database: Database, percents: Collection[int], lease_us: int) -> list[Alert]:
    """Return the alerts for `percents` that are due, and count an attempt. No other replica takes them for
    `lease_us`.
    """
    alert, now_us = budget_alert.c, time.time_ns() // 1000
    is_due = (alert.done_us.is_(None)) & (alert.next_us <= now_us) & (alert.percent.in_(percents))
    async with database.reading() as connection:  # usually nothing is due, so avoid a write transaction
        if not await connection.scalar(select(func.count()).where(is_due).select_from(budget_alert)):
            return []
    due = select(budget_alert).where(is_due).order_by(alert.next_us).limit(MOST_AT_ONCE)
    async with database.writing() as connection:
        rows = (await connection.execute(due.with_for_update(skip_locked=True))).mappings().all()
        alerts: list[Alert] = []
        for row in rows:
            window = WindowId(row["subject"], row["period"], row["starts"])
            tries = row["tries"] + 1
            later = update(budget_alert).where(_is(window, row["percent"]))
            await connection.execute(later.values(next_us=now_us + lease_us, tries=tries))
            name = await _name(connection, window.subject)
            numbers = (row["percent"], row["cap"], row["spent"], row["made_us"])
            alerts.append(Alert(window, *numbers, tries, name))
        return alerts


async def put_off(database: Database, alert: Alert, next_us: int | None) -> None:
    """Schedule an alert's next attempt, or with None end its delivery."""
    values = {"done_us": time.time_ns() // 1000} if next_us is None else {"next_us": next_us}
    async with database.writing() as connection:
        its_row = update(budget_alert).where(_is(alert.window, alert.percent))
        await connection.execute(its_row.values(values))


async def _name(connection: AsyncConnection, subject: str) -> str:
    """Return the name of the key or the team, or "" if it no longer exists."""
    kind, _, id = subject.partition(":")
    table = team if kind == "team" else api_key
    return await connection.scalar(select(table.c.name).where(table.c.id == id)) or ""


def _is(window: WindowId, percent: int) -> ColumnElement[bool]:
    key = budget_alert.c
    return and_(
        key.subject == window.subject,
        key.period == window.period,
        key.starts == window.starts,
        key.percent == percent,
    )


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Budget window that had too little left for a call."""

    id: WindowId
    window: Window
    at_us: int


NOTE = RowInsert(
    budget_alert, ["subject", "period", "starts", "percent", "cap", "spent", "made_us", "next_us"]
)


def _note(connection: Connection, items: Sequence[Exhausted]) -> list[None]:
    rows = [
        (*each.id, 100, each.window.cap or 0, each.window.spent, each.at_us, each.at_us)
        for each in sorted(items, key=lambda item: item.id)  # in one order, to avoid deadlocks
    ]
    NOTE.execute(connection, rows)
    return [None] * len(items)


NOTE_EXHAUSTED: Operation[Exhausted, None] = Operation("alert for a budget", _note)
"""Operation that records that a budget is exhausted. Each budget window is recorded once."""
