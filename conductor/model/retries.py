"""The same call once more, in a hold of its own."""

from dataclasses import replace

from conductor.errors import WorkerError
from conductor.model.worker import Call


async def call_again(call: Call, error: WorkerError) -> Call:
    """`call`, to be made again after `error`; its answer may have to be shorter.

    Raises:
        BudgetExceeded: it could cost more than is left.
        StoreUnavailable: what it could cost cannot be written down.
    """
    if call.on_retry is None:
        return call
    longest = await call.on_retry(error)
    asked = call.sampling.max_output_tokens
    sampling = replace(call.sampling, max_output_tokens=longest if asked is None else min(asked, longest))
    return replace(call, sampling=sampling)
