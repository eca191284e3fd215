"""Calls of a run: the most that a call can use, opening it within the budget, and reading its answer in a task."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from msgspec.structs import replace

from conductor.errors import (
    BudgetExceeded,
    Interrupted,
    StoreUnavailable,
    WorkerError,
    WorkerRefused,
    WorkerUnavailable,
    quote,
)
from conductor.model.call import AnswerFormat, Call
from conductor.model.messages import File, Image, Message, Part, Text, Tool, ToolCall, ToolResult
from conductor.model.reply import Delta, Reply
from conductor.model.usage import Usage
from conductor.model.worker import PoolMember
from conductor.run.call_holds import CallHolds
from conductor.run.ledger import BudgetLedger, Ledger
from conductor.run.waiting import wait_until_done

TOKENS_PER_IMAGE = 2_048
"""Number of tokens that are reserved for an image. If a model counts more, the excess is billed anyway."""
PDF_TOKENS, BYTES_PER_PDF_TOKEN, MOST_PDF_TOKENS = 4_096, 16, 300_000
"""Estimate for a PDF: base tokens, bytes per additional token, and the maximum, which is the most that
providers accept.
"""
TOKENS_PER_MESSAGE = 16
"""Upper bound of a chat template's markup around a message, a call or a tool."""
TOKENS_PER_CONTINUATION = 1_024
"""Reserve for the prompt that asks a model to continue an answer, in tokens."""
TOKENS_PER_FORMAT = 3_072
"""Reserve for the prompts around an answer's schema and for the repair of an answer, in tokens."""


def call_bound(member: PoolMember, call: Call) -> Usage:
    """Return the maximum token usage of `call` at `member`. `call` must already contain the member's defaults."""
    return Usage(input_bound(call), call.sampling.max_output_tokens or member.max_output_tokens)


def input_bound(call: Call) -> int:
    """Return an upper bound of the prompt's tokens without a tokenizer: a token is at least one UTF-8 byte."""
    messages = sum(_message_bound(message) for message in call.messages)
    tools = sum(_tool_bound(tool) for tool in call.tools.offered)
    prefix_bound = TOKENS_PER_CONTINUATION + _size(call.prefix) if call.prefix else 0
    return TOKENS_PER_MESSAGE + messages + tools + prefix_bound + _format_bound(call.answer_format)


def sent_bytes(call: Call) -> int:
    """Return the approximate size of the prompt of `call` in bytes. Reserves for prompts that may be added are
    not included.
    """
    reserved_tokens = TOKENS_PER_CONTINUATION if call.prefix else 0
    if answer_format := call.answer_format:
        reserved_tokens += TOKENS_PER_FORMAT + _format_size(answer_format)
    return input_bound(call) - reserved_tokens


def _message_bound(message: Message) -> int:
    native = _json_size(message.native.payload) if message.native else 0
    native += _json_size(message.thoughts) if message.thoughts else 0
    return TOKENS_PER_MESSAGE + native + sum(_part_bound(part) for part in message.parts)


def _part_bound(part: Part) -> int:
    match part:
        case Text(text=text):
            return _size(text)
        case Image():
            return TOKENS_PER_IMAGE
        case File():
            return TOKENS_PER_MESSAGE + _size(part.name) + file_tokens(part)
        case ToolCall():
            return TOKENS_PER_MESSAGE + _size(part.name) + _size(part.arguments)
        case ToolResult():
            return TOKENS_PER_MESSAGE + sum(_part_bound(each) for each in part.parts)


