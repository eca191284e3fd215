"""Administration of the budgets of keys and teams, and of what is spent of them.

A new budget also applies to the current day and month, because everything in them is already counted.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from sqlalchemy import ColumnElement, and_, delete, or_, select

from serving.accounts.money import to_pico, to_usd
from serving.accounts.rates import Period, days_and_months
from serving.database.database import Database
from serving.database.inserts import insert_into
from serving.database.schema import budget, spend_window


@dataclass(frozen=True, slots=True)
class Spending:
    """Current window of a budget. `limit_usd` is None if there is no limit."""

    period: Period
    limit_usd: Decimal | None
    spent_usd: Decimal
    held_usd: Decimal

    @property
    def left_usd(self) -> Decimal | None:
        """Amount that may still be held, or None if there is no limit. Negative if a bill exceeded its hold."""
        return None if self.limit_usd is None else self.limit_usd - self.spent_usd - self.held_usd

    @property
    def resets_at(self) -> datetime:
        """Start of the next window (UTC)."""
        now = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if self.period == "day":
            return now + timedelta(days=1)
        return (now.replace(day=28) + timedelta(days=4)).replace(day=1)


@dataclass(frozen=True, slots=True)
class Left:
    """Amount that is left of the tightest budget.

    Args:
        usd: see `Spending.left_usd`.
        whose: owner of the budget, `key` or `team`.
        period: period of the budget.
    """

    usd: Decimal
    whose: str
    period: Period


def least_left(budgets: Mapping[str, Iterable[Spending]]) -> Left | None:
    """Return what is left of the tightest budget, or None if nothing is limited.

    Args:
        budgets: windows of `key` and `team`.
    """
    amounts = [
        Left(each.left_usd, whose, each.period)
        for whose, windows in budgets.items()
        for each in windows
        if each.left_usd is not None
    ]
    return min(amounts, key=lambda each: each.usd, default=None)


async def set_budget(database: Database, subject: str, period: Period, limit_usd: Decimal | None) -> None:
    """Set or remove the limit of what `subject` may spend in each period.

    Args:
        database: database of the store.
        subject: see `rates.key_subject` and `rates.team_subject`.
        period: period of the limit.
        limit_usd: limit in US dollars. None removes the limit.

    Raises:
        ValueError: the limit is not a valid amount.
        StoreUnavailable: the database cannot be reached.
    """
    async with database.writing() as connection:
        if limit_usd is None:
            await connection.execute(
                delete(budget).where(budget.c.subject == subject, budget.c.period == period)
            )
            return
        row = insert_into(database.address.kind, budget).values(
            subject=subject, period=period, cap=to_pico(limit_usd)
        )
        await connection.execute(
            row.on_conflict_do_update(index_elements=("subject", "period"), set_={"cap": row.excluded.cap})
        )


async def read_spending(database: Database, subject: str) -> list[Spending]:
    """Return what `subject` has spent in the current day and month.

    Raises:
        StoreUnavailable: the database cannot be reached.
    """
    day, month = days_and_months(time.time_ns() // 1000)
    starts: dict[Period, int] = {"day": day, "month": month}
    window, under_way = spend_window.c, or_(*(_is_window(*each) for each in starts.items()))
    caps = select(budget.c.period, budget.c.cap).where(budget.c.subject == subject)
    spent = select(window.period, window.spent, window.held).where(window.subject == subject, under_way)
    async with database.reading() as connection:
        cap_of = {row.period: row.cap for row in await connection.execute(caps)}
        spent_of = {row.period: (row.spent, row.held) for row in await connection.execute(spent)}
    windows: list[Spending] = []
    for period in starts:
        cap, (spent_pico, held_pico) = cap_of.get(period), spent_of.get(period, (0, 0))
        limit_usd = None if cap is None else to_usd(cap)
        windows.append(Spending(period, limit_usd, to_usd(spent_pico), to_usd(held_pico)))
    return windows


def _is_window(period: Period, starts: int) -> ColumnElement[bool]:
    return and_(spend_window.c.period == period, spend_window.c.starts == starts)
