"""Runs that go on here and began elsewhere: those of replicas that ended, and those that waited for tools."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from decimal import Decimal
from typing import Any

from conductor.errors import PodiumError, StoreUnavailable, internal_error
from conductor.model.failure import Failure
from conductor.run.event_log import Journal
from conductor.run.events import RunFailed, RunResumed
from conductor.run.fold import after
from conductor.run.ledger import Ledger
from conductor.run.lifecycle import resume_run
from conductor.run.record import Account, RunRecords
from conductor.run.run import Run
from conductor.run.task import Task
from conductor.run.team import Team
from conductor.run.turns import Given
from serving.accounts.account_policy import UNLIMITED, Policies
from serving.accounts.permission import check_tools, narrow_records, not_kept
from serving.pool import Pool
from serving.runs.content import kept_part
from serving.runs.kept import KeptRuns
from serving.runs.store import RecordStore
from serving.settings.sections import StoreSettings

DAY_S = 86_400.0
Opened = AbstractAsyncContextManager[Run]
Opener = Callable[[Ledger | None, str | None, Journal], Opened]
"""Opens a run, given what it draws on, the trace it belongs to and whom to tell what happens in it."""
Recorder = Callable[[str, Task, dict[str, str], Account, Opener, Given | None], Opened]
"""Opens a run inside its span, given its id, task, incoming headers, account and what its client sends to go on; keeps
its record."""
PolicyFinder = Callable[[Account], Awaitable[Policies]]
"""Finds what the runs of an account may reach, as it is now."""


class Continuing:
    """Continues runs from their records; each outlives whoever asks for it.

    Args:
        store: where they are.
        kept: drives them.
        pool: the one that serves now.
        policies: None: there are none.
        recorder: see `Recorder`.
        end_turn: told of a run that is about to wait.
    """

    def __init__(
        self,
        store: RecordStore,
        kept: KeptRuns,
        pool: Callable[[], Pool],
        policies: PolicyFinder | None,
        recorder: Recorder,
        end_turn: Callable[[RunRecords], Awaitable[None]],
    ) -> None:
        self._store, self._kept, self._pool = store, kept, pool
        self._policies, self._recorder, self._end_turn = policies, recorder, end_turn
        self._tasks = set[asyncio.Task[Any]]()

    async def write_down(self, records: RunRecords) -> None:
        """See `conductor.run.lifecycle.WriteDown`."""
        try:
            policies = await self._find_policies(records.record.account)
        except PodiumError:  # its key is not in force any more: nobody will resume it
            policies = UNLIMITED
        await self._store.suspend(records, _wait_s(self._pool().settings.store, policies))
        await self._end_turn(records)

    async def resume(self, id: str, given: Given, headers: dict[str, str], policies: Policies) -> Run | None:
        """Go on with a run that waits, inside its caller's policies; None where none of that id does, or another
        replica was first. Who resumes it owns its answer: close that when nobody reads it any more.

        Raises:
            PodiumError: it cannot go on, such as: a worker of it is gone. It waits on.
            StoreUnavailable: the store is away.
        """
        resuming = asyncio.create_task(self._resume(id, given, headers, policies), name=f"run {id} resumed")
        try:
            return await asyncio.shield(resuming)
        except asyncio.CancelledError:  # the client left: what is taken goes on
            resuming.add_done_callback(_close_answer)
            self._tasks.add(resuming)
            resuming.add_done_callback(self._tasks.discard)
            raise

    async def _resume(self, id: str, given: Given, headers: dict[str, str], policies: Policies) -> Run | None:
        records = await self._store.resume(id)
        if records is None:
            return None
        try:
            return await self._begin(self._narrow(records, policies), headers, given, policies)
        except Exception:
            try:
                await self._wait_on(records)
            except StoreUnavailable:
                self._store.forget(id)  # whoever looks for orphans finds it
            raise

    def take_over(self, records: RunRecords, paid_usd: Decimal) -> None:
        """Continue a run of a replica that has ended; its ledger has `paid_usd` for calls with a known bill."""
        task = asyncio.create_task(
            self._take_over(records, paid_usd), name=f"run {records.record.id} continued"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take_over(self, records: RunRecords, paid_usd: Decimal) -> None:
        if records.record.status == "waiting":  # taken to be resumed, and its results are not on record
            return await self._wait_on(records)
        try:  # narrowed first: what is kept of one that fails is by the policies of now, too
            policies = await self._find_policies(records.record.account)
            records = self._narrow(records, policies)
            run = await self._begin(records, {}, None, policies, paid_usd)
            run.answer.close()
        except Exception as exc:  # noqa: BLE001 (such as: a worker of it, or its key, is gone; nobody awaits this task)
            error = exc if isinstance(exc, PodiumError) else internal_error(exc)
            await self._fail(records, error, records.lost_usd(paid_usd))

    async def _wait_on(self, records: RunRecords) -> None:
        """Put a run back that was taken and has not gone on; it is this replica's since."""
        await self.write_down(replace(records, record=replace(records.record, owner=self._store.owner)))

    def _narrow(self, records: RunRecords, policies: Policies) -> RunRecords:
        """Inside the policies that its account has now."""
        return narrow_records(records, policies, self._pool().settings)

    async def _begin(
        self,
        records: RunRecords,
        headers: dict[str, str],
        given: Given | None,
        policies: Policies,
        paid_usd: Decimal = Decimal(0),
    ) -> Run:
        pool = self._pool()
        if given is not None and not records.record.task.permit.stores:
            raise not_kept("tools")  # it would be kept when it waits again
        new = given.tools if given is not None else None
        check_tools(records.record.task.tools if new is None else new, policies)
        record, team = records.record, _team_of(records, pool)

        def open_it(ledger: Ledger | None, _: str | None, journal: Journal) -> Opened:
            return resume_run(
                team,
                records,
                ledger=ledger,
                owner=self._store.owner,
                journal=journal,
                given=given,
                write_down=self.write_down,
                paid_usd=paid_usd,
            )

        opened = self._recorder(record.id, record.task, headers, record.account, open_it, given)
        return await self._kept.begin(opened, pool.settings.store.keep_s)

    async def _find_policies(self, account: Account) -> Policies:
        return await self._policies(account) if self._policies and account.key_id else UNLIMITED

    async def _fail(self, records: RunRecords, error: PodiumError, lost_usd: Decimal) -> None:
        at_s = records.record.wall_s
        taken = after(records.record, RunResumed(at_s, self._store.owner, lost_usd))
        failed = after(taken, RunFailed(at_s, Failure.of(error)))
        await self._store.put(kept_part(replace(records, record=failed)))


def _close_answer(resuming: "asyncio.Task[Run | None]") -> None:
    """Nobody reads the answer of the run that goes on."""
    if not resuming.cancelled() and resuming.exception() is None and (run := resuming.result()) is not None:
        run.answer.close()


def _wait_s(settings: StoreSettings, policies: Policies) -> float:
    """How long a run may wait: its texts are kept meanwhile, and no longer than any others."""
    days = [each for each in (settings.content_days, policies.both.content_days) if each is not None]
    return min([settings.tools_wait_s, *(each * DAY_S for each in days)])


def _team_of(records: RunRecords, pool: Pool) -> Team:
    task = records.record.task
    is_given = task.plan is not None and task.plan_source != "client"
    return pool.whole_pool_team if is_given else pool.team_for(task.permit)
