"""Opening a call within the budget, and the budget holds of a call.

A hold is a reservation. Each attempt has one. A hedge, a second parallel call for the same answer, has holds of
its own. The call and its hedge are called branches.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Self

from msgspec.structs import replace

from conductor.errors import (
    BudgetExceeded,
    Interrupted,
    PodiumError,
    StoreUnavailable,
    WorkerError,
    WorkerRefused,
    WorkerUnavailable,
    quote,
)
from conductor.model.call import Call
from conductor.model.failure import Attempt, Failure
from conductor.model.reply import CallResult, Reply
from conductor.model.terms import Callee, LikelyPrompt, Observer
from conductor.model.usage import FREE, Price, Usage, estimate, total, unseen_bytes
from conductor.model.worker import PoolMember
from conductor.run.call_bound import answer_estimate, call_bound, with_defaults
from conductor.run.ledger import BudgetLedger, Hold, Ledger
from conductor.run.plan_record import charges
from conductor.run.run import wait_until_done


@dataclass(slots=True, eq=False)
class _HeldCall:
    """Branch: one of at most two parallel calls. It is retried until it answers."""

    hold: Hold | None = None
    """Hold of the current attempt, or None if no attempt is running."""
    exit_stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    """Stack that releases the hold when it is closed."""
    failed: list[Attempt] = field(default_factory=list[Attempt])
    """Failed attempts whose cost has been charged."""
    is_dropped: bool = False
    """True once this branch has failed or lost the race, while the other branch continues."""
    waits: bool = False
    """True if the call is still queued and has not been sent."""
    callee: Callee | None = None
    """Worker and deployment that it was last sent to. None if it was not sent, or if that is not known."""
    sent_at_s: float = 0.0
    """Time at which it was last sent, by `time.monotonic`."""

    @property
    def is_open(self) -> bool:
        """True if the hold of the current attempt is not settled."""
        return self.hold is not None and not self.hold.settled


class CallHolds:
    """Holds of one call. Implements `Holds`.

    With `likely_prompt`, a call that ends before its server has reported the prompt is billed at an estimate.
    """

    def __init__(
        self,
        ledger: Ledger,
        member: PoolMember,
        bound: Usage,
        observer: Observer | None = None,
        likely_prompt: LikelyPrompt | None = None,
    ) -> None:
        self._ledger, self._member, self._bound, self._observer = ledger, member, bound, observer
        self._likely_prompt = likely_prompt
        self._exit_stack = AsyncExitStack()
        self._first = self._begin()
        """The branch that is expected to answer."""
        self._second: _HeldCall | None = None
        """The hedge. None unless two calls are running."""
        self._dropped: tuple[_HeldCall, Attempt | None] | None = None
        """The branch that lost and its last attempt, until `settle_dropped` charges it."""
        self.failed: list[Attempt] = []
        """Failed attempts of both branches."""

    async def __aenter__(self) -> Self:
        """Reserve the first hold. Raise BudgetExceeded, or StoreUnavailable if it cannot be stored."""
        await self._reserve(self._first)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Settle open holds: sent calls at their highest cost or an estimate, queued ones and unsent hedges at
        nothing.
        """
        for branch in filter(None, (self._first, self._second)):
            if branch.waits or (branch is self._second and branch.callee is None):
                await self._release(branch)
            elif branch.is_open and branch.callee is not None and (price := branch.callee.price) is not None:
                took_s = time.monotonic() - branch.sent_at_s
                message = f"The call was closed after {took_s:.2f} s, before its first token."
                closed = self._attempt_of_closed(branch, price, took_s, message)
                if self._likely_prompt is not None:
                    self._note(replace(closed, outcome="cut", hedge=branch is self._second))
                await self._settle(branch.hold, closed.cost_usd, None, is_bound=closed.cost_is_bound)
        await self._exit_stack.aclose()

    def _attempt_of_closed(
        self, branch: _HeldCall, price: Price | None, took_s: float, message: str
    ) -> Attempt:
        """Return the attempt of a call that was closed before its first token. Without a price, it costs nothing."""
        bound, callee = self._bound_of(branch), branch.callee or Callee(self._member.name)
        cost_usd = price.most(bound) if price is not None else None
        if price is not None and self._likely_prompt is not None:
            likely = estimate(bound, unseen_bytes(took_s), self._likely_prompt(callee))
            cost_usd = min(price.of(likely), price.most(bound))
        return Attempt(
            callee.worker,
            "",
            message,
            took_s=took_s,
            cost_usd=cost_usd,
            cost_is_bound=price not in (None, FREE),
            deployment=callee.deployment,
        )

    @property
    def bound(self) -> Usage:
        """Most tokens that the call can use under its current hold."""
        return self._bound_of(self._first)

    def hold(self, *, hedge: bool = False) -> "BranchHold":
        branch = self._second if hedge else self._first
        assert branch is not None, "the call has a hold"
        return BranchHold(self, branch)

    async def hold_second(self) -> bool:
        second = self._begin()
        try:
            await self._reserve(second)
        except (BudgetExceeded, StoreUnavailable):
            return False
        if self._bound_of(second).output_tokens < self._bound.output_tokens:
            await self._release(second)
            return False
        self._second = second
        return True

    async def release_second(self) -> None:
        if self._second is not None:
            second, self._second = self._second, None
            await self._release(second)

    def drop(self, *, hedge: bool, took_s: float, error: PodiumError | None = None) -> tuple[Attempt, ...]:
        assert self._second is not None, "two calls are running"
        loser, other = (self._second, self._first) if hedge else (self._first, self._second)
        self._first, self._second = other, None
        loser.is_dropped = True
        last: Attempt | None = None
        before: Iterable[Attempt] = loser.failed
        if isinstance(error, WorkerError):
            failure = self._bill_failure(error, loser)
            before, last = error.attempts, self._attempt(error, failure, loser, took_s)
        elif error is None:
            last = self._attempt_of_loser(loser, took_s)
        if last is not None:
            last = replace(last, hedge=hedge)
            self._note(last)
        self._dropped = loser, last
        return (*before, last) if last else tuple(before)

    async def settle_dropped(self) -> None:
        if self._dropped is not None:
            (loser, last), self._dropped = self._dropped, None
            if loser.hold is not None and last is not None:
                cost_usd = last.cost_usd
                if cost_usd is None and self._member.worst_price is not None:
                    cost_usd = Decimal(0)
                is_unknown = last.cost_is_bound or (last.outcome == "lost_race" and not loser.waits)
                usage = None if is_unknown else last.usage or Usage()
                await self._ledger.settle(loser.hold, cost_usd, usage, is_bound=last.cost_is_bound)
            await loser.exit_stack.aclose()

    def _begin(self) -> _HeldCall:
        branch = _HeldCall()
        self._exit_stack.push_async_exit(branch.exit_stack)
        return branch

    async def renew(self, branch: _HeldCall, error: WorkerError, wait_s: float = 0.0) -> int:
        if not branch.is_dropped:
            failure = self._bill_failure(error, branch)
            attempt = self._attempt(error, failure, branch)
            self._note(attempt)
            branch.failed.append(attempt)
            hold, branch.hold = branch.hold, None
            paying = asyncio.create_task(self._pay(hold, [failure], failure))
            # The attempt is recorded, so settle it even if the other branch wins.
            await wait_until_done([paying])
            paying.result()
            await branch.exit_stack.aclose()
            if wait_s:
                await asyncio.sleep(wait_s)
            await self._reserve(branch)
            if not branch.is_dropped:
                return self._bound_of(branch).output_tokens
            await self._release(branch)
        raise error  # the other branch has won: this one is recorded already and will be cancelled

    async def _release(self, branch: _HeldCall) -> None:
        hold, branch.hold = branch.hold, None
        await self._settle(hold, Decimal(0), Usage(), is_bound=False)
        await branch.exit_stack.aclose()

    def _note(self, attempt: Attempt) -> None:
        self.failed.append(attempt)
        if self._observer is not None:
            self._observer.on_failed(attempt)

    def _attempt_of_loser(self, loser: _HeldCall, took_s: float) -> Attempt:
        """Return the attempt of a call that lost the race. It is billed as a closed call if it was running."""
        price = self._price_of(loser)
        is_billed = price != FREE and loser.hold is not None and not loser.waits
        what = "The call was still queued" if loser.waits else "The call had returned nothing"
        message = f"{what} after {took_s:.2f} s, and another call for the same answer was faster."
        closed = self._attempt_of_closed(loser, price if is_billed else None, took_s, message)
        return replace(closed, outcome="lost_race")

    async def fail(self, error: WorkerError) -> None:
        """Settle a call that failed without an answer. It costs what its server reported, usually nothing."""
        failure = self._bill_failure(error, self._first)
        await self._pay(self._first.hold, [*self._unpaid(charges(None, failure.attempts)), failure], failure)

    async def finish(self, result: CallResult) -> None:
        """Settle the call that answered, together with earlier failed attempts that are not settled yet."""
        failed_usd, failed = _sum(self._unpaid(charges(None, result.attempts)))
        usage = None if result.usage is None else result.usage + failed
        cost_usd = total([result.cost_usd, failed_usd])
        await self._settle(self._first.hold, cost_usd, usage, is_bound=result.cost_is_bound)

    def _unpaid(self, failed: Iterable[Failure | Attempt]) -> list[Failure | Attempt]:
        """Return the failed attempts that `renew` has not settled, because the worker itself retried."""
        paid = [(each.cost_usd, each.usage) for each in self.failed]
        unpaid: list[Failure | Attempt] = []
        for each in failed:
            charge = (each.cost_usd, each.usage)
            if charge in paid:
                paid.remove(charge)
            else:
                unpaid.append(each)
        return unpaid

    def _bound_of(self, branch: _HeldCall) -> Usage:
        """Return the most tokens that the branch can use under its current hold."""
        longest = self._bound.output_tokens if branch.hold is None else branch.hold.max_output_tokens
        is_shorter = longest != self._bound.output_tokens
        return replace(self._bound, output_tokens=longest) if is_shorter else self._bound

    def _price_of(self, branch: _HeldCall) -> Price | None:
        """Return the price where the branch was sent, or else the highest of all its deployments."""
        return branch.callee.price if branch.callee else self._member.worst_price

    def _attempt(
        self, error: WorkerError, failure: Failure, branch: _HeldCall, took_s: float | None = None
    ) -> Attempt:
        name, callee = error.worker or self._member.name, branch.callee
        attempt = Attempt.of(name, failure, took_s=took_s)
        is_there = callee is not None and callee.worker == name
        return replace(attempt, deployment=callee.deployment) if callee and is_there else attempt

    def _bill_failure(self, error: WorkerError, branch: _HeldCall) -> Failure:
        """Return `error` as a failure. If the call is probably billed, its cost is the most that it can be."""
        price = self._price_of(branch)
        if error.billed_at_bound and price is not None and price != FREE:
            bound, n_bytes, callee = self._bound_of(branch), error.streamed_bytes, branch.callee
            prompt = self._likely_prompt(callee) if self._likely_prompt and callee else None
            took = (
                price.most(bound)
                if n_bytes is None
                else price.of(estimate(bound, n_bytes, prompt, error.sent_bytes))
            )
            error.cost_usd = max(took, error.cost_usd or Decimal(0))
        return Failure.of(error)

    async def _pay(self, hold: Hold | None, unpaid: Iterable[Failure | Attempt], last: Failure) -> None:
        cost_usd, usage = _sum(unpaid)
        await self._settle(hold, cost_usd, None if last.cost_is_bound else usage, is_bound=last.cost_is_bound)

    async def _reserve(self, branch: _HeldCall) -> None:
        price, bound = self._member.worst_price, self._bound
        reservation = self._ledger.hold(price, bound.input_tokens, bound.output_tokens, self._member.name)
        branch.hold = await branch.exit_stack.enter_async_context(reservation)
        branch.waits, branch.callee = False, None

    async def _settle(
        self, hold: Hold | None, cost_usd: Decimal | None, usage: Usage | None, *, is_bound: bool
    ) -> None:
        if hold is not None and not hold.settled:
            await self._ledger.settle(hold, cost_usd, usage, is_bound=is_bound)


