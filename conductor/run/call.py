"""One call, paid for: reserve, open, read, settle. The only place that opens a worker."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from conductor.errors import (
    BudgetExceeded,
    Interrupted,
    StoreUnavailable,
    WorkerError,
    WorkerRefused,
    WorkerUnavailable,
    quote,
)
from conductor.model.call import Call
from conductor.model.field_values import copy_with
from conductor.model.pool_member import PoolMember
from conductor.model.reply import Reply
from conductor.run.call_bound import call_bound
from conductor.run.call_holds import CallHolds
from conductor.run.ledger import BudgetLedger, Ledger


@asynccontextmanager
async def open_call(member: PoolMember, call: Call, ledger: Ledger) -> AsyncGenerator[Reply]:
    """Call `member` inside the budget; entered at the first token.

    Leaving the block closes the call and settles it. Each time that it is made it is held for itself: a
    retry, and a call to a fallback, only once the one before is paid. One that never reached its first token
    for an error of the worker costs what its server said, which mostly is nothing, or all that it could where
    the model was at work; one that was broken off counts with what the server said by then. One whose server
    says what cannot be true, or nothing, counts with the most it could take, in the reply's result too.

    Raises:
        BudgetExceeded: nothing was called, or not once more.
        WorkerError: with the step that asked; `WorkerRefused` where the run's permit leaves the worker out.
    """
    _check_permit(member, call)
    call = copy_with(call, sampling=member.with_defaults(call.sampling))
    if member.bills_inner_calls:
        ledger = BudgetLedger()
    bound = call_bound(member, call)
    async with CallHolds(ledger, member, bound, call.terms.observer) as holds:
        sampling = copy_with(call.sampling, max_output_tokens=holds.max_output_tokens)
        call = copy_with(call, sampling=sampling, terms=copy_with(call.terms, holds=holds))
        reply: Reply | None = None
        try:
            async with member.worker.open(call) as reply:
                reply.bound = holds.bound
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
        except Interrupted as exc:  # a worker's word for it; a run that is cut says so itself
            message = f"{member.name} was interrupted: {exc.message}"
            raise WorkerUnavailable(
                message, worker=member.name, step=call.site.step, detail=exc.detail
            ) from exc
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            name = reply.worker if reply else member.name
            message = f"{name} broke off its own call."  # so that nobody mistakes it for a caller who left
            raise WorkerUnavailable(message, worker=name, step=call.site.step) from None
        finally:
            if reply is not None:
                reply.close_bill()
                await holds.finish(reply.result)


def _check_permit(member: PoolMember, call: Call) -> None:
    """Let through whom the call's permit allows, and what only calls others: those are held to it themselves.

    Raises:
        WorkerRefused: the permit leaves the worker out.
    """
    if not (call.terms.permit.allows(member.name) or member.bills_inner_calls):
        message = f"{quote(member.name)} is none of the workers that this run may call."
        raise WorkerRefused(message, worker=member.name, step=call.site.step, every_call=True)