def file_tokens(file: File) -> int:
    """Return an upper estimate of the tokens of a file."""
    if file.text is not None:
        return file.n_bytes
    return min(PDF_TOKENS + file.n_bytes // BYTES_PER_PDF_TOKEN, MOST_PDF_TOKENS)


def _tool_bound(tool: Tool) -> int:
    schemas = _json_size(tool.parameters) + _json_size(tool.format)
    return TOKENS_PER_MESSAGE + _size(tool.name) + _size(tool.description) + schemas


def _format_bound(wanted: AnswerFormat | None) -> int:
    """Count the schema twice: a server may receive it as a parameter and in the prompt."""
    if wanted is None:
        return 0
    return TOKENS_PER_FORMAT + 2 * _format_size(wanted)


def _format_size(wanted: AnswerFormat) -> int:
    return _json_size(wanted.schema) + _size(wanted.description)


def _json_size(value: object) -> int:
    return 0 if value is None else _size(json.dumps(value, default=str))


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


@asynccontextmanager
async def open_call(member: PoolMember, call: Call, ledger: Ledger) -> AsyncGenerator[Reply]:
    """Call `member` within the budget.

    The block is entered at the first token. Leaving it closes the call and charges its cost to the budget. Each
    attempt has its own reservation: a retry or failover reserves budget only after the previous attempt has
    been charged.

    - A call that failed before its first token costs what its server reported, usually nothing. If the model
      was already at work, the call costs its bound, the most that it can use.
    - An interrupted call costs what its server has reported so far.
    - A call whose server reports nothing, or an impossible usage, costs its bound. `Reply.result` shows the
      same cost.

    Raises:
        BudgetExceeded: the budget does not allow the call, or another attempt.
        WorkerError: the call failed. The error names the step.
        WorkerRefused: the run's permit excludes the worker.
    """
    _check_permit(member, call)
    call = replace(call, sampling=member.with_defaults(call.sampling))
    if member.bills_inner_calls:
        ledger = BudgetLedger()
    bound = call_bound(member, call)
    async with CallHolds(ledger, member, bound, call.terms.observer) as holds:
        sampling = replace(call.sampling, max_output_tokens=holds.max_output_tokens)
        call = replace(call, sampling=sampling, terms=replace(call.terms, holds=holds))
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
        except Interrupted as exc:  # raised by the worker; an interrupted run reports it by itself
            message = f"The call to {member.name} was interrupted: {exc.message}"
            raise WorkerUnavailable(
                message, worker=member.name, step=call.site.step, detail=exc.detail
            ) from exc
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            name = reply.worker if reply else member.name
            message = (
                f"The worker {name} cancelled its own call."  # else it looks like a client that disconnected
            )
            raise WorkerUnavailable(message, worker=name, step=call.site.step) from None
        finally:
            if reply is not None:
                reply.close_bill()
                await holds.finish(reply.result)


def _check_permit(member: PoolMember, call: Call) -> None:
    """Check that the call's permit allows the worker.

    A worker that runs a team always passes, because each of its inner calls is checked.

    Raises:
        WorkerRefused: the permit excludes the worker.
    """
    if not (call.terms.permit.allows(member.name) or member.bills_inner_calls):
        message = f"This run may not call worker {quote(member.name)}."
        raise WorkerRefused(message, worker=member.name, step=call.site.step, every_call=True)


class CallTask:
    """A call in a task of its own. The call stays open until `leave`.

    Args:
        opening: context manager of the call, as `Worker.open` returns it. The task enters it immediately.
        room: maximum number of deltas that are queued for the reader.
    """

    def __init__(self, opening: AbstractAsyncContextManager[Reply], room: int = 1) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[Reply] = loop.create_future()
        """The reply, or the error that the call raised before its first token."""
        self._reader_exit: asyncio.Future[None] = loop.create_future()
        self._pieces = asyncio.Queue[Delta | Exception | None](room)
        self._has_all = False
        self._delivered_error: Exception | None = None
        """The error after the first token, once the reader has received it."""
        self._task = asyncio.create_task(self._hold_open(opening))
        self._task.add_done_callback(_retrieve_exception)
        self.opened.add_done_callback(_retrieve_exception)

    @property
    def has_ended(self) -> bool:
        """Whether the wait for the first token has ended: the token has arrived, or the call has failed."""
        return self.opened.done()

    @property
    def error(self) -> BaseException | None:
        """Error of the call before its first token, or None if the token has arrived or may still arrive."""
        if not self.opened.done():
            return None
        return asyncio.CancelledError() if self.opened.cancelled() else self.opened.exception()

    @property
    def reply(self) -> Reply | None:
        """The reply, once the first token has arrived."""
        return self.opened.result() if self.opened.done() and self.error is None else None

    @property
    def failure(self) -> Exception | None:
        """Error of the call, before or after its first token. None if it succeeded or was cancelled. Read it
        after `leave`.
        """
        ended = self._task.done() and not self._task.cancelled()
        failure = self._task.exception() if ended else None
        return failure if isinstance(failure, Exception) else None

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[Reply]:
        """Yield the reply once the first token has arrived. Leaving the block closes the call. Use it only once.

        Raises:
            WorkerError, BudgetExceeded: opening the call failed.
        """
        try:
            await asyncio.wait([self.opened])  # awaiting the future itself would cancel it with this task
            yield self.opened.result()
        except BaseException as exc:
            await self.leave(exc)
            raise
        else:
            await self.leave()

    async def leave(self, error: BaseException | None = None) -> None:
        """Stop reading and close the call.

        Deltas that have arrived count for the bill even if they were not read. An answer that has arrived in
        full counts as complete. A call that is still streaming is cancelled.

        Args:
            error: reason, or None if the reader has finished. If the answer has arrived in full, `error` is
                raised inside the call's context manager.
        """
        while not self._pieces.empty():
            piece = self._pieces.get_nowait()
            if isinstance(piece, Delta):
                reply = self.opened.result()
                reply.count(piece)
                reply.finish = reply.finish or piece.finish
        if self._has_all and not self._reader_exit.done() and (error is None or isinstance(error, Exception)):
            self._reader_exit.set_exception(error) if error else self._reader_exit.set_result(None)
        else:
            self._task.cancel()
        await wait_until_done([self._task])
        if error is not None or self._task.cancelled():
            return
        if (
            failure := self._task.exception()
        ) is not None and failure is not self._delivered_error:  # the reader has handled it
            raise failure

    async def _hold_open(self, opening: AbstractAsyncContextManager[Reply]) -> None:
        try:
            async with opening as reply:
                source, reply.deltas = reply.deltas, self._relay()
                self.opened.set_result(reply)
                async for delta in source:
                    await self._pieces.put(delta)
                self._has_all = True
                await self._pieces.put(None)
                await self._reader_exit
        except asyncio.CancelledError:
            self.opened.cancel()  # the worker cancelled its own call
            if self.reply is not None and not (self._reader_exit.done() or self._task.cancelling()):
                message = f"The worker {self.reply.worker} cancelled its own call."
                await self._pieces.put(WorkerUnavailable(message, worker=self.reply.worker))
            raise
        except Exception as exc:
            if not self.opened.done():
                self.opened.set_exception(exc)
            elif not self._reader_exit.done():
                await self._pieces.put(exc)
            raise

    async def _relay(self) -> AsyncGenerator[Delta]:
        while (piece := await self._pieces.get()) is not None:
            if isinstance(piece, Exception):
                self._delivered_error = piece
                raise piece
            yield piece


def _retrieve_exception(ended: "asyncio.Future[Reply] | asyncio.Task[None]") -> None:
    """Retrieve the exception, so that asyncio does not log it. The reader of the call raises it."""
    if not ended.cancelled():
        ended.exception()