def _sum(failed: Iterable[Failure | Attempt]) -> tuple[Decimal, Usage]:
    calls = list(failed)
    cost_usd = sum((each.cost_usd for each in calls if each.cost_usd is not None), Decimal(0))
    return cost_usd, sum((each.usage for each in calls if each.usage is not None), Usage())


@dataclass(frozen=True, slots=True)
class BranchHold:
    """Hold of one branch. Implements `AttemptHold`. A method of the branch would make a reference cycle per call."""

    _holds: CallHolds
    _branch: _HeldCall

    async def renew(self, error: WorkerError, wait_s: float = 0.0) -> int:
        return await self._holds.renew(self._branch, error, wait_s)

    @contextmanager
    def waiting(self) -> Generator[None]:
        self._branch.waits = True
        yield
        self._branch.waits = False  # skipped if the wait is cancelled: the call is never sent then

    def record_callee(self, callee: Callee) -> None:
        self._branch.callee, self._branch.sent_at_s = callee, time.monotonic()
        if self._branch.hold is not None:
            self._branch.hold.ask(callee)


@asynccontextmanager
async def open_call(
    member: PoolMember, call: Call, ledger: Ledger, likely_prompt: LikelyPrompt | None = None
) -> AsyncGenerator[Reply]:
    """Call `member` within the budget.

    The block is entered at the first token. Leaving it closes the call and charges its cost to the budget. Each
    attempt has its own reservation: a retry or failover reserves budget only after the previous attempt has
    been charged.

    - A call that failed before its first token costs what its server reported, usually nothing. If the model
      was already at work, the call costs its bound, the most that it can use.
    - An interrupted call costs what its server has reported so far.
    - A call whose server reports nothing, or an impossible usage, costs its bound. `Reply.result` shows the
      same cost.
    - A call that is closed before its first token costs its bound. With `likely_prompt`, it costs an estimate, which
      the record shows as an attempt. A call that is closed later has this prompt too, until its server reports one.

    Raises:
        BudgetExceeded: the budget does not allow the call, or another attempt.
        WorkerError: the call failed. The error names the step.
        WorkerRefused: the run's permit excludes the worker.
    """
    _check_permit(member, call)
    terms = replace(call.terms, answer_tokens=answer_estimate(member, call.sampling))
    call = replace(call, sampling=with_defaults(member, call.sampling))
    if member.bills_inner_calls:
        ledger = BudgetLedger()
    bound, observer = call_bound(member, call), call.terms.observer
    async with CallHolds(ledger, member, bound, observer, likely_prompt) as holds:
        sampling = replace(call.sampling, max_output_tokens=holds.bound.output_tokens)
        call = replace(call, sampling=sampling, terms=replace(terms, holds=holds))
        reply: Reply | None = None
        try:
            async with member.worker.open(call) as reply:
                reply.bound, reply.likely_prompt = holds.bound, likely_prompt
                yield reply
        except WorkerError as exc:
            exc.step = call.site.step
            if reply is None:
                await holds.fail(exc)
            raise
        except (BudgetExceeded, StoreUnavailable) as exc:
            if reply is None and holds.failed:
                exc.attempts, exc.step = tuple(holds.failed), call.site.step
            raise
        except Interrupted as exc:  # raised by the worker; an interrupted run reports it
            message = f"The call to {member.name} was interrupted: {exc.message}"
            raise WorkerUnavailable(
                message, worker=member.name, step=call.site.step, detail=exc.detail
            ) from exc
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            name = reply.worker if reply else member.name
            message = f"The worker {name} cancelled its own call."  # not that of a disconnected client
            raise WorkerUnavailable(message, worker=name, step=call.site.step) from None
        finally:
            if reply is not None:
                reply.close_bill()
                await holds.finish(reply.result)


def _check_permit(member: PoolMember, call: Call) -> None:
    """Raise WorkerRefused if the call's permit excludes the worker. For a team, each inner call is checked."""
    if not (call.terms.permit.allows(member.name) or member.bills_inner_calls):
        message = f"This run may not call worker {quote(member.name)}."
        raise WorkerRefused(message, worker=member.name, step=call.site.step, every_call=True)
