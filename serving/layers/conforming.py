"""An answer of the form that the client asked for, or an error that says so.

A strict answer is held until it is whole and holds to its schema, whatever the provider promises: nothing of it
is shown before. One that does not is repaired once, by the same worker, which is shown the fault; the call is
paid like any other, and is among the attempts. It can call no tools: a run that waits for their results knows nothing of
a repair, and would begin another one. An answer that was cut, refused, or that calls tools goes on as it is:
its finish reason says what it is.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace

from conductor.errors import AnswerInvalid, WorkerError
from conductor.model.answer_format import AnswerFormat
from conductor.model.call import Call
from conductor.model.failure import Attempt, Failure
from conductor.model.field_values import copy_with
from conductor.model.messages import Message, Text
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.retries import call_again
from conductor.model.tools import ToolChoice
from conductor.model.worker import Worker
from serving.layers.layer import Layer
from serving.schemas.translation import Translate
from serving.schemas.validator import find_fault, without_fences

SHOWN_BYTES = 2_000
"""Of a wrong answer, to its writer."""
FENCE_NOTE = "The Markdown fence around the answer was removed."
STOP_NOTE = "stop was left out: it would cut the answer, which has to hold to its schema."
LAX_NOTE = "The answer is not of the form that was asked for, which was not strict: {fault}"


class Conforming(Layer):
    """`worker`, whose answers have the form that a call asks for.

    Args:
        worker: who is called.
        translate: what its provider is sent of the form, and what its model is told.
    """

    def __init__(self, worker: Worker, translate: Translate) -> None:
        super().__init__(worker)
        self._translate = translate

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """See `Worker.open`.

        Raises:
            AnswerInvalid: two answers are not of the form. Both are paid.
        """
        wanted = call.answer_format
        return self._worker.open(call) if wanted is None else self._open(call, wanted)

    @asynccontextmanager
    async def _open(self, call: Call, wanted: AnswerFormat) -> AsyncGenerator[Reply]:
        told = self._translate(wanted, call.tools)
        call = copy_with(call, answer_format=told.native)
        if told.instructions:
            call = copy_with(call, messages=_with_instructions(call.messages, told.instructions))
        if wanted.strict:
            whole, notes = _without_stop(call)
            reply = await self._hold(copy_with(whole, coalesce=True), wanted)
            reply.notes = (*told.notes, *notes, *reply.notes)
            yield reply
            return
        async with self._worker.open(call) as reply, aclosing(_note(reply.deltas, wanted)) as deltas:
            reply.notes, reply.deltas = (*told.notes, *reply.notes), deltas
            yield reply

    async def _hold(self, call: Call, wanted: AnswerFormat) -> Reply:
        """The first answer that is of the form, whole."""
        began_s = time.monotonic()
        first = await self._read(call)
        text, fault = _judge(first, wanted)
        if fault is None:
            return _again(first, text)
        error = _invalid(first, fault)
        took_s = time.monotonic() - began_s
        asked = await call_again(call, error)
        failed = Attempt.of(first.worker, Failure.of(error), took_s=took_s)
        lost = (*first.attempts, replace(failed, deployment=first.deployment))
        try:
            second = await self._read(self._repair(asked, _with_fault(call, first, fault), wanted))
        except WorkerError as exc:
            exc.attempts = (*lost, *exc.attempts)
            raise
        text, fault = _judge(second, wanted)
        second.attempts = (*lost, *second.attempts)
        if fault is None:
            return _again(second, text)
        raise _invalid(second, fault)

    def _repair(self, call: Call, messages: tuple[Message, ...], wanted: AnswerFormat) -> Call:
        """The call that shows the fault. The tools stay, for providers that check what came before."""
        tools = copy_with(call.tools, choice=ToolChoice("none"))
        native = self._translate(wanted, tools).native
        site = copy_with(call.site, attempt=call.site.attempt + 1)
        return copy_with(call, messages=messages, tools=tools, answer_format=native, site=site)

    async def _read(self, call: Call) -> Reply:
        """The whole answer, its call closed."""
        async with self._worker.open(call) as reply:
            try:
                async with aclosing(aiter(reply)) as deltas:
                    async for _ in deltas:
                        pass
            except WorkerError as exc:
                reply.charge(exc)
                raise
        return reply


def _without_stop(call: Call) -> tuple[Call, tuple[str, ...]]:
    """`call` without stop sequences, and a note on them: JSON that was cut holds to no schema."""
    if not call.sampling.stop:
        return call, ()
    return copy_with(call, sampling=copy_with(call.sampling, stop=())), (STOP_NOTE,)


def _judge(reply: Reply, wanted: AnswerFormat) -> tuple[str, str | None]:
    """The answer's text, and what is wrong with it."""
    text = "".join(reply.texts)
    if reply.tool_calls or reply.finish in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER):
        return text, None
    fault = find_fault(text, wanted)
    inside = without_fences(text) if fault else None
    if inside is not None and find_fault(inside, wanted) is None:
        reply.notes += (FENCE_NOTE,)
        return inside, None
    return text, fault


def _again(reply: Reply, text: str) -> Reply:
    """An answer that was read, to be read once more: in one piece that has all of it."""
    whole = Delta(
        text,
        "".join(reply.thoughts),
        reply.finish,
        reply.counted,
        reply.cost_usd,
        reply.model,
        reply.inner_run,
        billed_at_bound=reply.billed_at_bound,
        cost_is_bound=reply.cost_is_bound,
        tool_calls=tuple(reply.tool_calls),
        native=reply.native,
        logprobs=tuple(reply.logprobs) if text == "".join(reply.texts) else (),
    )

    async def deltas() -> AsyncGenerator[Delta]:
        yield whole

    return replace(reply, deltas=deltas(), texts=[], thoughts=[], tool_calls=[], logprobs=[])


def _invalid(reply: Reply, fault: str) -> AnswerInvalid:
    error = AnswerInvalid(
        f"{reply.worker} gave no answer of the form that was asked for. {fault}", worker=reply.worker
    )
    reply.charge(error)
    return error


def _with_instructions(messages: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """The form at the end of the system prompt."""
    if messages and messages[0].role == "system":
        first = replace(messages[0], parts=(*messages[0].parts, Text(""), Text(text)))
        return (first, *messages[1:])
    return (Message.of("system", text), *messages)


def _with_fault(call: Call, reply: Reply, fault: str) -> tuple[Message, ...]:
    """The conversation, the wrong answer and what is wrong with it."""
    said = "".join(reply.texts).encode("utf-8", "replace")
    shown = said[:SHOWN_BYTES].decode("utf-8", "ignore") + ("…" if len(said) > SHOWN_BYTES else "")
    ask = f"{fault} Write the whole answer again, so that it holds to the schema: JSON and nothing else."
    return (*call.messages, Message.of("assistant", shown or "(nothing)"), Message.of("user", ask))


async def _note(deltas: AsyncGenerator[Delta], wanted: AnswerFormat) -> AsyncGenerator[Delta]:
    """An answer as it comes, and at its end a note where it is not of the form."""
    texts: list[str] = []
    is_whole = False
    async with aclosing(deltas):
        async for delta in deltas:
            texts.append(delta.text)
            is_whole |= delta.finish is FinishReason.STOP
            yield delta
    fault = find_fault("".join(texts), wanted) if is_whole else None
    if fault:
        yield Delta(notes=(LAX_NOTE.format(fault=fault),))
