"""Open a run, resume one from its record, and what was spent of its budget by then."""

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
from conductor.run.call import call_bound
from conductor.run.event_log import EventLog, Journal
from conductor.run.events import ResultsGiven, RunCancelled, RunDetached, RunResumed
from conductor.run.ledger import BudgetLedger, Ledger
from conductor.run.plan_record import UnmeteredCall
from conductor.run.record import NOBODY, Account, Record, RunRecords
from conductor.run.rounds import RoundLoop
from conductor.run.run import Run
from conductor.run.task import Task
from conductor.run.team import TEAM, Team, estimate_price, find_waiting, team_member
from conductor.run.turns import Given
from conductor.run.waiting import wait_until_done


def count_spent(records: RunRecords, team: Team, lost_usd: Decimal) -> tuple[Decimal, Usage]:
    """What the calls of a run and of the runs inside it took by now. Those of which nothing is on record count with
    the most that they can have taken, and with no less than `lost_usd` together.
    """
    open_usd, usage = Decimal(0), Usage()
    for record in records:
        usage += sum((call.usage for call in records.calls_of(record) if call.usage is not None), Usage())
        for call in record.unmetered_calls:
            worst_usd, bound = _worst(call, record, team)
            open_usd += Decimal(0) if call.cost_usd else worst_usd  # 0: nobody said what it took
            usage += bound
    return records.known_usd + max(open_usd, lost_usd), usage


def _worst(call: UnmeteredCall, record: Record, team: Team) -> tuple[Decimal, Usage]:
    """The most that a call can have taken. Nothing for a run inside this one, which counts for itself, and
    for a worker that is gone.
    """
    conductor, sampling = team.conductor, record.task.sampling
    if call.writes_plan and conductor is not None and conductor.member.name == call.worker:
        member, sampling = conductor.member, conductor.sampling
    else:
        member = team.pool.get(call.worker)
    if member is None:
        return Decimal(0), Usage()
    bound = call_bound(member, Call(call.prompt, member.with_defaults(sampling)))
    return (member.worst_price.most(bound) if member.worst_price else Decimal(0)), bound


WriteDown = Callable[[RunRecords], Awaitable[None]]
"""Puts the records of a run that is about to wait for its client where every process finds them."""


@dataclass(frozen=True, slots=True)
class Family:
    """What a run shares with the runs inside it.

    Args:
        team: who plans, and who may answer.
        ledger: the spending of all of them.
        refusals: what workers have refused so far.
        owner: the process that runs them.
        account: who asked for them.
        journal: told of every event of each.
        earlier: the records of runs inside it to continue from, by id.
        taken: those of them that are continued.
        write_down: puts the records of all of them where every process finds them.
    """

    team: Team
    ledger: Ledger
    refusals: Refusals = field(default_factory=Refusals)
    owner: str = ""
    account: Account = NOBODY
    journal: Journal | None = None
    earlier: Mapping[str, Record] = field(default_factory=dict[str, Record])
    taken: set[str] = field(default_factory=set[str])
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
    account: Account = NOBODY,
    journal: Journal | None = None,
    write_down: WriteDown | None = None,
) -> AsyncGenerator[Run]:
    """Run `task` over `team` for as long as the block lasts.

    Args:
        team: who plans, and who may answer.
        task: what to do.
        id: the run's name; made up where None.
        ledger: what its budget draws on, such as an account's.
        trace_id: of the trace it belongs to.
        owner: the process that runs it, for the record.
        account: who asked for it, for the record.
        journal: told of every event of the run and of the runs inside it, before any reader.
        write_down: awaited before the run is suspended: it can be continued from what it is given.

    A run that has not ended with its block is cancelled; `Run.detach` leaves it to another process.

    Raises:
        BadTask: before anything is called. Whatever happens later is the run's terminal event.
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
    given: Given | None = None,
    write_down: WriteDown | None = None,
    paid_usd: Decimal = Decimal(0),
) -> AsyncGenerator[Run]:
    """Continue a run that another process has left, or one that waits for results of tools, for as long as the
    block lasts.

    No step that had ended is called again, and what was spent is counted once. Calls that were open are
    lost and made again. They count with what is on record of them; where nothing is, as after a kill, with
    the most they could take. Those that were paid all the same are in the record's cost from now on.

    Args:
        team: as `open_run`; it must have the workers that the record's plans name.
        records: of the run and of the runs inside it, as far as they had got.
        ledger: what the run's budget draws on from now on.
        owner: the process that continues it, for the record.
        journal: as for `open_run`.
        write_down: as for `open_run`.
        given: what a run that waits has waited for.
        paid_usd: what is known to be paid for the run and the runs inside it, as far as whoever pays knows.

    Raises:
        BadTask: the team cannot do the record's task any more. Nothing was called.
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
    async with _running(family, log, is_continued=True, given=given, lost_usd=lost_usd) as run:
        yield run


