"""Functions that open a run, resume a run from its record, and count what a run has spent."""

import asyncio
import random
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal

from msgspec.structs import replace

from conductor.errors import BadTask
from conductor.model.call import Call, CallSite
from conductor.model.terms import Refusals
from conductor.model.usage import Usage
from conductor.model.worker import PoolMember
from conductor.run.call_bound import call_bound, with_defaults
from conductor.run.event_log import EventLog, Journal
from conductor.run.events import ResultsGiven, RunCancelled, RunDetached, RunResumed
from conductor.run.ledger import BudgetLedger, Ledger
from conductor.run.plan_record import UnmeteredCall
from conductor.run.record import NO_ACCOUNT, Account, Record, RunRecords
from conductor.run.rounds import RoundLoop
from conductor.run.run import Run, wait_until_done
from conductor.run.task import Task
from conductor.run.team import TEAM, Team, estimate_price, find_waiting, team_member
from conductor.run.turns import ClientReply


def count_spent(records: RunRecords, team: Team, lost_usd: Decimal) -> tuple[Decimal, Usage]:
    """Return the cost and usage of a run with inner runs. Calls without recorded usage count with their most,
    together at least `lost_usd`.
    """
    open_usd, usage = Decimal(0), Usage()
    for record in records:
        usage += sum((call.usage for call in records.calls_of(record) if call.usage is not None), Usage())
        for call in record.unmetered_calls:
            worst_usd, bound = _worst(call, record, team)
            open_usd += Decimal(0) if call.cost_usd else worst_usd  # a known cost is in `known_usd`
            usage += bound
    return records.known_usd + max(open_usd, lost_usd), usage


def _worst(call: UnmeteredCall, record: Record, team: Team) -> tuple[Decimal, Usage]:
    """Return the highest cost and usage of a call. Inner runs count separately, removed workers as zero."""
    conductor, sampling = team.conductor, record.task.sampling
    if call.writes_plan and conductor is not None and conductor.member.name == call.worker:
        member, sampling = conductor.member, conductor.sampling
    else:
        member = team.member_for(record.task, call.worker)
    if member is None:
        return Decimal(0), Usage()
    bound = call_bound(member, Call(call.prompt, with_defaults(member, sampling)))
    return (member.worst_price.most(bound) if member.worst_price else Decimal(0)), bound


WriteDown = Callable[[RunRecords], Awaitable[None]]
"""Function that stores the records of a run durably before the run is suspended."""


@dataclass(frozen=True, slots=True)
class Family:
    """State that a run shares with its inner runs.

    Args:
        refusals: refusals by workers so far.
        owner: id of the process that executes the runs.
        earlier: records of inner runs that an earlier process has begun, by id.
        continued_ids: ids of those inner runs that have been continued.
        write_down: function that stores the records of all these runs durably.
    """

    team: Team
    ledger: Ledger
    refusals: Refusals = field(default_factory=Refusals)
    owner: str = ""
    account: Account = NO_ACCOUNT
    journal: Journal | None = None
    earlier: Mapping[str, Record] = field(default_factory=dict[str, Record])
    continued_ids: set[str] = field(default_factory=set[str])
    write_down: WriteDown | None = None


@asynccontextmanager
async def open_run(
    team: Team,
    task: Task,
    id: str | None = None,
    *,
    ledger: Ledger | None = None,
    trace_id: str | None = None,
    owner: str = "",
    account: Account = NO_ACCOUNT,
    journal: Journal | None = None,
    write_down: WriteDown | None = None,
) -> AsyncGenerator[Run]:
    """Run `task` with `team` until the end of the block.

    A run that is still active at the end of the block is cancelled. Call `Run.detach` to hand it over to another
    process instead.

    Args:
        team: team that plans and answers.
        task: task of the run.
        id: id of the run. A new one is generated if it is None.
        ledger: parent of the run's ledger, such as an account's ledger.
        trace_id: id of the trace that the run belongs to.
        owner: id of the process that executes the run, for the record.
        account: account that requested the run, for the record.
        journal: function that receives every event of the run and its inner runs, before any reader does.
        write_down: function that is awaited before the run is suspended. The run can be resumed from the
            records that it receives.

    Raises:
        BadTask: the task is invalid. No model was called. Later errors end the run with a terminal event.
    """
    ledger = BudgetLedger(task.budget, parent=ledger)
    family = Family(team, ledger, owner=owner, account=account, journal=journal, write_down=write_down)
    record = _begin(family, task, id or f"wf_{uuid.uuid4().hex}", trace_id=trace_id)
    async with _running(family, EventLog(record, journal)) as run:
        yield run


