"""Ledger statements for SQLite. Each function implements the operation of the same name in `operations.py`.

They run in the transaction of one batch, and are exact because there is one writer at a time. The database's
clock is the machine's, which all processes that use the file share.
"""

import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from serving.accounts.hold import Bill, Entry, HoldRequest, Refusal, decide, sums
from serving.accounts.leases import FORGET_US, LEASE_US
from serving.accounts.rates import Window, WindowId

COLUMNS = "id, run_id, call_no, key_id, team_id, day, month, worker, amount, owner, made_us"
MAKE_WINDOW = "INSERT INTO spend_window (subject, period, starts) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
READ_WINDOW = """SELECT b.cap, w.spent, w.held FROM spend_window w LEFT JOIN budget b USING (subject, period)
WHERE w.subject = ? AND w.period = ? AND w.starts = ?"""
MOVE_WINDOW = "UPDATE spend_window SET held = held + ?, spent = spent + ? WHERE subject = ? AND period = ? AND starts = ?"
MAKE_HOLD = f"INSERT INTO hold ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
BAR = f"INSERT INTO hold ({COLUMNS}, state, ended_us) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'voided', ?) ON CONFLICT DO NOTHING"
END_HOLD = f"UPDATE hold SET state = ?, ended_us = ? WHERE id = ? AND state = ? RETURNING {COLUMNS}"
DEAD = """SELECT h.id FROM hold h LEFT JOIN replica r ON r.id = h.owner
WHERE h.state = 'open' AND (r.id IS NULL OR r.lease_until_us < ?) ORDER BY h.made_us LIMIT ?"""
ENTER = """INSERT INTO ledger (hold_id, kind, run_id, call_no, key_id, team_id, day, month, worker, amount, exact, above_hold,
    input_tokens, output_tokens, cached_tokens, price, at_us, account) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
ADJUSTED = """SELECT 1 FROM ledger l JOIN ledger a ON a.run_id = l.run_id AND a.corrects = l.id WHERE l.hold_id = ?"""
RENEW = """INSERT INTO replica (id, lease_until_us, began_us) VALUES (?, ?, ?)
ON CONFLICT (id) DO UPDATE SET lease_until_us = excluded.lease_until_us"""


@dataclass(frozen=True, slots=True)
class Move:
    """Effect of an ended hold on its windows and on the ledger.

    Args:
        kind: kind of the ledger entry.
        freed: amount of the hold that is freed.
        posted: change of the amount spent.
    """

    kind: str
    freed: int
    posted: int


Posting = tuple[HoldRequest, Move, Bill]
"""Ended hold, its effect, and its bill."""


def hold(connection: sqlite3.Connection, requests: Sequence[HoldRequest]) -> list[Refusal | None]:
    new = [
        each
        for each in requests
        if not connection.execute("SELECT 1 FROM hold WHERE id = ?", (each.id,)).fetchone()
    ]
    totals = sums(new)
    windows = {id: _window(connection, id) for id in totals}
    refusals = {each.id: refusal for each, refusal in zip(new, decide(new, windows), strict=True)}
    fitting = [each for each in new if refusals[each.id] is None]
    connection.executemany(MOVE_WINDOW, [(amount, 0, *id) for id, amount in sums(fitting).items()])
    connection.executemany(MAKE_HOLD, map(_values, fitting))
    return [refusals.get(each.id) for each in requests]


def settle(connection: sqlite3.Connection, bills: Sequence[Bill]) -> list[None]:
    posted: list[Posting] = []
    for bill in bills:
        if ended := _end(connection, bill.hold_id, "open", "posted", bill.at_us):
            cost = ended.amount if bill.cost is None else bill.cost
            posted.append((ended, Move("call", ended.amount, cost), bill))
        else:
            _settle_late(connection, bill)
    _post(connection, posted)
    return [None] * len(bills)


def _settle_late(connection: sqlite3.Connection, bill: Bill) -> None:
    """Post the difference for a hold that was already posted as lost, because its replica was only frozen.

    Nothing is posted if the cost is not known, or if an adjustment has already corrected the entry.
    """
    if bill.cost is None or connection.execute(ADJUSTED, (bill.hold_id,)).fetchone():
        return
    if ended := _end(connection, bill.hold_id, "lost", "posted", bill.at_us):
        _post(connection, [(ended, Move("correction", 0, bill.cost - ended.amount), bill)])


def void(connection: sqlite3.Connection, requests: Sequence[HoldRequest]) -> list[None]:
    for request in requests:
        connection.execute(BAR, (*_values(request), request.made_us))
        if ended := _end(connection, request.id, "open", "voided", _now_us()):
            _move(connection, [(ended, -ended.amount, 0)])
        else:
            _settle_late(connection, Bill(request.id, 0, request.made_us))
    return [None] * len(requests)


def enter(connection: sqlite3.Connection, entries: Sequence[Entry]) -> list[None]:
    for request in (entry.request for entry in entries):
        if connection.execute(f"{MAKE_HOLD} ON CONFLICT DO NOTHING", _values(request)).rowcount:
            connection.executemany(MAKE_WINDOW, request.windows)
            _move(connection, [(request, request.amount, 0)])
    return settle(connection, [entry.bill for entry in entries])


def sweep(connection: sqlite3.Connection, limits: Sequence[int]) -> list[int]:
    swept: list[int] = []
    for limit in limits:
        now_us = _now_us()
        dead = connection.execute(DEAD, (now_us, limit)).fetchall()
        for (id,) in dead:
            ended = _end(connection, id, "open", "lost", now_us)
            assert ended is not None, "there is only one writer"
            _post(connection, [(ended, Move("lost", ended.amount, ended.amount), Bill(id, None, now_us))])
        connection.execute("DELETE FROM replica WHERE lease_until_us < ?", (now_us - FORGET_US,))
        swept.append(len(dead))
    return swept


def renew(connection: sqlite3.Connection, replicas: Sequence[str]) -> list[None]:
    now_us = _now_us()
    connection.executemany(RENEW, [(id, now_us + LEASE_US, now_us) for id in replicas])
    return [None] * len(replicas)


def release(connection: sqlite3.Connection, replicas: Sequence[str]) -> list[None]:
    connection.executemany("DELETE FROM replica WHERE id = ?", [(id,) for id in replicas])
    return [None] * len(replicas)


def _end(connection: sqlite3.Connection, id: str, state: str, to: str, at_us: int) -> HoldRequest | None:
    """Move a hold from `state` to another. Return it, or None if it is in a different state."""
    row = connection.execute(END_HOLD, (to, at_us, id, state)).fetchone()
    return None if row is None else HoldRequest(*row)


def _post(connection: sqlite3.Connection, posted: Sequence[Posting]) -> None:
    """Change the windows and add the ledger entries."""
    _move(connection, [(ended, -move.freed, move.posted) for ended, move, _ in posted])
    connection.executemany(ENTER, [_entry(*each) for each in posted])


def _entry(ended: HoldRequest, move: Move, bill: Bill) -> tuple[Any, ...]:
    tokens = (bill.input_tokens, bill.output_tokens, bill.cached_tokens)
    flags = (int(bill.is_exact), int((bill.cost or 0) > ended.amount))
    is_served = move.kind == "call"  # a correction refers to an entry with the called worker
    worker = (bill.worker if is_served else None) or ended.worker
    call = (ended.run_id, ended.call_no, ended.key_id, ended.team_id, ended.day, ended.month, worker)
    account = bill.account if is_served else None
    return (ended.id, move.kind, *call, move.posted, *flags, *tokens, bill.price, bill.at_us, account)


def _move(connection: sqlite3.Connection, moves: Iterable[tuple[HoldRequest, int, int]]) -> None:
    """Change the held and spent amounts of the windows of holds: each window once, in one order."""
    held, spent = Counter[WindowId](), Counter[WindowId]()
    for request, more_held, more_spent in moves:
        for id in request.windows:
            held[id] += more_held
            spent[id] += more_spent
    connection.executemany(MOVE_WINDOW, [(held[id], spent[id], *id) for id in held])


def _window(connection: sqlite3.Connection, id: WindowId) -> Window:
    """Return the current state of a window. Create it if it does not exist yet."""
    row = connection.execute(READ_WINDOW, id).fetchone()
    if row is None:
        connection.execute(MAKE_WINDOW, id)
        row = connection.execute(READ_WINDOW, id).fetchone()
    return Window(*row)


def _values(request: HoldRequest) -> tuple[Any, ...]:
    return (request.id, request.run_id, request.call_no, request.key_id, request.team_id, request.day, request.month,
            request.worker, request.amount, request.owner, request.made_us)  # fmt: skip


def _now_us() -> int:
    return time.time_ns() // 1000
