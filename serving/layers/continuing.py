"""The rest of an answer that another call began, and of which its reader has the beginning (`Call.prefix`).

Where the wire goes on with a turn of the model's at the end of a conversation, it is sent the prefix as that. Else the
model is asked in words to go on, and what it says is held back until it is known to fit (`seam.py`). What does not
fit is a failure before the first token: nothing of it is shown, it is paid, and a fallback may be asked.
"""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace

from conductor.errors import ContentFiltered, WorkerError, WorkerRefused, WorkerUnavailable
from conductor.model.call import Call
from conductor.model.failure import Attempt, Failure
from conductor.model.field_values import copy_with
from conductor.model.messages import Message
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.retries import call_again
from conductor.model.worker import Worker
from conductor.run.continuing import BYTES_PER_TOKEN, byte_size
from serving.layers.layer import Layer
from serving.layers.seam import NotContinued, Seam, drop_blanks
from serving.layers.stop_sequences import cut_at_seam, missing_ends

GO_ON = """\
Your answer above was cut off by a fault of the network, and its reader has it up to its last character. Finish it. \
Begin with the mark and its last words exactly as they stand below, and go straight on from there in the same \
sentence, in the same form, as if nothing had happened. Repeat nothing else, and say nothing of the fault. Begin with:

{beginning}"""
SEAM_NOTE = "It was asked to go on, and repeated the last words that were there; they were removed."


class BrokenOff(NotContinued):
    """What came broke off as well, before it was known whether it goes on."""


class Continuing(Layer):
    """`worker`, which goes on with what another call began. That it does something else says nothing of whether it
    is up: it is no failure of its health.

    Args:
        worker: who is called.
        prefills: whether its wire takes a call's prefix as the beginning of the model's turn.
    """

    def __init__(self, worker: Worker, prefills: Callable[[Call], bool]) -> None:
        super().__init__(worker)
        self._prefills = prefills

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """See `Worker.open`.

        Raises:
            WorkerUnavailable: also where what comes does not go on with the prefix.
        """
        if not call.prefix:
            return self._worker.open(_without_room(call))
        return self._open(call)

    @asynccontextmanager
    async def _open(self, call: Call) -> AsyncGenerator[Reply]:
        async with AsyncExitStack() as opened:
            reply = await self._continue(opened, call)
            if ends := missing_ends(call.sampling.stop, call.prefix):
                cut = cut_at_seam(ends, reply.deltas, call.deadline_at_s)
                reply.deltas = await opened.enter_async_context(aclosing(cut))
            yield reply

    async def _continue(self, opened: AsyncExitStack, call: Call) -> Reply:
        failed: tuple[Attempt, ...] = ()
        if (
            not call.prefix.strip()
        ):  # there is nothing to go on with: it begins again, and with these blanks perhaps
            return await self._prefill(opened, call)
        if self._prefills(call):
            began_s = time.monotonic()
            try:
                return await self._prefill(opened, call)
            except ContentFiltered:
                raise
            except WorkerRefused as exc:  # perhaps it is the turn at the end that it does not take
                took_s = time.monotonic() - began_s
                call = await call_again(call, exc)
                failed = (*exc.attempts, Attempt.of(self.name, Failure.of(exc), took_s=took_s))
        site = copy_with(call.site, attempt=call.site.attempt + len(failed))
        try:
            reply = await self._ask(opened, copy_with(call, site=site))
        except WorkerError as exc:
            exc.attempts = (*failed, *exc.attempts)
            raise
        reply.attempts = (*failed, *reply.attempts)
        return reply

    async def _prefill(self, opened: AsyncExitStack, call: Call) -> Reply:
        """The wire goes on with the prefix, without blanks at its end: tokens begin with blanks, so a model says them
        once more. A refusal is of this form of the call, so that the run does not keep it.
        """
        sent = call.prefix.rstrip()
        blanks = call.prefix[len(sent) :]
        asked = copy_with(_without_room(call, repeated=blanks), prefix=sent, refusals=None)
        reply = await opened.enter_async_context(self._worker.open(asked))
        if blanks:
            reply.deltas = await opened.enter_async_context(aclosing(_without(blanks, reply.deltas)))
        return reply

    async def _ask(self, opened: AsyncExitStack, call: Call) -> Reply:
        """The model is asked to go on; entered once it is known that it does.

        What it has to repeat counts as its answer. So where the rest is limited, it may say more by a bound of the
        repetition's tokens, its bytes: the rest is not short for the repetition, and may be longer than its limit,
        by what is left of that bound. Only where the budget allows no more may it be short. One that repeats much
        more than it was asked to, and ends at its limit, has broken off.
        """
        seam = Seam(call.prefix)
        turns = (
            Message.of("assistant", call.prefix),
            Message.of("user", GO_ON.format(beginning=seam.beginning)),
        )
        wanted = seam.beginning + seam.blanks
        limited = _without_room(call, repeated=wanted)
        asked = copy_with(limited, messages=(*call.messages, *turns), prefix="")
        reply = await opened.enter_async_context(self._worker.open(asked))
        heard: list[str] = []
        try:
            held = await _hold(seam, reply.deltas, heard)
        except NotContinued as exc:
            error = WorkerUnavailable(
                f"{reply.worker} did not go on with the answer that had broken off.",
                worker=reply.worker,
                detail=str(exc),
                attempts=reply.attempts,
                billed_at_bound=True,
                only_this_call=not isinstance(exc, BrokenOff),
            )
            reply.charge_part(error, "".join(heard))
            raise error from exc
        except WorkerError as exc:
            exc.billed_at_bound, exc.attempts = True, (*reply.attempts, *exc.attempts)
            raise
        deltas = _first(held, reply.deltas)
        is_much = byte_size(seam.repeated) > BYTES_PER_TOKEN * byte_size(
            wanted
        )  # more tokens than it had for it
        if is_much and call.rest_tokens is not None:
            deltas = _unless_full(deltas, reply.worker)
        reply.deltas = await opened.enter_async_context(aclosing(deltas))
        reply.notes += (SEAM_NOTE,)
        return reply


