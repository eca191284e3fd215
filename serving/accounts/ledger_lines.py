"""Entries of the ledger: list the newest, sum them per day like a provider's invoice, and correct one."""

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, Select, case, func, insert, or_, select, tuple_, update

from conductor.errors import BadTask, UnknownName
from serving.accounts.directory import Directory
from serving.accounts.hold import WindowId, key_subject, team_subject
from serving.database.database import Database
from serving.database.schema import ledger, spend_window

MOST_REASON_CHARS = 500


async def newest_lines(
    directory: Directory, limit: int, team_id: str | None = None, before: int | None = None
) -> Sequence[Row[Any]]:
    """Return rows of `ledger`, newest first, of all or one team, older than the id `before`."""
    query = select(ledger).order_by(ledger.c.id.desc()).limit(limit)
    if team_id is not None:
        query = query.where(ledger.c.team_id == team_id)
    if before is not None:
        query = query.where(ledger.c.id < before)
    return await directory.rows(query)


def daily_sums(first_day: int | None = None, last_day: int | None = None) -> Select[*tuple[Any, ...]]:
    """Return a query for figures that can be compared with a provider's invoice.

    It sums calls, tokens and cost by day, worker and deployment (column `account`). The column `uncertain` is
    the part of `amount` that is an upper bound or an estimate. An entry that was adjusted is not uncertain
    any more.
    """
    adjusted = select(ledger.c.corrects).where(ledger.c.corrects.is_not(None))
    is_uncertain = (ledger.c.exact == 0) & ledger.c.id.not_in(adjusted)
    is_call = ledger.c.kind.in_(("call", "lost"))
    query = (
        select(
            ledger.c.day,
            ledger.c.worker,
            ledger.c.account,
            func.sum(case((is_call, 1), else_=0)).label("calls"),
            func.coalesce(func.sum(ledger.c.input_tokens), 0).label("input_tokens"),
            func.coalesce(func.sum(ledger.c.cached_tokens), 0).label("cached_tokens"),
            func.coalesce(func.sum(ledger.c.output_tokens), 0).label("output_tokens"),
            func.sum(ledger.c.amount).label("amount"),
            func.sum(case((is_uncertain, ledger.c.amount), else_=0)).label("uncertain"),
        )
        .group_by(ledger.c.day, ledger.c.worker, ledger.c.account)
        .order_by(ledger.c.day, ledger.c.worker, ledger.c.account)
    )
    if first_day is not None:
        query = query.where(ledger.c.day >= first_day)
    return query if last_day is None else query.where(ledger.c.day <= last_day)


async def adjust(database: Database, entry_id: int, amount: int, reason: str) -> int:
    """Correct the cost of a settled or lost call by an entry with the difference to `amount` pico-dollars,
    and return it. Raise UnknownName for other entries, and BadTask for an invalid amount or reason.
    """
    if not reason.strip() or len(reason) > MOST_REASON_CHARS:
        raise BadTask(
            f"The reason of an adjustment must have 1 to {MOST_REASON_CHARS} characters.", param="reason"
        )
    if amount < 0:
        raise BadTask("The cost of a call must not be negative.", param="amount")
    async with database.writing() as connection:
        entry = (await connection.execute(select(ledger).where(ledger.c.id == entry_id))).one_or_none()
        if entry is None or entry.kind not in ("call", "lost"):
            raise UnknownName(
                f"No ledger entry of a call has the id {entry_id}. `podium ledger show` lists the entries."
            )
        subjects = [key_subject(entry.key_id)] + ([team_subject(entry.team_id)] if entry.team_id else [])
        windows = sorted(
            window
            for subject in subjects
            for window in (WindowId(subject, "day", entry.day), WindowId(subject, "month", entry.month))
        )
        at = tuple_(spend_window.c.subject, spend_window.c.period, spend_window.c.starts)
        in_order = select(spend_window).where(at.in_(windows)).order_by(*at.clauses)
        await connection.execute(
            in_order.with_for_update()
        )  # in the same order as settling, so that there is no deadlock
        is_of_it = or_(
            ledger.c.id == entry_id,
            ledger.c.corrects == entry_id,
            (ledger.c.hold_id == entry.hold_id) & (ledger.c.kind == "correction"),
        )
        before = (await connection.execute(select(func.sum(ledger.c.amount)).where(is_of_it))).scalar_one()
        difference = amount - int(before)
        if not difference:
            raise BadTask(f"Entry {entry_id} already has this amount.", param="amount")
        change = update(spend_window).where(at.in_(windows))
        await connection.execute(change.values(spent=spend_window.c.spent + difference))
        copied = ("run_id", "call_no", "key_id", "team_id", "day", "month", "worker", "account")
        facts = {name: getattr(entry, name) for name in copied}
        facts |= {"kind": "adjust", "amount": difference, "exact": 1, "above_hold": 0}
        facts |= {"at_us": time.time_ns() // 1000, "corrects": entry_id, "reason": reason.strip()}
        await connection.execute(insert(ledger).values(**facts))
    return difference
