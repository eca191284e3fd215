"""Consistency check of the ledger.

The amounts held and spent of each key and team (its windows) must match the open holds and the ledger
entries. Each hold must have the entries that fit its state. Each check is a single statement, so it sees a
consistent state even while the database is in use.
"""

from sqlalchemy import text

from serving.accounts.money import to_usd
from serving.database.database import Database

WINDOWS_OF = """SELECT 'key:' || key_id AS subject, 'day' AS period, day AS starts, amount FROM {rows}
UNION ALL SELECT 'key:' || key_id, 'month', month, amount FROM {rows}
UNION ALL SELECT 'team:' || team_id, 'day', day, amount FROM {rows} WHERE team_id IS NOT NULL
UNION ALL SELECT 'team:' || team_id, 'month', month, amount FROM {rows} WHERE team_id IS NOT NULL"""
SUMS = """SELECT subject, period, starts, sum(amount) AS amount FROM ({windows}) AS counted GROUP BY subject, period, starts"""
WINDOWS = f"""
WITH open_holds AS (SELECT key_id, team_id, day, month, amount FROM hold WHERE state = 'open'),
holds AS ({SUMS.format(windows=WINDOWS_OF.format(rows="open_holds"))}),
entries AS ({SUMS.format(windows=WINDOWS_OF.format(rows="ledger"))}),
every AS (SELECT subject, period, starts FROM spend_window UNION SELECT subject, period, starts FROM holds
    UNION SELECT subject, period, starts FROM entries)
SELECT e.subject, e.period, e.starts, coalesce(w.held, 0), coalesce(h.amount, 0), coalesce(w.spent, 0), coalesce(l.amount, 0)
FROM every e
LEFT JOIN spend_window w ON w.subject = e.subject AND w.period = e.period AND w.starts = e.starts
LEFT JOIN holds h ON h.subject = e.subject AND h.period = e.period AND h.starts = e.starts
LEFT JOIN entries l ON l.subject = e.subject AND l.period = e.period AND l.starts = e.starts
WHERE coalesce(w.held, 0) <> coalesce(h.amount, 0) OR coalesce(w.spent, 0) <> coalesce(l.amount, 0)
ORDER BY 1, 2, 3 LIMIT 100"""
HOLDS = """
WITH entered AS (SELECT hold_id, sum(CASE kind WHEN 'call' THEN 1 ELSE 0 END) AS calls,
    sum(CASE kind WHEN 'lost' THEN 1 ELSE 0 END) AS losses, sum(CASE kind WHEN 'correction' THEN 1 ELSE 0 END) AS corrections
    FROM ledger WHERE hold_id IS NOT NULL GROUP BY hold_id),
counted AS (SELECT h.id, h.state, coalesce(e.calls, 0) AS calls, coalesce(e.losses, 0) AS losses, coalesce(e.corrections, 0) AS corrections
    FROM hold h LEFT JOIN entered e ON e.hold_id = h.id)
SELECT id, state, calls, losses, corrections FROM counted WHERE NOT (
    (state IN ('open', 'voided') AND calls = 0 AND losses = 0 AND corrections = 0)
    OR (state = 'lost' AND calls = 0 AND losses = 1 AND corrections = 0)
    OR (state = 'posted' AND ((calls = 1 AND losses = 0 AND corrections = 0) OR (calls = 0 AND losses = 1 AND corrections = 1))))
ORDER BY 1 LIMIT 100"""
ENTRIES_WITHOUT_HOLD = "SELECT l.id, l.hold_id FROM ledger l LEFT JOIN hold h ON h.id = l.hold_id WHERE l.hold_id IS NOT NULL AND h.id IS NULL ORDER BY 1 LIMIT 100"
TOTALS = """SELECT (SELECT count(*) FROM ledger), (SELECT coalesce(sum(amount), 0) FROM ledger),
(SELECT count(*) FROM hold WHERE state = 'open'), (SELECT coalesce(sum(amount), 0) FROM hold WHERE state = 'open')"""


async def find_faults(database: Database) -> list[str]:
    """Return a description of each inconsistency in the ledger, at most 100 per check."""
    faults: list[str] = []
    async with database.reading() as connection:
        for subject, period, starts, *sums in await connection.execute(text(WINDOWS)):
            held_total, hold_sum, spent_total, entry_sum = (f"${to_usd(int(amount)):f}" for amount in sums)
            faults.append(
                f"The totals of {subject} for {period} {starts} differ from its entries: held {held_total}, sum of open holds {hold_sum}; spent {spent_total}, sum of entries {entry_sum}."
            )
        for id, state, calls, losses, corrections in await connection.execute(text(HOLDS)):
            faults.append(
                f"Hold {id} is {state}, which does not fit its ledger entries: {calls} `call`, {losses} `lost`, {corrections} `correction`."
            )
        for id, hold_id in await connection.execute(text(ENTRIES_WITHOUT_HOLD)):
            faults.append(f"Ledger entry {id} refers to hold {hold_id}, which does not exist.")
    return faults


async def read_totals(database: Database) -> tuple[int, int, int, int]:
    """Return the number and sum in pico-dollars of all entries, and of all open holds."""
    async with database.reading() as connection:
        entries, spent_sum, holds, held_sum = (await connection.execute(text(TOTALS))).one()
        return int(entries), int(spent_sum), int(holds), int(held_sum)
