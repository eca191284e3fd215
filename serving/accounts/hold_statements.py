"""Database operations on holds and ledger entries, for the store's writer.

Before a call with a price is sent, its maximum cost is reserved, even if there is no budget. This reservation
is a hold. It counts in windows: the day and the month of the key and of its team. If a replica is killed, its
open holds record what it may have spent. Only open holds change, so each operation is idempotent.

On PostgreSQL, several replicas write at the same time. Every transaction locks holds first and then windows,
in one order, so replicas cannot deadlock. Windows are read after they are locked. A condition in a subquery
would see the state before the wait for the lock (READ COMMITTED) and let two replicas spend the same cent. A
batch of holds that fit, or of bills for open holds, takes a single statement there (`hold_statements_postgresql.py`).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    Text,
    bindparam,
    delete,
    insert,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)

from serving.accounts import hold_statements_postgresql
from serving.accounts.hold import (
    HOLD_COLUMNS,
    Bill,
    Entry,
    HoldRequest,
    Refusal,
    Window,
    WindowId,
    decide,
    row_of,
    sums,
)
from serving.database.clock import NOW_US, now_us
from serving.database.inserts import RowInsert, insert_into
from serving.database.schema import budget, ledger, replica, spend_window
from serving.database.schema import hold as hold_table
from serving.database.sqlite_fast_path import KEYS, fetch, run_each
from serving.database.writer import Operation

SETTLES_WITHIN_S = 0.02
"""Seconds that a bill may wait for a batch. Its hold counts until then, so a hold that is refused meanwhile
is retried after it.
"""
LEASE_S = 15.0
"""Seconds for which a replica counts as alive after it has renewed its lease, by the database's clock. After
that, another replica charges its open holds in full, as lost."""
RENEW_S = 5.0
"""Seconds between two renewals of a lease, and between two sweeps for the holds of dead replicas."""
FORGET_US = 3_600_000_000
"""Microseconds without a renewal after which a replica's row is deleted. Its holds are still swept."""
SWEEP_LIMIT = 500
"""Maximum number of holds that one transaction of a sweep charges."""
HOLDS, WINDOW = hold_table.c, spend_window.c
OPEN, LOST = literal_column("'open'", Text), literal_column("'lost'", Text)
"""Literals instead of parameters, because the index `hold_open` needs a constant, and `fetch` accepts no
parameters except its keys."""
WINDOW_KEY = tuple_(WINDOW.subject, WINDOW.period, WINDOW.starts)

MAKE_WINDOWS = RowInsert(spend_window, ["subject", "period", "starts"])
LOCK_WINDOWS = (
    select(WINDOW.subject, WINDOW.period, WINDOW.starts, budget.c.cap, WINDOW.spent, WINDOW.held)
    .outerjoin(budget, (budget.c.subject == WINDOW.subject) & (budget.c.period == WINDOW.period))
    .where(WINDOW_KEY.in_(KEYS))
    .order_by(WINDOW.subject, WINDOW.period, WINDOW.starts)
    .with_for_update(of=spend_window)
)
MOVE_WINDOW = (
    update(spend_window)
    .where(
        WINDOW.subject == bindparam("of_subject"),
        WINDOW.period == bindparam("of_period"),
        WINDOW.starts == bindparam("of_starts"),
    )
    .values(held=WINDOW.held + bindparam("more_held"), spent=WINDOW.spent + bindparam("more_spent"))
)
EXISTING = select(HOLDS.id).where(HOLDS.id.in_(KEYS))
MAKE_HOLD = insert(hold_table).values({name: bindparam(name) for name in HOLD_COLUMNS})
MAKE_HOLDS = RowInsert(hold_table, HOLD_COLUMNS, returning=[HOLDS.id])
BAR = RowInsert(hold_table, [*HOLD_COLUMNS, "state", "ended_us"])
"""Statement that inserts a hold that has already ended. A late request for the hold, from a broken connection, then
has no effect.
"""
LOCK_HOLDS = (
    select(*hold_table.c[*HOLD_COLUMNS], HOLDS.state)
    .where(HOLDS.id.in_(KEYS), HOLDS.state.in_([OPEN, LOST]))
    .order_by(HOLDS.id)
    .with_for_update()
)
LOCK_DEAD = (
    select(*hold_table.c[*HOLD_COLUMNS], NOW_US.label("now_us"))
    .outerjoin(replica, replica.c.id == HOLDS.owner)
    .where(HOLDS.state == OPEN, or_(replica.c.id.is_(None), replica.c.lease_until_us < NOW_US))
    .order_by(HOLDS.made_us)
    .limit(bindparam("most"))
    .with_for_update(of=hold_table, skip_locked=True)
)
END_HOLD = (
    update(hold_table)
    .where(HOLDS.id == bindparam("of_id"))
    .values(state=bindparam("to"), ended_us=bindparam("at_us"))
)
_call, _adjustment = ledger.alias(), ledger.alias()
ADJUSTED = (
    select(_call.c.hold_id)
    .join(_adjustment, (_adjustment.c.run_id == _call.c.run_id) & (_adjustment.c.corrects == _call.c.id))
    .where(_call.c.hold_id.in_(KEYS))
)
ENTRY_COLUMNS = [
    "hold_id", "kind", "run_id", "call_no", "key_id", "team_id", "day", "month", "worker", "account", "amount",
    "exact", "above_hold", "input_tokens", "output_tokens", "cached_tokens", "price", "at_us",
]  # fmt: skip
ENTER_LEDGER = insert(ledger).values({name: bindparam(name) for name in ENTRY_COLUMNS})


