"""Retention: remove the texts of runs first and their numbers later. The ledger is never removed.

Each step removes a bounded number of rows, so that other writers do not wait long.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Select,
    Table,
    Update,
    case,
    delete,
    func,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)

from serving.database.clock import now_us
from serving.database.schema import (
    batch,
    cached_answer,
    conversation,
    conversation_item,
    idempotency,
    run,
    run_event,
    run_feedback,
    run_text,
    run_worker,
    stored_file,
)
from serving.database.writer import Operation
from serving.settings.sections import StoreSettings

DAY_US = 86_400_000_000
EVENTS_US = 3_600_000_000
"""Retention of the events of an ended run, in microseconds: one hour, for clients that still follow the run.
"""
STEP = 500
"""Maximum number of runs or rows per step and statement."""
FILES_STEP = 10
"""Maximum number of files per step. It is low because files may be large."""
UNDER_WAY = ("validating", "in_progress", "finalizing", "cancelling")
"""States of batches that are not removed."""
HAS_TEXTS = run.c.body_bytes > literal_column("0")
"""SQL condition for runs with texts. Databases use the index `run_content` only if the condition contains no
parameter."""
OF_RUNS = (run_event, run_text, run_worker, run_feedback)
"""Tables whose rows belong to a run."""


def oldest(
    table: Table, time: str, bound_us: int, *conditions: ColumnElement[bool], step: int = STEP
) -> Delete:
    """Return the statement that deletes up to `step` of the oldest rows before `bound_us` that meet
    `conditions`.
    """
    key = list(table.primary_key)
    rows = select(*key).where(table.c[time] < bound_us, *conditions).order_by(table.c[time]).limit(step)
    return delete(table).where(tuple_(*key).in_(rows.correlate(None)))


def _old_runs(bound_us: int, *conditions: ColumnElement[bool]) -> Select[Any]:
    is_old = (run.c.made_us < bound_us) & run.c.ended_us.is_not(None)
    return select(run.c.id).where(is_old, *conditions).order_by(run.c.made_us).limit(STEP)


def _crowded_runs(bytes_per_team: int) -> Select[Any]:
    """Select the runs with the oldest texts of each team, or key without one, that has too many bytes."""
    room = func.sum(run.c.body_bytes).over(
        partition_by=(run.c.team_id, case((run.c.team_id.is_(None), run.c.key_id))),
        order_by=(run.c.made_us.desc(), run.c.id.desc()),
    )
    by_team = select(run.c.id, room.label("room")).where(HAS_TEXTS).subquery()
    return select(by_team.c.id).where(by_team.c.room > bytes_per_team).limit(STEP)


def _old_events(events_us: int, content_us: int) -> Delete:
    """Return the statement that deletes old events. With a complete record, they are deleted after
    `EVENTS_US`.

    Otherwise they are the only content of a run, such as a lost one, and are deleted as late as texts.
    """
    event, key = run_event.c, (run_event.c.run_id, run_event.c.first_seq)
    is_spare = (event.at_us < events_us) & (HAS_TEXTS)
    is_old = (event.at_us < content_us) & or_(run.c.id.is_(None), run.c.ended_us.is_not(None))
    rows = select(*key).outerjoin(run, run.c.id == event.run_id).where(or_(is_spare, is_old))
    return delete(run_event).where(tuple_(*key).in_(rows.order_by(event.at_us).limit(STEP).correlate(None)))


def _of_conversations(bound_us: int, *conditions: ColumnElement[bool]) -> list[Update | Delete]:
    """Return the statements that remove old items of conversations, and old conversations without items."""
    item = conversation_item.c
    of_it = item.conversation_id == conversation.c.id
    old = (
        select(item.conversation_id, item.number, item.n_bytes)
        .join(conversation, of_it)
        .where(item.made_us < bound_us, *conditions)
        .order_by(item.made_us, item.conversation_id, item.number)
        .limit(STEP)
        .subquery()
    )
    less = select(func.sum(old.c.n_bytes)).where(old.c.conversation_id == conversation.c.id).scalar_subquery()
    is_empty = ~select(item.number).where(of_it).correlate(conversation).exists()
    return [
        update(conversation)
        .where(conversation.c.id.in_(select(old.c.conversation_id)))
        .values(n_bytes=conversation.c.n_bytes - less),
        delete(conversation_item).where(
            tuple_(item.conversation_id, item.number).in_(select(old.c.conversation_id, old.c.number))
        ),
        oldest(conversation, "changed_us", bound_us, is_empty, *conditions),
    ]


@dataclass(frozen=True, slots=True)
class ContentDays:
    """Retention of texts by a policy. The column `team_id` or `key_id` of `run` has the owner's id."""

    column: str
    id: str
    days: float


