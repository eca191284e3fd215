"""Budgets of keys and teams, and what is spent of them: for administration.

A budget holds at once, for the windows under way too, because everything is counted from their start.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from sqlalchemy import ColumnElement, and_, delete, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from serving.accounts.money import to_pico, to_usd
from serving.accounts.rates import Period, days_and_months
from serving.database.database import Database
from serving.database.schema import budget, spend_window


@dataclass(frozen=True, slots=True)
class Spending:
    """A window under way; `limit_usd` None: none."""

    period: Period
    limit_usd: Decimal | None
    spent_usd: Decimal
    held_usd: Decimal

    @property
    def left_usd(self) -> Decimal | None:
        """What may still be held: below 0 if a bill was higher than its hold; None if there is no limit."""
        return None if self.limit_usd is None else self.limit_usd - self.spent_usd - self.held_usd

    @property
    def resets_at(self) -> datetime:
        """When the next window begins, UTC."""
        now = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if self.period == "day":
            return now + timedelta(days=1)
        return (now.replace(day=28) + timedelta(days=4)).replace(day=1)


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of the budget that leaves least.

    Args:
        usd: see `Spending.left_usd`.
        whose: `key` or `team`.
        period: of the budget.
    """

    usd: Decimal
    whose: str
    period: Period


def least_left(budgets: Mapping[str, Iterable[Spending]]) -> Left | None:
    """Return what is left of the tightest budget, or None if nothing is limited.

    Args:
        budgets: the windows of `key` and `team`.
    """
    left = [
        Left(each.left_usd, whose, each.period)
        for whose, windows in budgets.items()
        for each in windows
        if each.left_usd is not None
    ]
    return min(left, key=lambda each: each.usd, default=None)


async def set_budget(database: Database, subject: str, period: Period, limit_usd: Decimal | None) -> None:
    """Limit what `subject` (see `windows.key_subject`, `team_subject`) may spend in each period; None: not.

    Raises:
        ValueError: it is no amount that can be counted.
        StoreUnavailable: the database is away.
    """
    async with database.writing() as connection:
        if limit_usd is None:
            await connection.execute(
                delete(budget).where(budget.c.subject == subject, budget.c.period == period)
            )
            return
        insert = (sqlite if database.address.kind == "sqlite" else postgresql).insert(budget)
        row = insert.values(subject=subject, period=period, cap=to_pico(limit_usd))
        await connection.execute(
            row.on_conflict_do_update(index_elements=("subject", "period"), set_={"cap": row.excluded.cap})
        )


async def read_spending(database: Database, subject: str) -> list[Spending]:
    """The day and the month under way.

    Raises:
        StoreUnavailable: the database is away.
    """
    day, month = days_and_months(time.time_ns() // 1000)
    starts: dict[Period, int] = {"day": day, "month": month}
    window, under_way = spend_window.c, or_(*(_is_window(*each) for each in starts.items()))
    caps = select(budget.c.period, budget.c.cap).where(budget.c.subject == subject)
    spent = select(window.period, window.spent, window.held).where(window.subject == subject, under_way)
    async with database.reading() as connection:
        cap_of = {row.period: row.cap for row in await connection.execute(caps)}
        spent_of = {row.period: (row.spent, row.held) for row in await connection.execute(spent)}
    found: list[Spending] = []
    for period in starts:
        cap, (spent_pico, held_pico) = cap_of.get(period), spent_of.get(period, (0, 0))
        limit_usd = None if cap is None else to_usd(cap)
        found.append(Spending(period, limit_usd, to_usd(spent_pico), to_usd(held_pico)))
    return found


def _is_window(period: Period, starts: int) -> ColumnElement[bool]:
    return and_(spend_window.c.period == period, spend_window.c.starts == starts)
