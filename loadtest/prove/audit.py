"""Final check of the store: all money is accounted for, and everything that clients received is stored."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from loadtest.rig import poll
from serving.accounts.hold_statements import LEASE_S, RENEW_S
from serving.accounts.ledger_check import find_faults
from serving.accounts.money import to_usd
from serving.database.database import Database

OPEN_HOLDS = "SELECT count(*) FROM hold WHERE state = 'open'"
UNDER_WAY = "SELECT count(*) FROM run WHERE ended_us IS NULL"
HELD_SUM = "SELECT coalesce(sum(held), 0) FROM spend_window"
SPENT = (
    "SELECT coalesce(max(spent + held), 0) FROM spend_window WHERE subject = :subject AND period = 'month'"
)
BILLED_TWICE = "SELECT count(*) FROM (SELECT 1 FROM ledger WHERE kind IN ('call', 'lost') GROUP BY hold_id HAVING count(*) > 1) AS twice"
DOUBLED = f"""SELECT ({BILLED_TWICE})
    + (SELECT count(*) FROM (SELECT 1 FROM hold WHERE state = 'posted' GROUP BY run_id, call_no, worker, owner HAVING count(*) > 1) AS again)"""
ENTERED = "SELECT DISTINCT run_id FROM ledger"
ENDED = "SELECT id FROM run WHERE status = 'finished'"
DIFFERENT = """WITH paid AS (SELECT run_id, sum(amount) AS amount, max(CASE WHEN kind = 'call' AND exact = 1 THEN 0 ELSE 1 END) AS is_bound
    FROM ledger GROUP BY run_id)
SELECT (SELECT coalesce(sum(r.cost), 0) FROM run r JOIN paid p ON p.run_id = r.id WHERE p.is_bound = 0 AND r.cost IS NOT NULL),
    (SELECT coalesce(sum(p.amount), 0) FROM run r JOIN paid p ON p.run_id = r.id WHERE p.is_bound = 0 AND r.cost IS NOT NULL),
    (SELECT count(*) FROM run r LEFT JOIN paid p ON p.run_id = r.id WHERE coalesce(r.cost, 0) > coalesce(p.amount, 0)),
    (SELECT count(*) FROM paid WHERE is_bound = 1)"""
"""Sums of records and ledger over runs with known bills, runs whose record exceeds the ledger, and runs
billed at their upper bound.
"""

SETTLES_WITHIN_S = 2 * LEASE_S + 4 * RENEW_S + 30
"""Seconds within which holds are settled and runs end, also after a router was killed."""


@dataclass(frozen=True)
class Audit:
    """Result of an audit, in dollars. All but `records_usd`, `ledger_usd` and `billed_at_bound` should be 0."""

    overspent_usd: float = 0.0
    entered_twice: int = 0
    not_entered: int = 0
    still_reserved: int = 0
    ledger_faults: int = 0
    records_usd: float = 0.0
    ledger_usd: float = 0.0
    records_above_ledger: int = 0
    billed_at_bound: int = 0

    @property
    def is_right(self) -> bool:
        """True if nothing is missing or counted twice."""
        return not any(
            (
                self.overspent_usd,
                self.entered_twice,
                self.not_entered,
                self.still_reserved,
                self.ledger_faults,
            )
        )


async def rows(database: Database, sql: str, **values: Any) -> list[Any]:
    async with database.reading() as connection:
        return list(await connection.execute(text(sql), values))


async def one(database: Database, sql: str, **values: Any) -> int:
    """Return the single number that a query selects."""
    return int((await rows(database, sql, **values))[0][0])


async def wait_until_settled(
    database: Database, answered: Collection[str] = (), within_s: float = SETTLES_WITHIN_S
) -> bool:
    """Wait until no hold is open, no run is running and the runs `answered` are stored, for at most `within_s`. Return
    whether that is so.
    """

    async def is_settled() -> bool:
        is_open = await one(database, OPEN_HOLDS) or await one(database, UNDER_WAY)
        return not is_open and not await count_lost_records(database, answered)

    return await poll(is_settled, within_s=within_s, every_s=0.2)


async def audit(database: Database, subject: str, cap_pico: int, answered: Collection[str]) -> Audit:
    """Check ledger, holds and records of the budget of `subject` while no process writes. `answered` has the
    ids of complete answers.
    """
    entered = {row[0] for row in await rows(database, ENTERED)}
    records, ledger, above, at_bound = (await rows(database, DIFFERENT))[0]
    spent = await one(database, SPENT, subject=subject)
    return Audit(
        float(to_usd(max(0, spent - cap_pico))),
        await one(database, DOUBLED),
        len(set(answered) - entered),
        await one(database, OPEN_HOLDS) + await one(database, HELD_SUM),
        len(await find_faults(database)),
        float(to_usd(int(records))),
        float(to_usd(int(ledger))),
        int(above),
        int(at_bound),
    )


async def count_lost_records(database: Database, answered: Collection[str]) -> int:
    """Return how many of the completely answered runs have no record with the status `finished`."""
    return len(set(answered) - {row[0] for row in await rows(database, ENDED)})
