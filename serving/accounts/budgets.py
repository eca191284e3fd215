"""Budgets of keys and teams, and what is spent of them: for administration.

A budget holds at once, for the windows under way too, because everything is counted from their start.
"""

import time
from dataclasses import dataclass
from decimal import Decimal

from sqlalchemy import and_, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from serving.accounts.money import to_pico, to_usd
from serving.accounts.windows import Period, days_and_months
from serving.database.database import Database
from serving.database.schema import budget, spend_window


@dataclass(frozen=True, slots=True)
class Spending:
    """A window under way; `limit_usd` None: none."""

    period: Period
    limit_usd: Decimal | None
    spent_usd: Decimal
    held_usd: Decimal


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
    found: list[Spending] = []
    async with database.reading() as connection:
        for period, start in starts.items():
            cap = await connection.scalar(
                select(budget.c.cap).where(budget.c.subject == subject, budget.c.period == period)
            )
            here = and_(
                spend_window.c.subject == subject,
                spend_window.c.period == period,
                spend_window.c.starts == start,
            )
            row = (
                await connection.execute(select(spend_window.c.spent, spend_window.c.held).where(here))
            ).one_or_none()
            spent, held = row or (0, 0)
            found.append(Spending(period, None if cap is None else to_usd(cap), to_usd(spent), to_usd(held)))
    return found