class EndingHold(NamedTuple):
    """Hold that a bill can still settle or correct. Its state is `open` or `lost`."""

    request: HoldRequest
    state: str


@dataclass(frozen=True, slots=True)
class Posting:
    """Ledger entry of an ended hold.

    Args:
        freed: amount that the hold no longer reserves, in pico-dollars.
        posted: change of the amount spent, in pico-dollars.
    """

    request: HoldRequest
    bill: Bill
    kind: str
    freed: int
    posted: int


def hold(connection: Connection, requests: Sequence[HoldRequest]) -> list[Refusal | None]:
    if connection.dialect.name == "postgresql":
        ids_on_hold = hold_statements_postgresql.hold_fitting(connection, requests)
        requests_left = [each for each in requests if each.id not in ids_on_hold]
        # Create windows before any is locked, so that replicas cannot deadlock.
        MAKE_WINDOWS.execute(connection, list(sums(requests_left)))
    else:
        requests_left = requests
    refusals = _hold_exactly(connection, requests_left) if requests_left else {}
    return [refusals.get(each.id) for each in requests]


def _hold_exactly(connection: Connection, requests: Sequence[HoldRequest]) -> dict[str, Refusal | None]:
    """Decide on the requests one after another, so that a refused request does not affect those after it."""
    existing = {id for (id,) in fetch(connection, EXISTING, [each.id for each in requests])}
    new = [each for each in requests if each.id not in existing]
    windows = _lock_windows(connection, sums(new))
    refusals = {each.id: refusal for each, refusal in zip(new, decide(new, windows), strict=True)}
    fitting = [each for each in new if refusals[each.id] is None]
    _move(connection, [(each, each.amount, 0) for each in fitting])
    run_each(connection, MAKE_HOLD, HOLD_COLUMNS, map(row_of, fitting))
    return refusals


def settle(connection: Connection, bills: Sequence[Bill]) -> list[None]:
    n_bills = len(bills)
    if connection.dialect.name == "postgresql":
        settled = hold_statements_postgresql.settle_open(connection, bills)
        bills = [bill for bill in bills if bill.hold_id not in settled]
    _settle(connection, bills)
    return [None] * n_bills


def _settle(connection: Connection, bills: Sequence[Bill]) -> None:
    holds = _lock_holds(connection, [bill.hold_id for bill in bills])
    late = [id for id, each in holds.items() if each.state == "lost"]
    adjusted = {id for (id,) in fetch(connection, ADJUSTED, late)}
    posted: list[Posting] = []
    for bill in bills:
        if (ending := holds.pop(bill.hold_id, None)) is None:
            continue
        amount = ending.request.amount
        if ending.state == "open":
            cost = amount if bill.cost is None else bill.cost
            posted.append(Posting(ending.request, bill, "call", amount, cost))
        elif bill.cost is not None and bill.hold_id not in adjusted:
            # The hold was charged as lost, but its replica was only frozen. Enter the difference.
            posted.append(Posting(ending.request, bill, "correction", 0, bill.cost - amount))
    _post(connection, "posted", posted)


def void(connection: Connection, requests: Sequence[HoldRequest]) -> list[None]:
    BAR.execute(connection, [(*row_of(each), "voided", each.made_us) for each in requests])
    holds = _lock_holds(connection, [each.id for each in requests]).values()
    voided = [each.request for each in holds if each.state == "open"]
    _end(connection, "voided", [(each.id, now_us()) for each in voided])
    _move(connection, [(each, -each.amount, 0) for each in voided])
    _settle(connection, [Bill(each.request.id, 0, each.request.made_us) for each in holds])
    return [None] * len(requests)


def enter(connection: Connection, entries: Sequence[Entry]) -> list[None]:
    requests = {entry.request.id: entry.request for entry in entries}
    MAKE_WINDOWS.execute(connection, list(sums(requests.values())))
    new_ids = MAKE_HOLDS.execute(connection, [row_of(each) for each in requests.values()])
    _move(connection, [(requests[id], requests[id].amount, 0) for (id,) in new_ids])
    _settle(connection, [entry.bill for entry in entries])
    return [None] * len(entries)


def sweep(connection: Connection, limits: Sequence[int]) -> list[int]:
    swept: list[int] = []
    for limit in limits:
        dead = connection.execute(LOCK_DEAD, {"most": limit}).all()
        posted = [_loss(HoldRequest(*values), at_us) for *values, at_us in dead]
        _post(connection, "lost", posted)
        swept.append(len(dead))
    connection.execute(delete(replica).where(replica.c.lease_until_us < NOW_US - FORGET_US))
    return swept


