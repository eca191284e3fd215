"""Fast path for PostgreSQL: one statement for a batch of holds, and one for a batch of bills.

The requests that this path cannot handle are left to the general statements of `operations.py`. The general
statements take 7 times the router's CPU for a batch of holds and 6 times for a batch of bills, and lock the
windows for several round trips.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection

from serving.accounts.hold import HOLD_COLUMNS, Bill, HoldRequest, row_of
from serving.accounts.money import MAX_PICO

WINDOWS = """(VALUES ('key:' || key_id, 'day', day), ('key:' || key_id, 'month', month),
    ('team:' || team_id, 'day', day), ('team:' || team_id, 'month', month)) AS w (subject, period, starts)"""
"""Windows of a hold for a LATERAL join: day and month of key and team. Without a team, two subjects are NULL."""
COLUMNS = ", ".join(HOLD_COLUMNS)
FITTING = f"""
WITH known AS (SELECT id FROM hold WHERE id = ANY ($1::text[])),
asked AS (SELECT * FROM unnest($1::text[], $2::text[], $3::int[], $4::text[], $5::text[], $6::int[], $7::int[], $8::text[],
    $9::bigint[], $10::text[], $11::bigint[]) WITH ORDINALITY AS a ({COLUMNS}, turn) WHERE id NOT IN (SELECT id FROM known)),
needs AS (SELECT id, amount, turn, w.* FROM asked, LATERAL {WINDOWS} WHERE w.subject IS NOT NULL),
locked AS MATERIALIZED (SELECT b.subject, b.period, b.starts, b.spent, b.held FROM spend_window b
    WHERE (b.subject, b.period, b.starts) IN (SELECT subject, period, starts FROM needs) ORDER BY 1, 2, 3 FOR UPDATE OF b),
tried AS (SELECT n.id, coalesce(l.spent::numeric + l.held + sum(n.amount)
        OVER (PARTITION BY n.subject, n.period, n.starts ORDER BY n.turn) <= coalesce(c.cap, {MAX_PICO}), false) AS fits
    FROM needs n LEFT JOIN locked l USING (subject, period, starts) LEFT JOIN budget c USING (subject, period)),
good AS (SELECT id FROM tried GROUP BY id HAVING bool_and(fits)),
taken AS (UPDATE spend_window b SET held = b.held + s.amount
    FROM (SELECT subject, period, starts, sum(amount) AS amount FROM needs JOIN good USING (id) GROUP BY 1, 2, 3) s
    WHERE (b.subject, b.period, b.starts) = (s.subject, s.period, s.starts)),
made AS (INSERT INTO hold ({COLUMNS}) SELECT {COLUMNS} FROM asked JOIN good USING (id) RETURNING id)
SELECT id FROM known UNION ALL SELECT id FROM made"""
"""Statement that makes the holds of requests that certainly fit.

The sums include requests of the same batch that do not fit. So a request that is not held here may still fit,
and is checked again by itself. Requests with a window that does not exist yet are not held here either.
"""
SETTLE = f"""
WITH bill AS (SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[],
    $8::bool[], $9::text[], $10::text[])
    AS t (id, cost, input_tokens, output_tokens, cached_tokens, price, at_us, is_exact, served_by, account)),
mine AS (UPDATE hold h SET state = 'posted', ended_us = t.at_us FROM bill t WHERE h.id = t.id AND h.state = 'open'
    RETURNING h.*, coalesce(t.cost, h.amount) AS posted, t.cost, t.input_tokens, t.output_tokens, t.cached_tokens, t.price,
        t.at_us, t.is_exact, t.served_by, t.account),
moves AS (SELECT w.subject, w.period, w.starts, sum(amount) AS freed, sum(posted) AS posted FROM mine, LATERAL {WINDOWS}
    WHERE w.subject IS NOT NULL GROUP BY 1, 2, 3),
locked AS MATERIALIZED (SELECT b.subject, b.period, b.starts FROM spend_window b
    WHERE (b.subject, b.period, b.starts) IN (SELECT subject, period, starts FROM moves) ORDER BY 1, 2, 3 FOR UPDATE OF b),
moved AS (UPDATE spend_window b SET held = b.held - m.freed, spent = b.spent + m.posted
    FROM moves m JOIN locked USING (subject, period, starts)
    WHERE (b.subject, b.period, b.starts) = (m.subject, m.period, m.starts))
INSERT INTO ledger (hold_id, kind, run_id, call_no, key_id, team_id, day, month, worker, amount, exact, above_hold,
    input_tokens, output_tokens, cached_tokens, price, at_us, account)
SELECT id, 'call', run_id, call_no, key_id, team_id, day, month, coalesce(served_by, worker), posted, is_exact::int,
    (coalesce(cost, 0) > amount)::int, input_tokens, output_tokens, cached_tokens, price, at_us, account FROM mine RETURNING hold_id"""
BILL_FIELDS = attrgetter(
    "hold_id", "cost", "input_tokens", "output_tokens", "cached_tokens", "price", "at_us", "is_exact", "worker", "account"
)  # fmt: skip


def hold_fitting(connection: Connection, requests: Sequence[HoldRequest]) -> set[str]:
    """Hold the requests that certainly fit, and commit. Return the ids of the requests that are held."""
    in_turn = sorted((each for each in requests if not each.is_unpriced), key=lambda each: each.amount)
    return _ids(connection, FITTING, [row_of(each) for each in in_turn])


def settle_open(connection: Connection, bills: Sequence[Bill]) -> set[str]:
    """Settle the bills whose holds are open, and commit. Return the ids of these holds."""
    return _ids(connection, SETTLE, [BILL_FIELDS(bill) for bill in bills])


def _ids(connection: Connection, statement: str, rows: Sequence[Sequence[Any]]) -> set[str]:
    """Execute a statement with an array parameter per column, which asyncpg commits at once, and return the
    ids.
    """
    if not rows:
        return set()
    columns = [list(column) for column in zip(*rows, strict=True)]

    def fetch(driver: Any) -> Any:
        return driver.fetch(statement, *columns)

    connected: Any = connection.connection.dbapi_connection
    return {row[0] for row in connected.run_async(fetch)}
