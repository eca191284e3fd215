"""Continuation of an answer that was interrupted after the client received its beginning (`Call.prefix`).

If the API can continue an assistant turn, the prefix is sent as one (prefill). Otherwise an instruction asks
the model to continue, and its output is buffered until it is known to follow the prefix (`resume_point.py`).
Output that does not follow the prefix counts as a failure before the first token: it is billed, the client
sees none of it, and a fallback may be tried.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from conductor.errors import WorkerError, WorkerUnavailable
from conductor.model.call import Call
from conductor.model.characters import BYTES_PER_TOKEN, byte_size
from conductor.model.messages import Message
from conductor.model.reply import Delta, FinishReason, Reply
from serving.dispatch.resume_point import NotContinued, Seam, drop_blanks
from serving.dispatch.stop_sequences import cut_at_seam, missing_ends

GO_ON = """\
A network failure interrupted your answer above. The reader has all of it up to its last character. Finish it. \
Begin with the mark and the last words exactly as written below, and continue directly from there, in the same \
sentence and format. Repeat nothing else, and do not mention the interruption. Begin with:

{beginning}"""
SEAM_NOTE = "The model repeated the last words of the answer before it continued. The repetition was removed."


class BrokenOff(NotContinued):
    """Raised if the continuation ends early, before it is known to follow the prefix."""


Form = Literal["plain", "prefill", "ask"]
"""Form in which a call is sent: unchanged, its prefix as the model's turn, or an instruction to continue it."""


def form_of(call: Call, prefills: Callable[[Call], bool]) -> Form:
    """Return the form in which to send a call with a prefix first."""
    # a blank prefix has no words to repeat, so the model starts again, possibly with the same blanks
    return "prefill" if not call.prefix.strip() or prefills(call) else "ask"


@dataclass(frozen=True, slots=True)
class Continuation:
    """Call that asks a worker for the rest of an answer.

    Args:
        form: form of the call.
        call: original call.
        adapted_call: call to send.
        blanks: whitespace that was removed from the end of the prefix, because the prefix is sent as the
            model's turn.
        seam: finds the new text in the output of a model that was instructed to continue.
    """

    form: Form
    call: Call
    adapted_call: Call
    blanks: str = ""
    seam: Seam | None = None

    @classmethod
    def of(cls, call: Call, form: Form) -> "Continuation":
        """Adapt the call to the form in which it is sent.

        A prefill loses the whitespace at its end, because tokens start with whitespace and the model would
        repeat it.

        Repeated text of an instructed model counts as output, so the limit grows by its bytes, an upper bound
        of its tokens. The rest may exceed its own limit by the unused part, as far as the budget allows.
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
        adapted_call = replace(limited, messages=(*call.messages, *turns), prefix="")
        return cls(form, call, adapted_call, seam=seam)

    async def join(self, opened: AsyncExitStack, reply: Reply) -> None:
        """Make the reply start right after the prefix. If it does not continue it, bill it and raise
        WorkerUnavailable.
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
        """Buffer the reply until its new text starts. Repeating much more than instructed up to the limit is
        an interruption.
        """
        texts: list[str] = []
        try:
            buffered = await _hold(seam, reply.deltas, texts)
        except NotContinued as exc:
            error = WorkerUnavailable(
                f"{reply.worker} did not continue the interrupted answer.",
                worker=reply.worker,
                detail=str(exc),
                attempts=reply.attempts,
                billed_at_bound=True,
                only_this_call=not isinstance(exc, BrokenOff),
            )
            reply.charge_part(error, "".join(texts))
            raise error from exc
        except WorkerError as exc:
            exc.billed_at_bound, exc.attempts = True, (*reply.attempts, *exc.attempts)
            raise
        deltas = _first(buffered, reply.deltas)
        instructed_text = seam.beginning + seam.blanks
        # More tokens than the limit was raised by.
        is_much = byte_size(seam.repeated) > BYTES_PER_TOKEN * byte_size(instructed_text)
        if is_much and self.call.terms.rest_tokens is not None:
            deltas = _unless_full(deltas, reply.worker)
        reply.deltas = await opened.enter_async_context(aclosing(deltas))
        reply.notes += (SEAM_NOTE,)


def _without_room(call: Call, repeated: str = "") -> Call:
    """Limit the output to the rest plus the `repeated` text, at most to the limit with reserved budget."""
    most = call.sampling.max_output_tokens
    rest_tokens = call.terms.rest_tokens
    if rest_tokens is None or most is None:
        return call
    longest = min(most, rest_tokens + byte_size(repeated))
    return replace(call, sampling=replace(call.sampling, max_output_tokens=longest))


async def _hold(seam: Seam, deltas: AsyncGenerator[Delta], texts: list[str]) -> list[Delta]:
    """Return the deltas up to the first with new text, the only one with text. `texts` gets the rest for
    billing. Raise NotContinued, or BrokenOff without a finish reason.
    """
    buffered: list[Delta] = []
    async for delta in deltas:
        texts += (delta.text, delta.reasoning)
        is_last = delta.finish is not None
        new = seam.feed(delta.text, is_last=is_last) if delta.text or is_last else None
        buffered.append(replace(delta, text=new or "", logprobs=()))
        if new is not None:
            return buffered
    raise BrokenOff("The continuation ended before its first new text.")


async def _first(buffered: list[Delta], deltas: AsyncGenerator[Delta]) -> AsyncGenerator[Delta]:
    async with aclosing(deltas):
        for delta in buffered:
            yield delta
        async for delta in deltas:
            yield delta


async def _unless_full(deltas: AsyncGenerator[Delta], worker: str) -> AsyncGenerator[Delta]:
    """Yield the deltas of a reply that repeated too much. Raise WorkerUnavailable at its output limit, so
    that no `length` of this call alone reaches the client.
    """
    async with aclosing(deltas):
        async for delta in deltas:
            is_full = delta.finish is FinishReason.LENGTH
            yield replace(delta, finish=None) if is_full else delta
            if is_full:
                message = (
                    f"{worker} repeated too much of the interrupted answer and reached its output limit."
                )
                raise WorkerUnavailable(message, worker=worker, only_this_call=True)


async def _without(blanks: str, deltas: AsyncGenerator[Delta]) -> AsyncGenerator[Delta]:
    """Yield the deltas without the whitespace at their start that the prefix already ends with."""
    async with aclosing(deltas):
        async for delta in deltas:
            if blanks and delta.text:
                rest = drop_blanks(blanks, delta.text)
                is_all = not rest
                blanks = blanks[len(delta.text) :] if is_all else ""
                delta = replace(delta, text=rest)
            yield delta