def _loss(request: HoldRequest, at_us: int) -> Posting:
    return Posting(request, Bill(request.id, None, at_us), "lost", request.amount, request.amount)


def renew(connection: Connection, replicas: Sequence[str]) -> list[None]:
    new = insert_into(connection.dialect.name, replica).values(
        lease_until_us=NOW_US + int(LEASE_S * 1_000_000), began_us=NOW_US
    )
    renewed = new.on_conflict_do_update(
        index_elements=["id"], set_={"lease_until_us": new.excluded.lease_until_us}
    )
    for id in sorted(set(replicas)):
        connection.execute(renewed.values(id=id))
    return [None] * len(replicas)


def release(connection: Connection, replicas: Sequence[str]) -> list[None]:
    connection.execute(delete(replica).where(replica.c.id.in_(replicas)))
    return [None] * len(replicas)


def _lock_windows(connection: Connection, ids: Collection[WindowId]) -> dict[WindowId, Window]:
    """Lock windows and return their state. Create them if they do not exist yet."""
    rows = fetch(connection, LOCK_WINDOWS, list(ids))
    if len(rows) < len(ids):
        MAKE_WINDOWS.execute(connection, list(ids))
        rows = fetch(connection, LOCK_WINDOWS, list(ids))
    return {WindowId(*row[:3]): Window(*row[3:]) for row in rows}


def _lock_holds(connection: Connection, ids: Sequence[str]) -> dict[str, EndingHold]:
    """Lock the holds that are open or lost, and return them by id. All others have ended for good."""
    rows = fetch(connection, LOCK_HOLDS, ids)
    return {row[0]: EndingHold(HoldRequest(*row[:-1]), row[-1]) for row in rows}


def _post(connection: Connection, state: str, posted: Sequence[Posting]) -> None:
    """End holds, update their windows and add the ledger entries."""
    _end(connection, state, [(each.request.id, each.bill.at_us) for each in posted])
    _move(connection, [(each.request, -each.freed, each.posted) for each in posted])
    run_each(connection, ENTER_LEDGER, ENTRY_COLUMNS, map(_entry, posted))


def _end(connection: Connection, state: str, holds: Iterable[tuple[str, int]]) -> None:
    run_each(connection, END_HOLD, ("of_id", "at_us", "to"), ((*each, state) for each in holds))


def _move(connection: Connection, moves: Iterable[tuple[HoldRequest, int, int]]) -> None:
    """Change the held and spent amounts of windows. Each window is updated once, in the order of locking."""
    held_change, spent_change = Counter[WindowId](), Counter[WindowId]()
    for request, more_held, more_spent in moves:
        for id in request.windows:
            held_change[id] += more_held
            spent_change[id] += more_spent
    names = ("of_subject", "of_period", "of_starts", "more_held", "more_spent")
    run_each(
        connection,
        MOVE_WINDOW,
        names,
        ((*id, held_change[id], spent_change[id]) for id in sorted(held_change)),
    )


def _entry(each: Posting) -> tuple[Any, ...]:
    request, bill, is_served = each.request, each.bill, each.kind == "call"
    # A lost call names the worker that was called, and so does its correction.
    worker = (bill.worker if is_served else None) or request.worker
    payer = (request.key_id, request.team_id, request.day, request.month)
    call = (request.run_id, request.call_no, *payer, worker)
    flags = (int(bill.is_exact), int((bill.cost or 0) > request.amount))
    tokens = (bill.input_tokens, bill.output_tokens, bill.cached_tokens)
    account = bill.account if is_served else None
    return (request.id, each.kind, *call, account, each.posted, *flags, *tokens, bill.price, bill.at_us)


HOLD: Operation[HoldRequest, Refusal | None] = Operation("hold", hold)
"""Operation that reserves the maximum cost of a call. The result is None, or a refusal if a window has too little left."""
SETTLE: Operation[Bill, None] = Operation("settle", settle, is_kept=True, patience_s=SETTLES_WITHIN_S)
"""Replaces a hold by its bill, even if that is more. After a loss, the difference is entered as a correction,
unless the cost is unknown or was adjusted.
"""
VOID: Operation[HoldRequest, None] = Operation("void", void, is_kept=True)
"""Releases the hold of a call that was not sent. A hold that does not exist yet is prevented."""
ENTER: Operation[Entry, None] = Operation("entry", enter, is_kept=True)
"""Operation that makes and settles a hold in one step. Limits do not apply, because the call was already made."""
SWEEP: Operation[int, int] = Operation("sweep", sweep)
"""Charges open holds of dead replicas in full, at most the item's number, and returns their number."""
RENEW: Operation[str, None] = Operation("renewal of a lease", renew)
"""Operation that renews the lease of a replica. The item is the id of the replica."""
RELEASE: Operation[str, None] = Operation("release of a lease", release)
"""Operation that ends the lease of a replica. Other replicas charge its remaining holds as lost."""
