"""One call, paid for: reserve, open, read, settle. The only place that opens a worker."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace

from conductor.errors import WorkerError, WorkerUnavailable
from conductor.model.messages import Image, Text
from conductor.model.pool_member import PoolMember
from conductor.model.usage import Usage, cost_of
from conductor.model.worker import Call, Delta, FinishReason, Reply
from conductor.plan.marks import EchoFilter
from conductor.run.events import CallResult
from conductor.run.ledger import Ledger

TOKENS_PER_IMAGE = 2_048
"""Upper bound of what a picture costs with the pool's providers at automatic detail."""
TOKENS_PER_MESSAGE = 16
"""Upper bound of a chat template's marks around a message."""

ECHO = "The answer repeated marks of its prompt; they were removed."


def input_bound(call: Call) -> int:
    """An upper bound of the prompt's tokens, without any model's tokenizer: a token is at least one byte of UTF-8."""
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


@dataclass(slots=True)
class OpenCall:
    """A call under way: iterate it for the answer's pieces; `answered` says what it gave and took so far."""

    reply: Reply
    bound: Usage
    """The most that the call can take."""
    echo: EchoFilter | None = None
    """Removes the marks of the prompt where the answer repeats them."""
    texts: list[str] = field(default_factory=list[str])
    thoughts: list[str] = field(default_factory=list[str])

    async def __aiter__(self) -> AsyncGenerator[Delta]:
        async with aclosing(aiter(self.reply)) as deltas:
            async for delta in deltas:
                if self.echo and delta.text:
                    delta = replace(delta, text=self.echo.feed(delta.text))
                if delta.text:
                    self.texts.append(delta.text)
                if delta.reasoning:
                    self.thoughts.append(delta.reasoning)
                yield delta
        if self.echo and (rest := self.echo.finish()):
            self.texts.append(rest)
            yield Delta(rest)

    def cut(self, note: str) -> None:
        """It is broken off by who reads it, and billed at its bound."""
        self.reply.usage, self.reply.billed_at_bound, self.reply.finish = None, True, FinishReason.LENGTH
        self.reply.notes += (note,)

    @property
    def answered(self) -> CallResult:
        """As far as it got."""
        reply = self.reply
        used = self.bound if reply.billed_at_bound else reply.usage
        return CallResult(
            output="".join(self.texts), served_by=reply.worker, model=reply.model, usage=reply.usage,
            cost_usd=reply.cost_usd if reply.cost_usd is not None else cost_of(reply.price, used), finish=reply.finish, attempts=reply.attempts,
            reasoning="".join(self.thoughts), inner=reply.inner,
            notes=reply.notes + ((ECHO,) if self.echo and self.echo.removed else ()),
        )  # fmt: skip


@asynccontextmanager
async def open_call(
    member: PoolMember, call: Call, ledger: Ledger, echo: EchoFilter | None = None
) -> AsyncGenerator[OpenCall]:
    """Call `member` inside the budget; entered at the first token. What `echo` removes is in no answer.

    Leaving the block closes the call and settles it. A call that never reached its first token for an error of the worker
    gives its reservation back; one that was broken off counts with what the server said by then, or with all that was held.
    One whose server says what cannot be true counts with the most it could take.

    Raises:
        BudgetExceeded: nothing was called.
        WorkerError: with the step that asked.
    """
    call = member.with_defaults(call)
    if member.prepaid:
        ledger = Ledger()
    tokens, input_tokens = call.max_output_tokens or member.max_output_tokens, input_bound(call)
    async with ledger.hold(member.worst_price, input_tokens, tokens, member.name) as hold:
        call = replace(call, max_output_tokens=hold.max_output_tokens)
        asked: OpenCall | None = None
        try:
            async with member.worker.open(call) as reply:
                asked = OpenCall(reply, Usage(input_tokens, hold.max_output_tokens), echo)
                yield asked
        except WorkerError as exc:
            exc.step = call.step
            if asked is None:
                ledger.release(hold)
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            name = asked.reply.worker if asked else member.name
            message = f"{name} broke off its own call."  # so that nobody mistakes it for a caller who left
            raise WorkerUnavailable(message, worker=name, step=call.step) from None
        finally:
            if asked is not None:
                answered = asked.answered
                ledger.settle(hold, answered.cost_usd, answered.usage)
