"""A guess: while the conductor writes a run's first plan, the worker that it will probably ask is asked already, the user's
own words. The plan's first step takes the call over where its own would be the same; otherwise it is closed and paid.

Nothing that it says is shown before. It takes nothing from the conductor, or from the plan's own workers: it is made only where
it costs nothing, or nothing limits what is spent.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from decimal import Decimal

from conductor.errors import PodiumError, internal_error
from conductor.model.call import Call, CallSite
from conductor.model.callee import Callee
from conductor.model.failure import Attempt, Failure
from conductor.model.field_values import copy_with
from conductor.model.pool_member import PoolMember
from conductor.model.refusals import Refusals
from conductor.model.reply import Reply
from conductor.model.usage import Price, Usage
from conductor.plan.plan import Step
from conductor.plan.prompts import work
from conductor.plan.tool_text import with_tools_as_text
from conductor.run.call import open_call
from conductor.run.call_bound import call_bound
from conductor.run.call_task import CallTask
from conductor.run.events import CallFailed, CallQueued
from conductor.run.guess_events import GuessEnded, GuessOutcome, GuessStarted
from conductor.run.ledger import Hold, Ledger
from conductor.run.run_context import RunContext
from conductor.run.speculation import Speculation, may_guess
from conductor.run.waiting import wait_until_done

ROOM = 64
"""Pieces of the answer that may wait for the plan."""
PATIENCE_S = 20.0
"""So long a call waits for its plan, with the slot that it holds."""
WRONG = "which did not ask for it"
LATE = "which was not there in time"
BROKEN_OFF = "which was broken off"


def begin_guess(speculation: Speculation | None, context: RunContext, *, live: bool) -> "Guess | None":
    """Ask the likeliest worker of the plan that has just been begun; None: nobody is asked. Does not wait.

    Args:
        speculation: who knows it; None: nobody does.
        context: of the run.
        live: whether the plan's last step goes to the client as it comes.
    """
    record, task = context.log.record, context.task
    is_first = len(record.plans) == 1 and record.parent is None
    if speculation is None or not is_first or not may_guess(task):
        return None
    member = context.pool.get(speculation.likeliest(record) or "")
    if member is None or member.bills_inner_calls or member.worst_price is None:
        return None
    call = _first_call(context, member, live=live)
    bound = call_bound(member, copy_with(call, sampling=member.with_defaults(call.sampling)))
    worst_usd = member.worst_price.most(bound)
    is_limited = task.budget.max_cost_usd is not None or bool(record.account.key_id)
    if (is_limited and worst_usd) or not speculation.admit(member.name, worst_usd):
        return None
    try:
        return Guess(context, member, call, speculation)
    except BaseException:
        speculation.end(member.name, "cut")
        raise


def _first_call(context: RunContext, member: PoolMember, *, live: bool) -> Call:
    """The call of a first step whose subtask is empty, as `StepCalls` makes it, with a site and refusals of its own."""
    task = context.task
    prompt = work(member, with_tools_as_text(task.conversation), Step(member.name, ""), (), {})
    site = CallSite(context.log.record.id, 0, 0, operation=task.operation, guess=True)
    call = context.silent_call(prompt.messages, site, task.sampling, coalesce=not (task.stream and live))
    return copy_with(call, refusals=Refusals())


class Guess:
    """One such call, in a task of its own from the moment that it is made.

    Args:
        context: of the run.
        member: who is asked.
        call: what.
        speculation: told how it ended.
    """

    def __init__(self, context: RunContext, member: PoolMember, call: Call, speculation: Speculation) -> None:
        self._context, self._member, self._call, self._speculation = context, member, call, speculation
        self._outcome: GuessOutcome | None = None
        self._unsaid: list[Callable[[], None]] = []
        """What is put on record of the step once it has the call."""
        self._failed: list[Attempt] = []
        self._callee = Callee(member.name)
        """Whom it was sent to last."""
        self._closing: asyncio.Task[None] | None = None
        self._purse = _Purse(context.ledger)
        self._began_s = time.monotonic()
        context.log.append(GuessStarted(context.now_s(), 0, member.name, call.messages))
        told = copy_with(
            call, on_queued=self._note_wait, on_failed=self._note_failure, on_asked=self._note_callee
        )
        self._task = CallTask(open_call(member, told, self._purse), ROOM)
        self._patience = asyncio.get_running_loop().call_later(PATIENCE_S, self._give_up, LATE)

    def take(self, worker: str, call: Call) -> AbstractAsyncContextManager[Reply] | None:
        """The plan's first step asks `worker` this: the call that is open already, where it is the same in everything but its
        site and the size of its pieces; it is entered and left as `open_call` is. None: it is given up, and nobody waits for that.
        """
        if self._outcome is not None:
            return None
        same = copy_with(call, site=self._call.site, coalesce=self._call.coalesce) == self._call
        if not same or worker != self._member.name or self._task.error is not None:
            self._give_up(WRONG)
            return None
        self._patience.cancel()
        self._outcome = "kept"
        self._context.log.append(GuessEnded(self._context.now_s(), 0, "kept"))
        self._speculation.end(self._member.name, "kept")
        for say in self._unsaid:
            say()
        return self._task.read()

    async def close(self) -> None:
        """There is no plan any more that could take it. Closed and on record once this returns."""
        if self._outcome is None:
            plan = self._context.log.record.plans[0]
            is_cut = plan.is_interrupted or plan.failure is not None
            self._give_up(BROKEN_OFF, "cut") if is_cut else self._give_up(WRONG)
        if self._closing is not None:
            await wait_until_done([self._closing])
            self._closing.result()

    def _give_up(self, why: str, outcome: GuessOutcome = "lost") -> None:
        self._patience.cancel()
        self._outcome = outcome if self._task.error is None else "failed"
        closing = self._close(self._outcome, why)
        self._closing = asyncio.create_task(closing, name=f"guess {self._member.name}")

    async def _close(self, outcome: GuessOutcome, why: str) -> None:
        try:
            await self._task.leave(asyncio.CancelledError())
        finally:
            self._context.log.append(self._end(outcome, why))
            self._speculation.end(self._member.name, outcome)

    def _end(self, outcome: GuessOutcome, why: str) -> GuessEnded:
        """What is on record of a call that was made for nothing, once it is closed."""
        took_s, reply, error = time.monotonic() - self._began_s, self._task.reply, self._task.failure
        name, purse = reply.worker if reply else self._callee.worker, self._purse
        if error is None:
            message = f"It was asked before there was a plan, {why}; closed after {took_s:.2f} s."
            attempt, failed = Attempt(name, "", message, took_s=took_s), tuple(self._failed)
        else:
            failure = Failure.of(error if isinstance(error, PodiumError) else internal_error(error))
            attempt = Attempt.of(str(failure.get("worker") or name), failure, took_s=took_s)
            failed = failure.attempts
        attempt = replace(
            attempt,
            outcome="lost_guess",
            usage=purse.usage,
            cost_usd=purse.cost_usd,
            cost_is_bound=purse.is_bound,
            deployment=reply.deployment if reply else self._callee.deployment,
        )
        return GuessEnded(self._context.now_s(), 0, outcome, attempt, reply.attempts if reply else failed)

    def _note_callee(self, callee: Callee) -> None:
        self._callee = callee

    def _note_wait(self, why: str) -> None:
        def say() -> None:
            now_s, worker = self._context.now_s(), self._member.name
            self._context.log.append(CallQueued(now_s, 0, 0, worker, why))

        self._say_when_kept(say)

    def _note_failure(self, attempt: Attempt) -> None:
        self._failed.append(attempt)
        self._say_when_kept(
            lambda: self._context.log.append(CallFailed(self._context.now_s(), 0, 0, attempt))
        )

    def _say_when_kept(self, say: Callable[[], None]) -> None:
        if self._outcome == "kept":
            say()
        else:
            self._unsaid.append(say)


class _Purse:
    """The run's ledger, which keeps what was booked through it.

    Args:
        ledger: the run's.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.cost_usd, self.is_bound = Decimal(0), False
        self.usage: Usage | None = Usage()
        """None: not all of it is known."""

    @asynccontextmanager
    async def hold(
        self, price: Price | None, input_tokens: int, max_output_tokens: int, what: str
    ) -> AsyncGenerator[Hold]:
        """See `Ledger.hold`."""
        async with self._ledger.hold(price, input_tokens, max_output_tokens, what) as hold:
            try:
                yield hold
            finally:
                if not hold.settled:
                    self._book(hold.cost_usd, None, is_bound=hold.cost_usd > 0)

    async def settle(
        self, hold: Hold, cost_usd: Decimal | None, usage: Usage | None, *, is_bound: bool = False
    ) -> None:
        """See `Ledger.settle`."""
        is_known = cost_usd is not None
        self._book(cost_usd if is_known else hold.cost_usd, usage, is_bound=is_bound or not is_known)
        await self._ledger.settle(hold, cost_usd, usage, is_bound=is_bound)

    def _book(self, cost_usd: Decimal, usage: Usage | None, *, is_bound: bool) -> None:
        self.cost_usd += cost_usd
        self.is_bound |= is_bound
        self.usage = None if usage is None or self.usage is None else self.usage + usage
