"""An answer of the form that the client asked for, or an error that says so.

A strict answer is held until it is whole and holds to its schema, whatever the provider promises: nothing of it
is shown before. One that does not is repaired once, by the same worker, which is shown the fault; the call is
paid like any other, and is among the attempts. It can call no tools: a run that waits for their results knows nothing of
a repair, and would begin another one. An answer that was cut, refused, or that calls tools goes on as it is:
its finish reason says what it is.
"""

import dataclasses
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from conductor.errors import AnswerInvalid, WorkerError
from conductor.model.call import AnswerFormat, Call
from conductor.model.messages import Message, Text, ToolChoice
from conductor.model.reply import Delta, FinishReason, Reply
from serving.schemas.translation import Translate
from serving.schemas.validator import find_fault, without_fences

SHOWN_BYTES = 2_000
"""Of a wrong answer, to its writer."""
FENCE_NOTE = "The Markdown fence around the answer was removed."
STOP_NOTE = "stop was left out: it would cut the answer, which has to hold to its schema."
LAX_NOTE = "The answer is not of the form that was asked for, which was not strict: {fault}"


@dataclass(frozen=True, slots=True)
class Repair:
    """A wrong answer, and what is wrong with it."""

    text: str
    fault: str


def ask_for_form(
    call: Call, translate: Translate, repair: Repair | None = None
) -> tuple[Call, tuple[str, ...]]:
    """Return the call as its provider is asked for the answer's form, and notes for the record.

    Args:
        call: with `answer_format`.
        translate: what the provider is sent of the form, and what the model is told.
        repair: the first answer, if it was wrong. The call can use no tools then; they stay, for providers that check
            what came before.
    """
    wanted = call.answer_format
    assert wanted is not None
    translated = translate(wanted, call.tools)
    notes = translated.notes
    changes: dict[str, Any] = {"answer_format": translated.native}
    messages = call.messages
    if translated.instructions:
        messages = changes["messages"] = _with_instructions(messages, translated.instructions)
    if wanted.strict:
        changes["coalesce"] = True
        if call.sampling.stop:  # JSON that was cut holds to no schema
            changes["sampling"] = replace(call.sampling, stop=())
            notes = (*notes, STOP_NOTE)
    if repair is not None:
        tools = replace(call.tools, choice=ToolChoice("none"))
        changes |= {
            "tools": tools,
            "answer_format": translate(wanted, tools).native,
            "messages": _with_fault(messages, repair),
        }
    return replace(call, **changes), notes


async def read_whole(reply: Reply, wanted: AnswerFormat) -> tuple[Reply, str | None]:
    """Read the whole answer. Return it to be read once more, and what is wrong with it, or None.

    Raises:
        WorkerError: it broke off.
    """
    try:
        async with aclosing(aiter(reply)) as deltas:
            async for _ in deltas:
                pass
    except WorkerError as exc:
        reply.charge(exc)
        raise
    text, fault = _judge(reply, wanted)
    return (reply, fault) if fault else (_again(reply, text), None)


def invalid_answer(reply: Reply, fault: str) -> AnswerInvalid:
    """Return the error of an answer that is not of the form. It is paid."""
    error = AnswerInvalid(
        f"{reply.worker} gave no answer of the form that was asked for. {fault}", worker=reply.worker
    )
    reply.charge(error)
    return error


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

    return dataclasses.replace(reply, deltas=deltas(), texts=[], thoughts=[], tool_calls=[], logprobs=[])


def _with_instructions(messages: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """The form at the end of the system prompt."""
    if messages and messages[0].role == "system":
        first = replace(messages[0], parts=(*messages[0].parts, Text(""), Text(text)))
        return (first, *messages[1:])
    return (Message.of("system", text), *messages)


def _with_fault(messages: tuple[Message, ...], repair: Repair) -> tuple[Message, ...]:
    """The conversation, the wrong answer and what is wrong with it."""
    said = repair.text.encode("utf-8", "replace")
    shown = said[:SHOWN_BYTES].decode("utf-8", "ignore") + ("…" if len(said) > SHOWN_BYTES else "")
    ask = (
        f"{repair.fault} Write the whole answer again, so that it holds to the schema: JSON and nothing else."
    )
    return (*messages, Message.of("assistant", shown or "(nothing)"), Message.of("user", ask))


async def note_fault(deltas: AsyncGenerator[Delta], wanted: AnswerFormat) -> AsyncGenerator[Delta]:
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