@dataclass(frozen=True, slots=True)
class Retention:
    """Times before which data is removed, in microseconds since 1970.

    Args:
        events_us: time before which events are removed if the run has a complete record.
        bytes_per_team: maximum total bytes of texts per team, or None for no limit.
        of_accounts: times before which the texts of certain teams and keys are removed. Each entry consists
            of the column (`team_id` or `key_id`), the id, and the time.
    """

    content_us: int
    numbers_us: int
    events_us: int
    bytes_per_team: int | None
    of_accounts: tuple[tuple[str, str, int], ...] = ()

    @classmethod
    def of(cls, settings: StoreSettings, at_us: int | None = None, policies: Iterable[ContentDays] = ()) -> Self:  # fmt: skip
        """Compute the times at `at_us`, by default now. Policies can only shorten the settings' retention."""
        at_us = now_us() if at_us is None else at_us

        def since(days: float | None) -> int:
            return 0 if days is None else int(max(0.0, at_us - days * DAY_US))

        numbers_us = since(settings.numbers_days)
        return cls(
            max(since(settings.content_days), numbers_us),
            numbers_us,
            at_us - EVENTS_US,
            settings.content_bytes_per_team,
            tuple((each.column, each.id, since(each.days)) for each in policies),
        )

    @property
    def of_rows(self) -> list[Update | Delete]:
        """Statements that remove expired data other than runs."""
        at_us, is_over = now_us(), batch.c.status.not_in(UNDER_WAY)
        statements: list[Update | Delete] = [
            oldest(idempotency, "drop_us", at_us),
            oldest(cached_answer, "drop_us", at_us),
            oldest(stored_file, "drop_us", at_us, step=FILES_STEP),
            oldest(batch, "drop_us", at_us, is_over),
        ]
        for column, id, bound_us in self.of_accounts:
            mine = stored_file.c[column] == id
            statements.append(oldest(stored_file, "made_us", bound_us, mine, step=FILES_STEP))
        statements += _of_conversations(self.content_us)
        for column, id, bound_us in self.of_accounts:
            statements += _of_conversations(bound_us, conversation.c[column] == id)
        return [*statements, _old_events(self.events_us, self.content_us)]

    @property
    def of_content(self) -> list[Select[Any]]:
        """Queries for the ids of runs whose texts must be removed."""
        queries = [_old_runs(self.content_us, HAS_TEXTS)]
        if self.bytes_per_team is not None:
            queries.append(_crowded_runs(self.bytes_per_team))
        has_events = select(run_event.c.run_id).where(run_event.c.run_id == run.c.id).exists()
        for column, id, bound_us in self.of_accounts:
            is_left = or_(HAS_TEXTS, has_events)
            queries.append(_old_runs(bound_us, run.c[column] == id, is_left))
        return queries


def _remove(connection: Connection, items: Sequence[Retention]) -> list[int]:
    retention, removed = items[-1], 0
    for query in retention.of_content:
        ids = list(connection.execute(query).scalars())
        _remove_texts(connection, ids)
        removed += len(ids)
    ids = list(connection.execute(_old_runs(retention.numbers_us)).scalars())
    if ids:
        connection.execute(delete(run).where(run.c.id.in_(ids)))
        for table in OF_RUNS:
            connection.execute(delete(table).where(table.c.run_id.in_(ids)))
    removed += len(ids)
    for statement in retention.of_rows:
        n_rows = connection.execute(statement).rowcount
        removed += n_rows if statement.is_delete else 0
    return [removed] * len(items)


def _remove_texts(connection: Connection, ids: Sequence[str]) -> list[None]:
    if ids:
        connection.execute(update(run).where(run.c.id.in_(ids)).values(body=None, body_bytes=0))
        connection.execute(delete(run_event).where(run_event.c.run_id.in_(ids)))
        connection.execute(delete(run_text).where(run_text.c.run_id.in_(ids)))
        texts = update(run_feedback).where(run_feedback.c.run_id.in_(ids))
        connection.execute(texts.values(comment="", expected=""))
    return [None] * len(ids)


REMOVE: Operation[Retention, int] = Operation("removal of old runs", _remove)
"""Operation that removes a bounded number of expired rows. It returns their number."""


REMOVE_TEXTS: Operation[str, None] = Operation("removal of texts", _remove_texts)
"""Operation that removes the texts of a run that has ended. Its numbers remain."""
