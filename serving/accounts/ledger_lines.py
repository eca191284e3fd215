"""The newest lines of the ledger, as they are: what each call cost, and for whom."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, select

from serving.accounts.directory import Directory
from serving.database.schema import ledger


async def newest_lines(
    directory: Directory, limit: int, team_id: str | None = None, before: int | None = None
) -> Sequence[Row[Any]]:
    """Rows of `ledger`, the newest first.

    Args:
        directory: whose store it is in.
        limit: how many.
        team_id: the lines of a team alone.
        before: the id of a line: those that were written before it.

    Raises:
        StoreUnavailable: the store is away.
    """
    query = select(ledger).order_by(ledger.c.id.desc()).limit(limit)
    if team_id is not None:
        query = query.where(ledger.c.team_id == team_id)
    if before is not None:
        query = query.where(ledger.c.id < before)
    return await directory.rows(query)
