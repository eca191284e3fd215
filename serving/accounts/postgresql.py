"""Ledger statements for PostgreSQL. Each function implements the operation of the same name in
`operations.py`.

A batch is one round trip if everything fits. Windows are locked in one order, always after holds, so that
replicas cannot deadlock. A condition on a window's own columns is evaluated again after waiting for the lock.
One in a subquery is not, and would let two replicas spend the same cent (READ COMMITTED).
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from serving.accounts.hold import Bill, Entry, HoldRequest, Refusal, decide, sums
from serving.accounts.leases import FORGET_US, LEASE_US
from serving.accounts.money import MAX_PICO
from serving.accounts.rates import Window, WindowId
from serving.database.database import PostgresConnection

NOW_US = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
WINDOWS = """(VALUES ('key:' || key_id, 'day', day), ('key:' || key_id, 'month', month),
    ('team:' || team_id, 'day', day), ('team:' || team_id, 'month', month)) AS w (subject, period, starts)"""
"""Windows of a hold, for LATERAL. Without a team, two of them have no subject."""
REQUEST_ROWS = """SELECT * FROM unnest($1::text[], $2::text[], $3::int[], $4::text[], $5::text[], $6::int[], $7::int[], $8::text[],
    $9::bigint[], $10::text[], $11::bigint[]) WITH ORDINALITY
    AS a (id, run_id, call_no, key_id, team_id, day, month, worker, amount, owner, made_us, turn)"""
COLUMNS = "id, run_id, call_no, key_id, team_id, day, month, worker, amount, owner, made_us"

FITTING = f"""
WITH known AS (SELECT id FROM hold WHERE id = ANY ($1::text[])),
asked AS ({REQUEST_ROWS} WHERE id NOT IN (SELECT id FROM known)),
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
"""Hold the requests that certainly fit.

The sums include neighbours that are refused, so all other requests are checked one by one in the next
transaction. A window that does not exist yet also refuses."""
MAKE_WINDOWS = """INSERT INTO spend_window (subject, period, starts)
SELECT * FROM unnest($1::text[], $2::text[], $3::int[]) ORDER BY 1, 2, 3 ON CONFLICT DO NOTHING"""
LOCK_WINDOWS = """SELECT b.subject, b.period, b.starts, b.spent, b.held, c.cap
FROM spend_window b LEFT JOIN budget c USING (subject, period)
WHERE (b.subject, b.period, b.starts) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::int[])) ORDER BY 1, 2, 3 FOR UPDATE OF b"""
TAKE = f"""WITH asked AS ({REQUEST_ROWS}),
taken AS (UPDATE spend_window b SET held = b.held + s.amount
    FROM (SELECT w.subject, w.period, w.starts, sum(amount) AS amount FROM asked, LATERAL {WINDOWS}
        WHERE w.subject IS NOT NULL GROUP BY 1, 2, 3) s
    WHERE (b.subject, b.period, b.starts) = (s.subject, s.period, s.starts))
INSERT INTO hold ({COLUMNS}) SELECT {COLUMNS} FROM asked"""
TAKE_ANYWAY = f"""WITH made AS (INSERT INTO hold ({COLUMNS}) SELECT {COLUMNS} FROM ({REQUEST_ROWS}) AS asked ON CONFLICT DO NOTHING RETURNING *),
moves AS (SELECT w.subject, w.period, w.starts, sum(amount) AS amount FROM made, LATERAL {WINDOWS}
    WHERE w.subject IS NOT NULL GROUP BY 1, 2, 3),
locked AS MATERIALIZED (SELECT b.subject, b.period, b.starts FROM spend_window b
    WHERE (b.subject, b.period, b.starts) IN (SELECT subject, period, starts FROM moves) ORDER BY 1, 2, 3 FOR UPDATE OF b),
moved AS (UPDATE spend_window b SET held = b.held + m.amount FROM moves m JOIN locked USING (subject, period, starts)
    WHERE (b.subject, b.period, b.starts) = (m.subject, m.period, m.starts))
SELECT 1"""

BILL_ROWS = """SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[],
    $8::bool[], $9::text[], $10::text[])
    AS t (id, cost, input_tokens, output_tokens, cached_tokens, price, at_us, is_exact, served_by, account)"""