def _without_room(call: Call, repeated: str = "") -> Call:
    """`call`, as long as its rest may be and what is `repeated` before it, and no longer than is held for it."""
    most = call.sampling.max_output_tokens
    if call.rest_tokens is None or most is None:
        return call
    longest = min(most, call.rest_tokens + byte_size(repeated))
    return copy_with(call, sampling=copy_with(call.sampling, max_output_tokens=longest))


async def _hold(seam: Seam, deltas: AsyncGenerator[Delta], heard: list[str]) -> list[Delta]:
    """What has come once the seam is found: the words after it are in the last of them. `heard` gets all words.

    Raises:
        NotContinued: it does not fit.
        BrokenOff: there was no end.
    """
    held: list[Delta] = []
    async for delta in deltas:
        heard += (delta.text, delta.reasoning)
        is_last = delta.finish is not None
        new = seam.feed(delta.text, is_last=is_last) if delta.text or is_last else None
        held.append(replace(delta, text=new or "", logprobs=()))
        if new is not None:
            return held
    raise BrokenOff("It broke off before it had gone on.")


async def _first(held: list[Delta], deltas: AsyncGenerator[Delta]) -> AsyncGenerator[Delta]:
    async with aclosing(deltas):
        for delta in held:
            yield delta
        async for delta in deltas:
            yield delta


async def _unless_full(deltas: AsyncGenerator[Delta], worker: str) -> AsyncGenerator[Delta]:
    """`deltas` of one that repeated too much, so that an end for its length would look like that of the answer.

    Raises:
        WorkerUnavailable: in place of that end.
    """
    async with aclosing(deltas):
        async for delta in deltas:
            is_full = delta.finish is FinishReason.LENGTH
            yield replace(delta, finish=None) if is_full else delta
            if is_full:
                message = f"{worker} repeated so much of the answer that it had no room for the rest."
                raise WorkerUnavailable(message, worker=worker, only_this_call=True)


async def _without(blanks: str, deltas: AsyncGenerator[Delta]) -> AsyncGenerator[Delta]:
    """The rest after blanks that were not sent, and that may come again."""
    async with aclosing(deltas):
        async for delta in deltas:
            if blanks and delta.text:
                left = drop_blanks(blanks, delta.text)
                is_all = not left
                blanks = blanks[len(delta.text) :] if is_all else ""
                delta = replace(delta, text=left)
            yield delta