@asynccontextmanager
async def resume_run(
    team: Team,
    records: RunRecords,
    *,
    ledger: Ledger | None = None,
    owner: str = "",
    journal: Journal | None = None,
    given: ClientReply | None = None,
    write_down: WriteDown | None = None,
    paid_usd: Decimal = Decimal(0),
) -> AsyncGenerator[Run]:
    """Continue a run until the end of the block. Another process has left it, or it waits for tool results.

    Completed steps are not run again. Calls that were open in the earlier process are lost and are repeated. A
    lost call counts in the budget with its recorded usage, or with the most that it can have used. If it was
    billed, its cost becomes part of the record's cost.

    Args:
        team: see `open_run`. It must have the workers that the record's plans name.
        records: records of the run and its inner runs after their last event.
        ledger: parent of the run's ledger from now on.
        owner: id of the process that continues the run, for the record.
        journal: see `open_run`.
        write_down: see `open_run`.
        given: tool results, if the run waits for them.
        paid_usd: total amount that the payer's ledger has booked for the run and its inner runs.

    Raises:
        BadTask: the team no longer supports the task. No model was called.
    """
    record = records.record
    budget = BudgetLedger(record.task.budget, parent=ledger)
    lost_usd = records.lost_usd(paid_usd)
    budget.spend(*count_spent(records, team, lost_usd))
    family = Family(
        team,
        budget,
        owner=owner,
        account=record.account,
        journal=journal,
        earlier=records.inner,
        write_down=write_down,
    )
    log = EventLog(record, journal)
    async with _running(family, log, is_continued=True, client_reply=given, lost_usd=lost_usd) as run:
        yield run


@asynccontextmanager
async def _running(
    family: Family,
    log: EventLog,
    *,
    is_continued: bool = False,
    outer: Run | None = None,
    deadline_at_s: float | None = None,
    client_reply: ClientReply | None = None,
    lost_usd: Decimal = Decimal(0),
) -> AsyncGenerator[Run]:
    run = Run(log, None if outer else family.earlier, outer)
    was_given_up = (
        log.record.status == "cancelled" and outer is not None
    )  # the outer step may have been restarted
    goes_on = client_reply is not None or was_given_up or log.record.status in ("running", "detached")
    if not goes_on:
        log.replay()
        yield run
        return
    members = _members(family, run)
    if (
        client_reply is not None
    ):  # not earlier, because recorded results are final even if the run cannot continue
        log.append(ResultsGiven(log.record.wall_s, client_reply, family.owner, _waiting_time_s(log.record)))
    write = family.write_down
    write_down = None if outer or write is None else lambda: write(run.records)
    loop = RoundLoop(family.team, members, log, family.ledger, family.refusals, deadline_at_s, write_down)
    if is_continued and client_reply is None:
        log.append(RunResumed(loop.now_s(), family.owner, lost_usd))
    driver = asyncio.create_task(loop.drive(), name=f"run {log.record.id}")

    def end(_: object = None) -> None:
        if log.record.status == "running":
            at_s = loop.now_s()
            log.append(RunDetached(at_s) if run.is_detached else RunCancelled(at_s, run.why_left))

    driver.add_done_callback(end)
    run.on_cancel(driver.cancel)
    try:
        yield run
    finally:
        driver.cancel()
        try:
            await wait_until_done([driver])
        finally:
            end()


