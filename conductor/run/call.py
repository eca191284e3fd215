"""One call, paid for: reserve, open, read, settle. The only place that opens a worker."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal

from conductor.errors import Interrupted, WorkerError, WorkerRefused, WorkerUnavailable, quote
from conductor.model.failure import Attempt, Failure, charges
from conductor.model.messages import Image, Text
from conductor.model.pool_member import PoolMember
from conductor.model.usage import Usage, total
from conductor.model.worker import Call, CallResult, Reply
from conductor.run.ledger import BudgetLedger, Ledger

TOKENS_PER_IMAGE = 2_048
"""Upper bound of what a picture costs with the pool's providers at automatic detail."""
TOKENS_PER_MESSAGE = 16
"""Upper bound of a chat template's marks around a message."""


def input_bound(call: Call) -> int:
    """An upper bound of the prompt's tokens, without any model's tokenizer: a token is at least one byte of
    UTF-8.
    """
    tokens = TOKENS_PER_MESSAGE
    for message in call.messages:
        tokens += TOKENS_PER_MESSAGE
        for part in message.parts:
            match part:
                case Text(text=text):
                    tokens += len(text.encode("utf-8", "surrogatepass"))
                case Image():
                    tokens += TOKENS_PER_IMAGE
    return tokens


def call_bound(member: PoolMember, call: Call) -> Usage:
    """The most that `call` can take at `member`; its settings are already in `call`."""
    return Usage(input_bound(call), call.sampling.max_output_tokens or member.max_output_tokens)


@asynccontextmanager
async def open_call(member: PoolMember, call: Call, ledger: Ledger) -> AsyncGenerator[Reply]:
    """Call `member` inside the budget; entered at the first token.

    Leaving the block closes the call and settles it, with the calls that failed before it. One that never
    reached its first token for an error of the worker costs what its server said, which mostly is nothing;
    one that was broken off counts with what the server said by then, or with all that was held. One whose
    server says what cannot be true counts with the most it could take.

    Raises:
        BudgetExceeded: nothing was called.
        WorkerError: with the step that asked; `WorkerRefused` where the run's permit leaves the worker out.
    """
    if not (call.permit.allows(member.name) or member.bills_inner_calls):
        message = f"{quote(member.name)} is none of the workers that this run may call."
        raise WorkerRefused(message, worker=member.name, step=call.site.step, every_call=True)
    call = replace(call, sampling=member.with_defaults(call.sampling))
    if member.bills_inner_calls:
        ledger = BudgetLedger()
    bound = call_bound(member, call)
    async with ledger.hold(member.worst_price, bound.input_tokens, bound.output_tokens, member.name) as hold:
        call = replace(call, sampling=replace(call.sampling, max_output_tokens=hold.max_output_tokens))
        reply: Reply | None = None
        try:
            async with member.worker.open(call) as reply:
                reply.bound = replace(bound, output_tokens=hold.max_output_tokens)
                yield reply
        except WorkerError as exc:
            exc.step = call.site.step
            if reply is None:
                await ledger.settle(hold, *_sum(charges(Failure.of(exc))))
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
                await ledger.settle(hold, *_all_of(reply.result))


def _all_of(result: CallResult) -> tuple[Decimal | None, Usage | None]:
    """What a call and the failed ones before it took; None where its own part is unknown."""
    cost_usd, usage = _sum(charges(None, result.attempts))
    return total([result.cost_usd, cost_usd]), None if result.usage is None else result.usage + usage


def _sum(failed: Iterable[Failure | Attempt]) -> tuple[Decimal, Usage]:
    known = list(failed)
    cost_usd = sum((each.cost_usd for each in known if each.cost_usd is not None), Decimal(0))
    return cost_usd, sum((each.usage for each in known if each.usage is not None), Usage())
