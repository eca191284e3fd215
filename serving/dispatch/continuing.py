"""The rest of an answer that another call began, and of which its reader has the beginning (`Call.prefix`).

Where the wire goes on with a turn of the model's at the end of a conversation, it is sent the prefix as that. Else the
model is asked in words to go on, and what it says is held back until it is known to fit (`resume_point.py`). What does not
fit is a failure before the first token: nothing of it is shown, it is paid, and a fallback may be asked.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from conductor.errors import WorkerError, WorkerUnavailable
from conductor.model.call import Call
from conductor.model.messages import Message
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.run.continuing import BYTES_PER_TOKEN, byte_size
from serving.dispatch.resume_point import NotContinued, Seam, drop_blanks
from serving.dispatch.stop_sequences import cut_at_seam, missing_ends

GO_ON = """\
Your answer above was cut off by a fault of the network, and its reader has it up to its last character. Finish it. \
Begin with the mark and its last words exactly as they stand below, and go straight on from there in the same \
sentence, in the same form, as if nothing had happened. Repeat nothing else, and say nothing of the fault. Begin with:

{beginning}"""
SEAM_NOTE = "It was asked to go on, and repeated the last words that were there; they were removed."


class BrokenOff(NotContinued):
    """What came broke off as well, before it was known whether it goes on."""


Form = Literal["plain", "prefill", "ask"]
"""How a call is sent: as it is, with its prefix as the model's turn, or with words that ask to go on."""


def form_of(call: Call, prefills: Callable[[Call], bool]) -> Form:
    """Return how a worker is sent the call first."""
    if not call.prefix:
        return "plain"
    # without a word there is nothing to go on with: it begins again, and with these blanks perhaps
    return "prefill" if not call.prefix.strip() or prefills(call) else "ask"


@dataclass(frozen=True, slots=True)
class Continuation:
    """A call for the rest of an answer.

    Args:
        form: how it is sent.
        call: before it was changed for that.
        sent: as it is sent.
        blanks: at the end of the prefix, which a prefilled turn is sent without.
        seam: finds where an asked model goes on.
    """

    form: Form
    call: Call
    sent: Call
    blanks: str = ""
    seam: Seam | None = None

    @classmethod
    def of(cls, call: Call, form: Form) -> "Continuation":
        """Change `call` for that form.

        A wire that is sent the prefix gets it without blanks at its end: tokens begin with blanks, so a model says them
        once more.

        What an asked model has to repeat counts as its answer. So if the rest is limited, it may say more by a bound of
        the repetition's tokens, its bytes: the rest is not short for the repetition, and may be longer than its limit by
        what is left of that bound. Only if the budget allows no more may it be short.
        """
        if form == "plain":
            return cls(form, call, _without_room(call))
        if form == "prefill":
            prefix = call.prefix.rstrip()
            blanks = call.prefix[len(prefix) :]
            return cls(form, call, replace(_without_room(call, blanks), prefix=prefix), blanks)
        seam = Seam(call.prefix)
        turns = (
            Message.of("assistant", call.prefix),
            Message.of("user", GO_ON.format(beginning=seam.beginning)),
        )
        limited = _without_room(call, seam.beginning + seam.blanks)
        sent = replace(limited, messages=(*call.messages, *turns), prefix="")
        return cls(form, call, sent, seam=seam)

    async def join(self, opened: AsyncExitStack, reply: Reply) -> None:
        """Let the reply begin right after the prefix.

        Raises:
            WorkerUnavailable: what comes does not go on with the prefix. It is paid, and nothing of it was shown.
        """
        if self.form == "plain":
            return
        if self.seam is not None:
            await self._find_seam(opened, reply, self.seam)
        elif self.blanks:
            reply.deltas = await opened.enter_async_context(aclosing(_without(self.blanks, reply.deltas)))
        if ends := missing_ends(self.call.sampling.stop, self.call.prefix):
            cut = cut_at_seam(ends, reply.deltas, self.call.terms.deadline_at_s)
            reply.deltas = await opened.enter_async_context(aclosing(cut))

    async def _find_seam(self, opened: AsyncExitStack, reply: Reply, seam: Seam) -> None:
        """One that repeats much more than it was asked to, and ends at its limit, has broken off."""
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
        wanted = seam.beginning + seam.blanks
        is_much = byte_size(seam.repeated) > BYTES_PER_TOKEN * byte_size(
            wanted
        )  # more tokens than it had for it
        if is_much and self.call.terms.rest_tokens is not None:
            deltas = _unless_full(deltas, reply.worker)
        reply.deltas = await opened.enter_async_context(aclosing(deltas))
        reply.notes += (SEAM_NOTE,)


def _without_room(call: Call, repeated: str = "") -> Call:
    """`call`, as long as its rest may be and what is `repeated` before it, and no longer than is held for it."""
    most = call.sampling.max_output_tokens
    rest_tokens = call.terms.rest_tokens
    if rest_tokens is None or most is None:
        return call
    longest = min(most, rest_tokens + byte_size(repeated))
    return replace(call, sampling=replace(call.sampling, max_output_tokens=longest))


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
