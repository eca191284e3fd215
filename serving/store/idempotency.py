"""Requests that the run of an earlier request answers.

The first request with an idempotency key claims the key for its run. Repeated requests with the same key join
that run. The answer cache maps equal requests to the run that answered them.
`serving/sessions/deduplication.py` decides which answers are cached.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter

from sqlalchemy import ColumnElement, Connection, delete, select, tuple_

from serving.database.clock import NOW_US, now_us
from serving.database.inserts import RowInsert
from serving.database.schema import cached_answer, idempotency, replica, run
from serving.database.writer import Operation

KEPT_US = 86_400_000_000
"""Lifetime of a claim in microseconds: one day."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim of an idempotency key for a run.

    Args:
        account: account of the client. The keys of different accounts are independent.
        name: idempotency key that the client sent, or a digest of it.
        owner: id of the replica that starts the run.
    """

    account: str
    name: str
    body_hash: str
    run_id: str
    owner: str


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """Cache entry for the answer to a request.

    Args:
        owner: id of the team, or of the key if it has no team.
    """

    owner: str
    request_hash: str
    run_id: str
    drop_us: int


COLUMNS = [field.name for field in fields(Claim)]
VALUES = attrgetter(*COLUMNS)
NAME = attrgetter("account", "name")
CLAIMED = idempotency.c
TAKE = RowInsert(
    idempotency,
    [*COLUMNS, "drop_us"],
    update=["body_hash", "run_id", "owner", "drop_us"],
    where=lambda new: CLAIMED.drop_us < new.drop_us - KEPT_US,
)
NEVER_BEGUN = (
    ~select(run.c.id).where(run.c.id == CLAIMED.run_id).exists()
    & ~select(replica.c.id).where(replica.c.id == CLAIMED.owner, replica.c.lease_until_us >= NOW_US).exists()
)
"""SQL condition: the claim's run is not stored, and the lease of its replica has expired."""


def _claim(connection: Connection, claims: Sequence[Claim]) -> list[Claim]:
    drop_us = now_us() + KEPT_US
    first = {NAME(each): each for each in reversed(claims)}
    TAKE.execute(connection, [(*VALUES(each), drop_us) for _, each in sorted(first.items())])  # no deadlock
    current = _current(connection, claims)
    return [current[NAME(each)] for each in claims]


def _current(connection: Connection, claims: Sequence[Claim]) -> dict[tuple[str, str], Claim]:
    names = list({NAME(each) for each in claims})
    query = select(*idempotency.c[*COLUMNS]).where(tuple_(CLAIMED.account, CLAIMED.name).in_(names))
    return {NAME(row): Claim(*row) for row in connection.execute(query)}


def _is(claim: Claim) -> ColumnElement[bool]:
    return (
        (CLAIMED.account == claim.account) & (CLAIMED.name == claim.name) & (CLAIMED.run_id == claim.run_id)
    )


def _release(connection: Connection, claims: Sequence[Claim]) -> list[None]:
    for each in claims:
        connection.execute(delete(idempotency).where(_is(each)))
    return [None] * len(claims)


def _free(connection: Connection, claims: Sequence[Claim]) -> list[bool]:
    for each in claims:
        connection.execute(delete(idempotency).where(_is(each), NEVER_BEGUN))
    current = _current(connection, claims)
    return [NAME(each) not in current or current[NAME(each)].run_id != each.run_id for each in claims]


KEEP = RowInsert(cached_answer, ["owner", "asked", "run_id", "drop_us"], update=["run_id", "drop_us"])


def _keep(connection: Connection, answers: Sequence[CachedAnswer]) -> list[None]:
    newest = {(each.owner, each.request_hash): (each.run_id, each.drop_us) for each in answers}
    KEEP.execute(connection, [(*key, *values) for key, values in sorted(newest.items())])  # no deadlock
    return [None] * len(answers)


CLAIM: Operation[Claim, Claim] = Operation("claim of an idempotency key", _claim)
"""Operation that claims an idempotency key. It returns the valid claim, which may belong to an earlier request."""
RELEASE_CLAIM: Operation[Claim, None] = Operation("release of a claim", _release, is_kept=True)
"""Operation that releases a claim whose run was not started."""
FREE_CLAIM: Operation[Claim, bool] = Operation("release of a dead claim", _free)
"""Operation that releases a claim whose replica ended before the run started. It returns False if the run has
started or may still start."""
KEEP_ANSWER: Operation[CachedAnswer, None] = Operation("cache entry of an answer", _keep)
"""Operation that stores which run answered a request. An earlier entry is replaced."""
