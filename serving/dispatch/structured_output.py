"""Validation and repair of answers in a requested format.

An answer in a strict format is buffered until it is complete and is checked against its schema, even if the
provider guarantees the format. If it does not match, the same worker may repair it once. The prompt of the
repair contains the answer and its fault. The repair is billed and
recorded like any other attempt. It can call no tools, because a suspended run does not store that it was
repairing and would start another repair. An answer that was cut or filtered, or that calls tools, is passed
on unchanged, because its finish reason tells the client.
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
"""Maximum size of the invalid answer in the prompt of a repair."""
FENCE_NOTE = "The Markdown fence around the answer was removed."
STOP_NOTE = "stop was omitted, because it could cut off the answer, which must match its schema."
LAX_NOTE = "The answer does not match the requested format, which is not strict. {fault}"


@dataclass(frozen=True, slots=True)
class Repair:
    """Invalid answer and its fault, which the next request to the worker quotes."""

    text: str
    fault: str


def ask_for_form(
    call: Call, translate: Translate, repair: Repair | None = None
) -> tuple[Call, tuple[str, ...]]:
    """Translate the answer format for the provider, and return the call and notes for the record.

    A `repair` of an invalid answer can call no tools, but they stay, because providers check earlier calls.
    """
    answer_format = call.answer_format
    assert answer_format is not None
    translated = translate(answer_format, call.tools)
    notes = translated.notes
    changes: dict[str, Any] = {"answer_format": translated.native}
    messages = call.messages
    if translated.instructions:
        messages = changes["messages"] = _with_instructions(messages, translated.instructions)
    if answer_format.strict:
        changes["coalesce"] = True
        if call.sampling.stop:  # JSON that was cut matches no schema
            changes["sampling"] = replace(call.sampling, stop=())
            notes = (*notes, STOP_NOTE)
    if repair is not None:
        tools = replace(call.tools, choice=ToolChoice("none"))
        changes |= {
            "tools": tools,
            "answer_format": translate(answer_format, tools).native,
            "messages": _with_fault(messages, repair),
        }
    return replace(call, **changes), notes


async def read_whole(reply: Reply, answer_format: AnswerFormat) -> tuple[Reply, str | None]:
    """Read an answer to its end. Return a reply that can be read again, and its fault against its format, or
    None.
    """
    try:
        async with aclosing(aiter(reply)) as deltas:
            async for _ in deltas:
                pass
    except WorkerError as exc:
        reply.charge(exc)
        raise
    text, fault = _judge(reply, answer_format)
    return (reply, fault) if fault else (_again(reply, text), None)


def invalid_answer(reply: Reply, fault: str) -> AnswerInvalid:
    """Build the error for an answer that does not match its format. The error carries the cost of the answer."""
    error = AnswerInvalid(
        f"The answer of {reply.worker} does not match the requested format. {fault}", worker=reply.worker
    )
    reply.charge(error)
    return error


def _judge(reply: Reply, answer_format: AnswerFormat) -> tuple[str, str | None]:
    """Return the answer and its fault, or None. If it matches without a Markdown fence, the fence is removed."""
    text = "".join(reply.texts)
    if reply.tool_calls or reply.finish in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER):
        return text, None
    fault = find_fault(text, answer_format)
    inside = without_fences(text) if fault else None
    if inside is not None and find_fault(inside, answer_format) is None:
        reply.notes += (FENCE_NOTE,)
        return inside, None
    return text, fault


def _again(reply: Reply, text: str) -> Reply:
    """Return a reply that yields an answer again that was already read. It consists of one delta."""
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
    """Append the format instructions to the system prompt."""
    if messages and messages[0].role == "system":
        first = replace(messages[0], parts=(*messages[0].parts, Text(""), Text(text)))
        return (first, *messages[1:])
    return (Message.of("system", text), *messages)


def _with_fault(messages: tuple[Message, ...], repair: Repair) -> tuple[Message, ...]:
    """Append the invalid answer and its fault to the conversation."""
    answer = repair.text.encode("utf-8", "replace")
    excerpt = answer[:SHOWN_BYTES].decode("utf-8", "ignore") + ("…" if len(answer) > SHOWN_BYTES else "")
    ask = f"{repair.fault} Write the whole answer again so that it matches the schema: JSON and nothing else."
    return (*messages, Message.of("assistant", excerpt or "(nothing)"), Message.of("user", ask))


async def note_fault(deltas: AsyncGenerator[Delta], answer_format: AnswerFormat) -> AsyncGenerator[Delta]:
    """Yield the deltas unchanged, and then a note for the record if the answer does not match its format."""
    texts: list[str] = []
    is_whole = False
    async with aclosing(deltas):
        async for delta in deltas:
            texts.append(delta.text)
            is_whole |= delta.finish is FinishReason.STOP
            yield delta
    fault = find_fault("".join(texts), answer_format) if is_whole else None
    if fault:
        yield Delta(notes=(LAX_NOTE.format(fault=fault),))
