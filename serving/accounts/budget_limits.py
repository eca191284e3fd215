"""Budgets of keys and teams: set their limits and read what was spent.

A new limit also applies to the current day and month, because spending is counted even without a limit.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from sqlalchemy import ColumnElement, and_, delete, or_, select

from serving.accounts.hold import Period, days_and_months
from serving.accounts.money import to_pico, to_usd
from serving.database.database import Database
from serving.database.inserts import insert_into
from serving.database.schema import budget, spend_window


@dataclass(frozen=True, slots=True)
class Spending:
    """Spending of a key or a team in the current day or month. `limit_usd` is None if there is no limit."""

    period: Period
    limit_usd: Decimal | None
    spent_usd: Decimal
    held_usd: Decimal

    @property
    def left_usd(self) -> Decimal | None:
        """Amount that is neither spent nor reserved, or None if there is no limit.

        It can be negative, for example if a call cost more than was reserved for it.
        """
        return None if self.limit_usd is None else self.limit_usd - self.spent_usd - self.held_usd

    @property
    def resets_at(self) -> datetime:
        """Start of the next day or month (UTC)."""
        return next_start(self.period, datetime.now(UTC))


def next_start(period: Period, now: datetime) -> datetime:
    """Return the start of the day or month after `now`."""
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "day":
        return today + timedelta(days=1)
    return (today.replace(day=28) + timedelta(days=4)).replace(day=1)


@dataclass(frozen=True, slots=True)
class Balance:
    """Amount that is left of the tightest budget, its owner (`key` or `team`) and its period."""

    usd: Decimal
    owner: str
    period: Period


def least_balance(budgets: Mapping[str, Iterable[Spending]]) -> Balance | None:
    """Return the smallest remaining amount of the budgets of `key` and `team`, or None if there is no limit."""
    amounts = [
        Balance(each.left_usd, owner, each.period)
        for owner, windows in budgets.items()
        for each in windows
        if each.left_usd is not None
    ]
    return min(amounts, key=lambda each: each.usd, default=None)


async def set_budget(database: Database, subject: str, period: Period, limit_usd: Decimal | None) -> None:
    """Set or remove the limit of a subject (`hold.key_subject`, `hold.team_subject`). Raise ValueError if it
    is not valid.
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
    """Return the spending and limits of a key or a team in the current day and month."""
    day, month = days_and_months(time.time_ns() // 1000)
    starts: dict[Period, int] = {"day": day, "month": month}
    window, under_way = spend_window.c, or_(*(_is_window(*each) for each in starts.items()))
    caps = select(budget.c.period, budget.c.cap).where(budget.c.subject == subject)
    spending_query = select(window.period, window.spent, window.held).where(
        window.subject == subject, under_way
    )
    async with database.reading() as connection:
        cap_of = {row.period: row.cap for row in await connection.execute(caps)}
        spent_of = {row.period: (row.spent, row.held) for row in await connection.execute(spending_query)}
    windows: list[Spending] = []
    for period in starts:
        cap, (spent_pico, held_pico) = cap_of.get(period), spent_of.get(period, (0, 0))
        limit_usd = None if cap is None else to_usd(cap)
        windows.append(Spending(period, limit_usd, to_usd(spent_pico), to_usd(held_pico)))
    return windows


def _is_window(period: Period, starts: int) -> ColumnElement[bool]:
    return and_(spend_window.c.period == period, spend_window.c.starts == starts)