BILL_COLUMNS = "t.cost, t.input_tokens, t.output_tokens, t.cached_tokens, t.price, t.at_us, t.is_exact, t.served_by, t.account"
MOVE_WINDOWS = f"""moves AS (SELECT w.subject, w.period, w.starts, sum(freed) AS freed, sum(posted) AS posted FROM mine, LATERAL {WINDOWS}
    WHERE w.subject IS NOT NULL GROUP BY 1, 2, 3),
locked AS MATERIALIZED (SELECT b.subject, b.period, b.starts FROM spend_window b
    WHERE (b.subject, b.period, b.starts) IN (SELECT subject, period, starts FROM moves) ORDER BY 1, 2, 3 FOR UPDATE OF b),
moved AS (UPDATE spend_window b SET held = b.held - m.freed, spent = b.spent + m.posted
    FROM moves m JOIN locked USING (subject, period, starts)
    WHERE (b.subject, b.period, b.starts) = (m.subject, m.period, m.starts))"""
"""Change the windows of `mine`, whose rows say how much of each hold is freed and how much is spent."""
ENTER = """INSERT INTO ledger (hold_id, kind, run_id, call_no, key_id, team_id, day, month, worker, amount, exact, above_hold,
    input_tokens, output_tokens, cached_tokens, price, at_us, account)
SELECT id, {kind}, run_id, call_no, key_id, team_id, day, month, {worker}, posted, {exact}, {above_hold},
    {tokens}, {at}, {account} FROM mine"""
CALLED_WORKER = {"worker": "worker", "account": "NULL"}
"""A lost call names the worker that was called, and so does its correction."""
BILL_ENTRY = {
    "above_hold": "(coalesce(cost, 0) > amount)::int",
    "tokens": "input_tokens, output_tokens, cached_tokens, price",
}

SETTLE = f"""WITH told AS ({BILL_ROWS}),
mine AS (UPDATE hold h SET state = 'posted', ended_us = t.at_us FROM told t WHERE h.id = t.id AND h.state = 'open'
    RETURNING h.*, h.amount AS freed, coalesce(t.cost, h.amount) AS posted, {BILL_COLUMNS}),
{MOVE_WINDOWS}
{ENTER.format(kind="'call'", exact="is_exact::int", at="at_us", worker="coalesce(served_by, worker)", account="account", **BILL_ENTRY)} RETURNING hold_id"""
SETTLE_LATE = f"""WITH told AS ({BILL_ROWS}),
mine AS (UPDATE hold h SET state = 'posted', ended_us = t.at_us FROM told t WHERE h.id = t.id AND h.state = 'lost' AND t.cost IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM ledger l JOIN ledger a ON a.run_id = l.run_id AND a.corrects = l.id WHERE l.hold_id = h.id)
    RETURNING h.*, 0 AS freed, t.cost - h.amount AS posted, {BILL_COLUMNS}),
{MOVE_WINDOWS}
{ENTER.format(kind="'correction'", exact="is_exact::int", at="at_us", **CALLED_WORKER, **BILL_ENTRY)}"""
"""Post the difference for a hold that was already posted as lost, because its replica was only frozen.

Nothing is posted if the cost is not known, or if an adjustment has already corrected the entry."""
VOID = f"""WITH
mine AS (UPDATE hold h SET state = 'voided', ended_us = {NOW_US} WHERE h.id = ANY ($1::text[]) AND h.state = 'open'
    RETURNING h.*, h.amount AS freed, 0 AS posted),
{MOVE_WINDOWS}
SELECT 1"""
BAR = f"""INSERT INTO hold ({COLUMNS}, state, ended_us) SELECT {COLUMNS}, 'voided', made_us FROM ({REQUEST_ROWS}) AS asked ON CONFLICT DO NOTHING"""
"""Prevent a hold that may still be on its way in a broken connection."""
SWEEP = f"""WITH dead AS MATERIALIZED (SELECT h.id FROM hold h LEFT JOIN replica r ON r.id = h.owner
    WHERE h.state = 'open' AND (r.id IS NULL OR r.lease_until_us < {NOW_US}) ORDER BY h.made_us LIMIT $1 FOR UPDATE OF h SKIP LOCKED),
mine AS (UPDATE hold h SET state = 'lost', ended_us = {NOW_US} FROM dead WHERE h.id = dead.id
    RETURNING h.*, h.amount AS freed, h.amount AS posted),
{MOVE_WINDOWS}
{ENTER.format(kind="'lost'", exact="0", above_hold="0", tokens="NULL, NULL, NULL, NULL", at="ended_us", **CALLED_WORKER)} RETURNING hold_id"""
FORGET = f"DELETE FROM replica WHERE lease_until_us < {NOW_US} - $1::bigint"
RENEW = f"""INSERT INTO replica (id, lease_until_us, began_us) SELECT id, {NOW_US} + $2, {NOW_US} FROM unnest($1::text[]) AS r (id)
ON CONFLICT (id) DO UPDATE SET lease_until_us = excluded.lease_until_us"""