def _waiting_time_s(record: Record) -> float:
    """Return the seconds since the suspension, at least 0, because clocks of processes may differ."""
    suspended = record.segments[-1].suspended if record.segments else 0.0
    return max(0.0, time.time() - suspended) if suspended else 0.0


def _begin(
    family: Family, task: Task, id: str, *, parent: CallSite | None = None, trace_id: str | None = None
) -> Record:
    """Return the record of a new run. It fixes the order in which the conductor sees the workers."""
    team = family.team
    names = list(team.members_for(task))
    if task.depth > 0 and task.plan is None:
        names.append(TEAM)
    if team.conductor is not None and team.conductor.shuffle:
        random.shuffle(names)
    return Record(id, task, time.time(), tuple(names), parent, family.owner, trace_id, account=family.account)


def _members(family: Family, run: Run) -> dict[str, PoolMember]:
    """Return the run's workers in record order, with the team if inner runs are allowed. Raise BadTask if one
    is gone.
    """
    record = run.record
    allowed = family.team.members_for(record.task)
    if missing := set(record.workers) - {*allowed, TEAM}:
        raise BadTask(
            f"The run needs worker {min(missing)!r}, which no longer exists.", param="podium.workers"
        )

    @asynccontextmanager
    async def open_inner(call: Call) -> AsyncGenerator[Run]:
        async with _inner(family, run, call) as inner:
            yield inner

    def itself() -> PoolMember:
        planner = family.team.planner(record.task)
        price = estimate_price(planner and planner.member, allowed.values(), record.task.max_steps)
        return team_member(record.task.model, open_inner, price)

    return {name: allowed.get(name) or itself() for name in record.workers}


@asynccontextmanager
async def _inner(family: Family, outer: Run, call: Call) -> AsyncGenerator[Run]:
    """Open the inner run that answers `call`: a new one, or an earlier process's with the same task."""
    site = call.site
    waiting = find_waiting(call, family.earlier)
    if waiting is not None:
        family.continued_ids.add(waiting.record.id)
        log = EventLog(waiting.record, family.journal)
        async with _running(
            family,
            log,
            is_continued=True,
            outer=outer,
            deadline_at_s=call.terms.deadline_at_s,
            client_reply=waiting.client_reply,
        ) as run:
            outer.inner.append(run)
            yield run
        return
    task = replace(
        outer.record.task,
        conversation=call.messages,
        sampling=call.sampling,
        depth=outer.record.task.depth - 1,
        rounds=1,
        deadline_s=None,
        stream=not call.coalesce,
        tools=call.tools,
        answer_format=call.answer_format,
    )
    earlier = _take_earlier(family, task, outer.record, site)
    record = earlier or _begin(
        family, task, _new_id(family, site), parent=site, trace_id=outer.record.trace_id
    )
    log = EventLog(record, family.journal)
    async with _running(
        family, log, is_continued=earlier is not None, outer=outer, deadline_at_s=call.terms.deadline_at_s
    ) as run:
        outer.inner.append(run)
        yield run


def _take_earlier(family: Family, task: Task, outer: Record, site: CallSite) -> Record | None:
    """Return and reserve an earlier inner run of `outer` that has the same task, or None."""
    answers = {call.inner_run for call in outer.calls}
    same = [
        record
        for id, record in family.earlier.items()
        if id not in answers
        and id not in family.continued_ids
        and record.parent is not None
        and record.parent.run == outer.id
        and replace(record.task, stream=task.stream) == task
    ]
    here = [
        record
        for record in same
        if record.parent and (record.parent.plan, record.parent.step) == (site.plan, site.step)
    ]
    earlier = next(iter(here or same), None)
    if earlier is not None:
        family.continued_ids.add(earlier.id)
    return earlier


def _new_id(family: Family, site: CallSite) -> str:
    """Return an id derived from the step's position that no earlier run has."""
    id = f"{site.run}.{site.plan}.{site.step}"
    while id in family.earlier:
        id += "+"
    return id
