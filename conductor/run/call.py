"""Open a call of a run, bound what it can cost, and read its answer in a task."""

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
"""What is held for a picture. Some models count more: what passes the hold is billed all the same."""
PDF_TOKENS, BYTES_PER_PDF_TOKEN, MOST_PDF_TOKENS = 4_096, 16, 300_000
"""Of a PDF: so many, and one more for so many bytes of it, but not more than the last, which is what providers take
at most. An estimate, as a picture's."""
TOKENS_PER_MESSAGE = 16
"""Upper bound of a chat template's marks around a message, a call or a tool."""
TOKENS_PER_CONTINUATION = 1_024
"""Of the words that ask to go on with an answer."""
TOKENS_PER_FORMAT = 3_072
"""Of the words around an answer's schema, and of those that ask to repair an answer."""


def call_bound(member: PoolMember, call: Call) -> Usage:
    """The most that `call` can take at `member`; its settings are already in `call`."""
    return Usage(input_bound(call), call.sampling.max_output_tokens or member.max_output_tokens)


def input_bound(call: Call) -> int:
    """An upper bound of the prompt's tokens, without any model's tokenizer: a token is at least one byte of
    UTF-8.
    """
    messages = sum(_message_bound(message) for message in call.messages)
    tools = sum(_tool_bound(tool) for tool in call.tools.offered)
    begun = TOKENS_PER_CONTINUATION + _size(call.prefix) if call.prefix else 0
    return TOKENS_PER_MESSAGE + messages + tools + begun + _format_bound(call.answer_format)


def sent_bytes(call: Call) -> int:
    """Return about how many bytes of prompt `call` sends: nothing is held for words that may be put around it."""
    held = TOKENS_PER_CONTINUATION if call.prefix else 0
    if wanted := call.answer_format:
        held += TOKENS_PER_FORMAT + _format_size(wanted)
    return input_bound(call) - held


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
    """About the most tokens that a file is read as."""
    if file.text is not None:
        return file.n_bytes
    return min(PDF_TOKENS + file.n_bytes // BYTES_PER_PDF_TOKEN, MOST_PDF_TOKENS)


def _tool_bound(tool: Tool) -> int:
    schemas = _json_size(tool.parameters) + _json_size(tool.format)
    return TOKENS_PER_MESSAGE + _size(tool.name) + _size(tool.description) + schemas


def _format_bound(wanted: AnswerFormat | None) -> int:
    """Of a schema twice: a server may be sent it beside the words that tell it to the model."""
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


class CallTask:
    """One call, open until it is left.

    Args:
        opening: entered at the first token, as `Worker.open`; it is begun at once.
        room: how many pieces may wait for their reader.
    """

    def __init__(self, opening: AbstractAsyncContextManager[Reply], room: int = 1) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[Reply] = loop.create_future()
        """The reply, or why there is none."""
        self._left: asyncio.Future[None] = loop.create_future()
        self._pieces = asyncio.Queue[Delta | Exception | None](room)
        self._has_all = False
        self._told: Exception | None = None
        """What went wrong after the first token, once its reader knows."""
        self._task = asyncio.create_task(self._hold_open(opening))
        self._task.add_done_callback(_look_at)
        self.opened.add_done_callback(_look_at)

    @property
    def has_ended(self) -> bool:
        """Whether it has spoken or failed."""
        return self.opened.done()

    @property
    def error(self) -> BaseException | None:
        """Why it will never speak; None: it has, or still may."""
        if not self.opened.done():
            return None
        return asyncio.CancelledError() if self.opened.cancelled() else self.opened.exception()

    @property
    def reply(self) -> Reply | None:
        """What it says, once it has spoken."""
        return self.opened.result() if self.opened.done() and self.error is None else None

    @property
    def failure(self) -> Exception | None:
        """What went wrong in it, before its first token or after, as far as that is known once it is left."""
        ended = self._task.done() and not self._task.cancelled()
        failure = self._task.exception() if ended else None
        return failure if isinstance(failure, Exception) else None

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[Reply]:
        """Its reply once the first token is there; left with the block, so once only.

        Raises:
            WorkerError, BudgetExceeded: whatever opening it raised.
        """
        try:
            await asyncio.wait([self.opened])  # unlike awaiting it, this does not cancel it with us
            yield self.opened.result()
        except BaseException as exc:
            await self.leave(exc)
            raise
        else:
            await self.leave()

    async def leave(self, error: BaseException | None = None) -> None:
        """Nobody reads it any more, because of `error`, which its layers see. What has come by now is billed as its server
        said, and a whole answer counts as one. Closed once this returns.
        """
        while not self._pieces.empty():
            piece = self._pieces.get_nowait()
            if isinstance(piece, Delta):
                reply = self.opened.result()
                reply.count(piece)
                reply.finish = reply.finish or piece.finish
        if self._has_all and not self._left.done() and (error is None or isinstance(error, Exception)):
            self._left.set_exception(error) if error else self._left.set_result(None)
        else:
            self._task.cancel()
        await wait_until_done([self._task])
        if error is not None or self._task.cancelled():
            return
        if (
            failure := self._task.exception()
        ) is not None and failure is not self._told:  # which was forgiven
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
                await self._left
        except asyncio.CancelledError:
            self.opened.cancel()  # a worker that breaks off its own call
            if self.reply is not None and not (self._left.done() or self._task.cancelling()):
                message = f"{self.reply.worker} broke off its own call."
                await self._pieces.put(WorkerUnavailable(message, worker=self.reply.worker))
            raise
        except Exception as exc:
            if not self.opened.done():
                self.opened.set_exception(exc)
            elif not self._left.done():
                await self._pieces.put(exc)
            raise

    async def _relay(self) -> AsyncGenerator[Delta]:
        while (piece := await self._pieces.get()) is not None:
            if isinstance(piece, Exception):
                self._told = piece
                raise piece
            yield piece


def _look_at(ended: "asyncio.Future[Reply] | asyncio.Task[None]") -> None:
    """Its error is somebody else's to raise."""
    if not ended.cancelled():
        ended.exception()