WINDOW_FIELDS = [attrgetter("subject"), attrgetter("period"), attrgetter("starts")]
FIELDS = [attrgetter(name) for name in COLUMNS.split(", ")]
BILL_FIELDS = [
    attrgetter(name)
    for name in (
        "hold_id",
        "cost",
        "input_tokens",
        "output_tokens",
        "cached_tokens",
        "price",
        "at_us",
        "is_exact",
        "worker",
        "account",
    )
]


async def hold(connection: PostgresConnection, requests: Sequence[HoldRequest]) -> list[Refusal | None]:
    in_turn = sorted((each for each in requests if not each.is_unpriced), key=lambda each: each.amount)
    held_ids = (
        {row["id"] for row in await connection.fetch(FITTING, *_columns(FIELDS, in_turn))}
        if in_turn
        else set[str]()
    )
    others = [each for each in requests if each.id not in held_ids]
    refusals = (
        dict(zip((each.id for each in others), await _hold_exactly(connection, others), strict=True))
        if others
        else {}
    )
    return [refusals.get(each.id) for each in requests]


async def _hold_exactly(connection: PostgresConnection, requests: list[HoldRequest]) -> list[Refusal | None]:
    """Hold one request after the other, in their order, regardless of refused neighbours."""
    windows = _columns(WINDOW_FIELDS, list(sums(requests)))
    await connection.execute(MAKE_WINDOWS, *windows)
    async with connection.transaction():
        rows = await connection.fetch(LOCK_WINDOWS, *windows)
        now = {
            WindowId(row["subject"], row["period"], row["starts"]): Window(
                row["cap"], row["spent"], row["held"]
            )
            for row in rows
        }
        ids = [each.id for each in requests]
        known = {
            row["id"]
            for row in await connection.fetch("SELECT id FROM hold WHERE id = ANY ($1::text[])", ids)
        }
        new = [each for each in requests if each.id not in known]
        refusals = {each.id: refusal for each, refusal in zip(new, decide(new, now), strict=True)}
        if fitting := [each for each in new if refusals[each.id] is None]:
            await connection.execute(TAKE, *_columns(FIELDS, fitting))
    return [refusals.get(each.id) for each in requests]


async def settle(connection: PostgresConnection, bills: Sequence[Bill]) -> list[None]:
    rows = await connection.fetch(SETTLE, *_columns(BILL_FIELDS, bills))
    settled_ids = {row["hold_id"] for row in rows}
    if late := [bill for bill in bills if bill.hold_id not in settled_ids]:
        await connection.execute(SETTLE_LATE, *_columns(BILL_FIELDS, late))
    return [None] * len(bills)


async def void(connection: PostgresConnection, requests: Sequence[HoldRequest]) -> list[None]:
    await connection.execute(BAR, *_columns(FIELDS, requests))
    await connection.execute(VOID, [each.id for each in requests])
    late = [Bill(each.id, 0, each.made_us) for each in requests]
    await connection.execute(SETTLE_LATE, *_columns(BILL_FIELDS, late))
    return [None] * len(requests)


async def enter(connection: PostgresConnection, entries: Sequence[Entry]) -> list[None]:
    requests = [entry.request for entry in entries]
    await connection.execute(MAKE_WINDOWS, *_columns(WINDOW_FIELDS, list(sums(requests))))
    await connection.execute(TAKE_ANYWAY, *_columns(FIELDS, requests))
    return await settle(connection, [entry.bill for entry in entries])


async def sweep(connection: PostgresConnection, limits: Sequence[int]) -> list[int]:
    swept = [len(await connection.fetch(SWEEP, limit)) for limit in limits]
    await connection.execute(FORGET, FORGET_US)
    return swept


async def renew(connection: PostgresConnection, replicas: Sequence[str]) -> list[None]:
    await connection.execute(RENEW, sorted(set(replicas)), LEASE_US)
    return [None] * len(replicas)


async def release(connection: PostgresConnection, replicas: Sequence[str]) -> list[None]:
    await connection.execute("DELETE FROM replica WHERE id = ANY ($1::text[])", replicas)
    return [None] * len(replicas)


def _columns(fields: Sequence[Any], rows: Sequence[object]) -> list[list[Any]]:
    """Return rows as columns, as `unnest` takes them."""
    return [[field(row) for row in rows] for field in fields]
