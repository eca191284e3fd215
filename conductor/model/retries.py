"""The same call once more, in a hold of its own."""

import asyncio

from conductor.errors import LineTooLong, WorkerError
from conductor.model.call import Call
from conductor.model.failure import charges
from conductor.model.field_values import copy_with


async def call_again(call: Call, error: WorkerError, wait_s: float = 0.0) -> Call:
    """`call`, to be made again after `error`; its answer may have to be shorter. Where it was paid, its run has begun,
    and is not sent away from a line any more.

    Args:
        call: that failed.
        error: why.
        wait_s: before it is made again. Nothing is held meanwhile: whoever leaves then pays for nothing more.

    Raises:
        BudgetExceeded: it could cost more than is left.
        StoreUnavailable: what it could cost cannot be written down.
    """
    before = any(charges(None, error.attempts))
    is_paid = before or error.billed_at_bound or error.usage is not None or error.cost_usd is not None
    waited_s = error.waited_s if isinstance(error, LineTooLong) else 0.0
    call = copy_with(call, begins=call.begins and not is_paid, waited_s=call.waited_s + waited_s)
    if call.on_retry is None:
        await asyncio.sleep(wait_s)
        return call
    longest = await call.on_retry(error, wait_s)
    asked = call.sampling.max_output_tokens
    sampling = copy_with(call.sampling, max_output_tokens=longest if asked is None else min(asked, longest))
    return copy_with(call, sampling=sampling)