@asynccontextmanager
async def _running(
    family: Family,
    log: EventLog,
    *,
    is_continued: bool = False,
    outer: Run | None = None,
    deadline_at_s: float | None = None,
    given: Given | None = None,
    lost_usd: Decimal = Decimal(0),
) -> AsyncGenerator[Run]:
    run = Run(log, None if outer else family.earlier, outer)
    was_given_up = log.record.status == "cancelled" and outer is not None  # it can be wanted again
    goes_on = given is not None or was_given_up or log.record.status in ("running", "detached")
    if not goes_on:
        await log.replay()
        yield run
        return
    members = _members(family, run)
    if given is not None:  # once it can go on: what is on record of it was given for good
        log.append(ResultsGiven(log.record.wall_s, given, family.owner, _waiting_time_s(log.record)))
    write_down = None if outer else _writer(family, run)
    loop = RoundLoop(family.team, members, log, family.ledger, family.refusals, deadline_at_s, write_down)
    if is_continued and given is None:
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
    """How long a run that is suspended has waited, by the clocks of the processes that had it; never less than
    nothing.
    """
    suspended = record.segments[-1].suspended if record.segments else 0.0
    return max(0.0, time.time() - suspended) if suspended else 0.0


def _writer(family: Family, run: Run) -> Callable[[], Awaitable[None]] | None:
    write_down = family.write_down
    return None if write_down is None else lambda: write_down(run.records)


def _begin(
    family: Family,
    task: Task,
    id: str,
    *,
    parent: CallSite | None = None,
    trace_id: str | None = None,
) -> Record:
    """The record of a run that has not begun, with the order in which the conductor will see its workers."""
    team = family.team
    names = list(team.members_for(task))
    if task.depth > 0 and task.plan is None:
        names.append(TEAM)
    if team.conductor is not None and team.conductor.shuffle:
        random.shuffle(names)
    return Record(id, task, time.time(), tuple(names), parent, family.owner, trace_id, account=family.account)


def _members(family: Family, run: Run) -> dict[str, PoolMember]:
    """The workers of the run in its record's order, the whole team among them where the task allows depth.

    Raises:
        BadTask: one of them is gone.
    """
    record = run.record
    allowed = family.team.members_for(record.task)
    if gone := set(record.workers) - {*allowed, TEAM}:
        raise BadTask(
            f"The run needs the worker {min(gone)!r}, which is not there any more.", param="podium.workers"
        )

    @asynccontextmanager
    async def open_inner(call: Call) -> AsyncGenerator[Run]:
        async with _inner(family, run, call) as inner:
            yield inner

    planner = family.team.planner(record.task)
    price = estimate_price(planner and planner.member, allowed.values(), record.task.max_steps)
    itself = team_member(record.task.model, open_inner, price)
    return {
        name: itself if name == TEAM and name not in allowed else allowed[name] for name in record.workers
    }


@asynccontextmanager
async def _inner(family: Family, outer: Run, call: Call) -> AsyncGenerator[Run]:
    """The run that answers `call`: the one that a process before had begun with the same task, or a new
    one.
    """
    site = call.site
    waiting = find_waiting(call, family.earlier)
    if waiting is not None:
        family.taken.add(waiting.record.id)
        log = EventLog(waiting.record, family.journal)
        async with _running(
            family,
            log,
            is_continued=True,
            outer=outer,
            deadline_at_s=call.terms.deadline_at_s,
            given=waiting.given,
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
        family,
        task,
        _new_id(family, site),
        parent=site,
        trace_id=outer.record.trace_id,
    )
    log = EventLog(record, family.journal)
    async with _running(
        family, log, is_continued=earlier is not None, outer=outer, deadline_at_s=call.terms.deadline_at_s
    ) as run:
        outer.inner.append(run)
        yield run


def _take_earlier(family: Family, task: Task, outer: Record, site: CallSite) -> Record | None:
    """The record of a run inside `outer` that asks the same and answers no other step; nobody else continues
    it.
    """
    answers = {call.inner_run for call in outer.calls}
    same = [
        record
        for id, record in family.earlier.items()
        if id not in answers
        and id not in family.taken
        and record.parent is not None
        and record.parent.run == outer.id
        and replace(record.task, stream=task.stream) == task
    ]
    here = [
        record
        for record in same
        if record.parent and (record.parent.plan, record.parent.step) == (site.plan, site.step)
    ]
    found = next(iter(here or same), None)
    if found is not None:
        family.taken.add(found.id)
    return found


def _new_id(family: Family, site: CallSite) -> str:
    """Named after the step that asks, and unlike every earlier one."""
    id = f"{site.run}.{site.plan}.{site.step}"
    while id in family.earlier:
        id += "+"
    return id
