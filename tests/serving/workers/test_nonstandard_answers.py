"""Answers that violate the standards but are clear. Each wire reads them without losing a word or call."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from conductor.errors import WorkerUnavailable
from conductor.model.call import Call, CallSite
from conductor.model.messages import Message, Tool, Toolset
from conductor.model.operation import vector_text
from conductor.model.reply import FinishReason, Reply
from conductor.run.codec import dump
from serving.workers.provider_account import ProviderAccount
from tests.serving.workers.fuzz_streams import DIALECTS
from tests.serving.workers.subjects import MODEL, SECRET
from tests.wires.faults import Fault, faulty
from tests.wires.server import Answer, serving, sse

Json = dict[str, Any]
TOOLS = Toolset(
    (Tool("get_weather", parameters={"type": "object"}), Tool("get_time", parameters={"type": "object"}))
)
USER = (Message.of("user", "What is the weather in Rome, and what time is it?"),)
CALL, BARE = Call(USER, tools=TOOLS), Call(USER)
ROME, UTC = '{"city": "Rome"}', '{"tz": "UTC"}'
BOTH = (("get_weather", ROME), ("get_time", UTC))
FACE = "Fine 😀 day"
LONE = "Fine \ufffd day"
SOON_S = 10.0


@dataclass(frozen=True)
class Row:
    """Events that a server sends, and their expected meaning."""

    events: Sequence[bytes]
    text: str = ""
    reasoning: str = ""
    calls: Sequence[tuple[str, str]] = ()
    ids: Sequence[str] = ()
    """Expected ids of the calls, or empty to accept any."""
    finish: FinishReason | None = None
    """Expected finish, or None for the usual one: `tool_calls` with calls, else `stop`."""


async def read(name: str, events: Sequence[bytes], call: Call = CALL) -> Reply:
    dialect = DIALECTS[name]
    async with serving(dialect.wire, Answer(instead=tuple(events))) as server:
        worker = dialect.worker(ProviderAccount("w", MODEL, SECRET, server.url + dialect.path))
        try:
            async with asyncio.timeout(SOON_S), worker.open(call) as reply:
                [_ async for _ in reply]
        finally:
            await worker.aclose()
        assert len(server.requests) == 1
    return reply


def check(row: Row, reply: Reply) -> None:
    result = reply.result
    assert (result.output, result.reasoning) == (row.text, row.reasoning)
    assert [(call.name, json.loads(call.arguments)) for call in result.tool_calls] == [
        (name, json.loads(arguments)) for name, arguments in row.calls
    ]
    ids = [call.id for call in result.tool_calls]
    assert len(set(ids)) == len(ids)
    assert "" not in ids
    if row.ids:
        assert ids == list(row.ids)
    assert result.finish is (row.finish or (FinishReason.TOOL_CALLS if row.calls else FinishReason.STOP))
    dump(result).__repr__().encode()  # the stored form must be valid UTF-8


def chat(delta: object = None, finish: object = None, **more: object) -> bytes:
    return sse(
        {"choices": [{"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish}], **more}
    )


def calls_chunk(*pieces: object) -> bytes:
    return chat({"tool_calls": list(pieces)})


def piece(index: object = 0, id: object = None, name: object = None, arguments: object = None) -> Json:
    fields = {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}
    function = {key: value for key, value in fields["function"].items() if value is not None}
    whole = {key: value for key, value in fields.items() if value is not None and key != "function"}
    return whole | ({"function": function} if function else {})


def finish(reason: object = "stop") -> bytes:
    return chat({}, reason)


DONE = b"data: [DONE]\n\n"
CALLED = finish("tool_calls")
WORDS = (chat({"role": "assistant", "content": ""}), chat({"content": "It is "}), chat({"content": "four."}))
FOUR = "It is four."
MESSAGE: Json = {"role": "assistant", "content": FOUR}
WHOLE: Json = {
    "id": "1", "object": "chat.completion", "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 12, "completion_tokens": 4},
}  # fmt: skip


def whole(**message: object) -> Json:
    return WHOLE | {"choices": [{"index": 0, "message": MESSAGE | message, "finish_reason": "stop"}]}


def bare(value: object, indent: int | None = None) -> bytes:
    return json.dumps(value, indent=indent).encode()


CALLS_IN_CHAT = {
    "parallel calls under one index": [calls_chunk(piece(0, "a", "get_weather")), calls_chunk(piece(0, None, None, ROME)),
        calls_chunk(piece(0, "b", "get_time")), calls_chunk(piece(0, None, None, UTC)), CALLED],
    "whole calls under one index": [calls_chunk(piece(0, "a", "get_weather", ROME)), calls_chunk(piece(0, "b", "get_time", UTC)), CALLED],
    "whole calls under one index in one piece": [calls_chunk(piece(0, "a", "get_weather", ROME), piece(0, "b", "get_time", UTC)), CALLED],
    "one index, pieces of both in turn, by their ids": [calls_chunk(piece(0, "a", "get_weather", "")), calls_chunk(piece(0, "b", "get_time", "")),
        calls_chunk(piece(0, "a", None, ROME)), calls_chunk(piece(0, "b", None, UTC)), CALLED],
    "one index and no ids": [calls_chunk(piece(0, None, "get_weather", ROME)), calls_chunk(piece(0, None, "get_time", UTC)), CALLED],
    "one index and one id": [calls_chunk(piece(0, "a", "get_weather", ROME)), calls_chunk(piece(0, "a", "get_time", UTC)), CALLED],
    "two indexes and one id": [calls_chunk(piece(0, "a", "get_weather", ROME)), calls_chunk(piece(1, "a", "get_time", UTC)), CALLED],
    "no index": [calls_chunk(piece(None, "a", "get_weather")), calls_chunk(piece(None, None, None, ROME)),
        calls_chunk(piece(None, "b", "get_time")), calls_chunk(piece(None, None, None, UTC)), CALLED],
    "no index and no ids": [calls_chunk(piece(None, None, "get_weather", ROME), piece(None, None, "get_time", UTC)), CALLED],
    "an index of null": [calls_chunk(piece(0, "a", "get_weather", ROME) | {"index": None}, piece(0, "b", "get_time", UTC) | {"index": None}), CALLED],
    "an index as text": [calls_chunk(piece("0", "a", "get_weather")), calls_chunk(piece("0", None, None, ROME)), calls_chunk(piece("1", "b", "get_time", UTC)), CALLED],
    "ids as numbers": [calls_chunk(piece(0, 1, "get_weather", ROME), piece(1, 2, "get_time", UTC)), CALLED],
    "a new id in each piece": [calls_chunk(piece(0, "a", "get_weather", "")), calls_chunk(piece(0, "x", None, ROME[:4])), calls_chunk(piece(0, "y", None, ROME[4:])),
        calls_chunk(piece(1, "b", "get_time", "")), calls_chunk(piece(1, "z", None, UTC)), CALLED],
    "id and name in each piece": [calls_chunk(piece(0, "a", "get_weather", ROME[:4])), calls_chunk(piece(0, "a", "get_weather", ROME[4:])),
        calls_chunk(piece(1, "b", "get_time", UTC[:4])), calls_chunk(piece(1, "b", "get_time", UTC[4:])), CALLED],
    "the name in each piece and no id": [calls_chunk(piece(0, None, "get_weather", ROME[:4])), calls_chunk(piece(0, None, "get_weather", ROME[4:])),
        calls_chunk(piece(1, None, "get_time", UTC)), CALLED],
    "a name in pieces": [calls_chunk(piece(0, "a", "get_")), calls_chunk(piece(0, None, "weather")), calls_chunk(piece(0, None, None, ROME)), calls_chunk(piece(1, "b", "get_time", UTC)), CALLED],
    "empty ids and names in later pieces": [calls_chunk(piece(0, "a", "get_weather", "")), calls_chunk(piece(0, "", "", ROME)), calls_chunk(piece(1, "b", "get_time", UTC)), CALLED],
    "arguments as an object": [calls_chunk(piece(0, "a", "get_weather", {"city": "Rome"}), piece(1, "b", "get_time", {"tz": "UTC"})), CALLED],
    "an empty object before the arguments": [calls_chunk(piece(0, "a", "get_weather", {})), calls_chunk(piece(0, None, None, ROME)),
        calls_chunk(piece(1, "b", "get_time", "{}")), calls_chunk(piece(1, None, None, UTC)), CALLED],
    "all arguments again at the end": [calls_chunk(piece(0, "a", "get_weather", ROME[:4])), calls_chunk(piece(0, "a", None, ROME[4:])), calls_chunk(piece(0, "a", "get_weather", ROME)),
        calls_chunk(piece(1, "b", "get_time", UTC)), CALLED],
    "calls without `function`": [calls_chunk({"index": 0, "id": "a", "name": "get_weather", "arguments": ROME}, {"id": "b", "index": 1, "name": "get_time", "arguments": {"tz": "UTC"}}), CALLED],
    "null among the pieces": [calls_chunk(None, piece(0, "a", "get_weather", ROME) | {"extra_content": None}, piece(1, "b", "get_time", UTC) | {"type": None}), CALLED],
    "a placeholder of nothing": [calls_chunk(piece(2, "", "", "")), calls_chunk(piece(0, "a", "get_weather", ROME), piece(1, "b", "get_time", UTC)), CALLED],
    "`stop` after calls": [calls_chunk(piece(0, "a", "get_weather", ROME), piece(1, "b", "get_time", UTC)), finish()],
    "`tool_use` after calls": [calls_chunk(piece(0, "a", "get_weather", ROME), piece(1, "b", "get_time", UTC)), finish("tool_use")],
    "the end in the piece with the calls": [chat({"tool_calls": [piece(0, "a", "get_weather", ROME), piece(1, "b", "get_time", UTC)]}, "tool_calls")],
    "`stop` once more with the usage": [calls_chunk(piece(0, "a", "get_weather", ROME), piece(1, "b", "get_time", UTC)), CALLED, finish()],
    "whole JSON": [bare(whole(content=None, tool_calls=[piece(None, "a", "get_weather", ROME), piece(None, "b", "get_time", UTC)]))],
}  # fmt: skip
SAID_IN_CHAT = {
    **{f"finish_reason {reason!r} on the running chunks": Row([chat({"content": "It is "}, reason), chat({"content": "four."}, reason), finish()], FOUR)
       for reason in ("", "null", "None", " ", "NULL")},
    **{f"finish_reason {reason!r}": Row([*WORDS, finish(reason)], FOUR) for reason in ("STOP", "Stop", "eos_token", "stop_sequence", "end_turn", " stop ")},
    **{f"finish_reason {reason!r} ": Row([*WORDS, finish(reason)], FOUR, finish=FinishReason.LENGTH) for reason in ("MAX_TOKENS", "max_tokens", "model_length", "Length")},
    "the end with words": Row([WORDS[1], chat({"content": "four."}, "stop")], FOUR),
    "the end with every word": Row([chat({"content": "It is "}, "stop"), chat({"content": "four."}, "stop")], FOUR),
    "words after the end": Row([WORDS[1], finish(), chat({"content": "four."})], FOUR),
    "content as parts": Row([chat({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm. "}]}]}),
        chat({"content": [{"type": "thinking", "thinking": "Two."}, {"type": "text", "text": "It is "}]}), chat({"content": "four."}), finish()], FOUR, "Hm. Two."),
    "content as parts of other kinds": Row([chat({"content": [{"type": "reasoning", "reasoning": "Hm."}, {"type": "output_text", "text": "It "}, "is ", {"text": "four."}, {"type": "reference", "reference_ids": [1]}, None]}),
        finish()], FOUR, "Hm."),
    "content as one part": Row([chat({"content": {"type": "text", "text": FOUR}}), finish()], FOUR),
    "an empty list of parts": Row([chat({"content": []}), *WORDS, finish()], FOUR),
    "thoughts as parts": Row([chat({"reasoning_content": [{"type": "text", "text": "Hm."}]}), *WORDS, finish()], FOUR, "Hm."),
    "thoughts by both names": Row([chat({"reasoning_content": "Hm.", "reasoning": "Hm."}), *WORDS, finish()], FOUR, "Hm."),
    "words, `tool_calls` and no call": Row([*WORDS, CALLED], FOUR),
    "words, `function_call` and no call": Row([*WORDS, finish("function_call")], FOUR),
    "words, `tool_calls` and an empty list": Row([*WORDS, calls_chunk(), CALLED], FOUR),
    "words and a placeholder of a call": Row([*WORDS, calls_chunk(piece(0, "", "", "")), finish()], FOUR),
    "words with `tool_calls: null`": Row([chat({"content": FOUR, "tool_calls": None, "function_call": None, "refusal": None}), finish()], FOUR),
    "a call in the older form": Row([chat({"function_call": {"name": "get_weather", "arguments": ""}}), chat({"function_call": {"arguments": ROME}}), finish("function_call")], calls=BOTH[:1]),
    "the role in each chunk, null for words": Row([chat({"role": "assistant", "content": None}), *(chat({"role": "assistant", "content": word, "reasoning_content": None}) for word in ("It is ", "four.")), finish()], FOUR),
    "usage of null, then late": Row([*WORDS, chat({}, "stop", usage=None), sse({"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 4}}), DONE], FOUR),
    "chunks without choices": Row([sse({"choices": []}), sse({"choices": None}), sse({}), *WORDS, sse({"id": "x"}), finish()], FOUR),
    "a delta of null": Row([*WORDS, sse({"choices": [{"index": 0, "delta": None, "finish_reason": "stop"}]})], FOUR),
    "an index of null or text": Row([sse({"choices": [{"index": index, "delta": {"content": word}}]}) for index, word in ((None, "It "), ("0", "is "), (0, "four."))] + [finish()], FOUR),
    "no mark of the end": Row([*WORDS, finish()], FOUR),
    "the mark of the end in other forms": Row([*WORDS, finish(), b'data: "[DONE]"\n\n', b"data: no JSON\n\n"], FOUR),
    "the mark of the end without a reason": Row([*WORDS, DONE], FOUR),
    "no blank line at the end": Row([*WORDS, finish().rstrip()], FOUR),
    "lines end with CR LF": Row([each.replace(b"\n", b"\r\n") for each in (*WORDS, finish(), DONE)], FOUR),
    "no blank after `data:`": Row([each.replace(b"data: ", b"data:") for each in (*WORDS, finish(), DONE)], FOUR),
    "blanks before `data:`": Row([each.replace(b"data: ", b"  Data : ") for each in (*WORDS, finish(), DONE)], FOUR),
    "no blank lines between events": Row([each.rstrip() + b"\n" for each in (*WORDS, finish(), DONE)], FOUR),
    "comments, names, ids and a byte order mark": Row([b"\xef\xbb\xbf: hello\n\nevent: message\nid: 1\nretry: 3\n", *WORDS, b": ping\n\nping\n\ndata:\n\ndata: null\n\n", finish(), DONE], FOUR),
    "no `data:`": Row([each.removeprefix(b"data: ") for each in (*WORDS, finish())], FOUR),
    "one byte at a time": Row([bytes([each]) for each in b"".join([*WORDS, finish(), DONE])], FOUR),
    "raw bytes that are no UTF-8": Row([chat({"content": "Fine "}), chat({"content": "X day"}).replace(b"X", b"\xff"), finish()], LONE),
    "whole JSON": Row([bare(WHOLE)], FOUR),
    "whole JSON on many lines, after blank ones": Row([b"\n \n", bare(WHOLE, 2), b"\n"], FOUR),
    "whole JSON in pieces": Row([bare(WHOLE)[:30], bare(WHOLE)[30:]], FOUR),
    "whole JSON as an event": Row([sse(WHOLE), DONE], FOUR),
    "whole JSON without a reason": Row([bare({"choices": [{"message": MESSAGE}]})], FOUR),
    "whole JSON of parts": Row([bare(whole(content=[{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": FOUR}]))], FOUR, "Hm."),
    "whole JSON with thoughts": Row([bare(whole(reasoning_content="Hm."))], FOUR, "Hm."),
    "whole JSON with `tool_calls: []`": Row([bare(whole(tool_calls=[]))], FOUR),
    "the whole message again at the end": Row([*WORDS, sse(WHOLE), DONE], FOUR),
    "a character in halves": Row([chat({"content": "Fine \ud83d"}), chat({"content": "\ude00 day"}), finish()], FACE),
    "thoughts in halves": Row([chat({"reasoning_content": "Fine \ud83d"}), chat({"reasoning_content": "\ude00 day"}), *WORDS, finish()], FOUR, FACE),
    "halves with an empty piece between": Row([chat({"content": "Fine \ud83d"}), chat({"content": ""}), chat({"reasoning": "Hm."}), chat({"content": "\ude00 day"}), finish()], FACE, "Hm."),
    "a lone half": Row([chat({"content": "Fine \ud83d"}), chat({"content": " day"}), finish()], LONE),
    "the other lone half": Row([chat({"content": "Fine "}), chat({"content": "\ude00 day"}), finish()], LONE),
    "a lone half at the end": Row([chat({"content": "Fine "}), chat({"content": "\ud83d"}), finish()], "Fine \ufffd"),
    "a lone half alone": Row([chat({"content": "\ud83d"}), finish()], "\ufffd"),
    "a half with the end": Row([chat({"content": "Fine \ud83d"}), chat({"content": "\ude00 day"}, "stop")], FACE),
    "whole JSON with a lone half": Row([bare(whole(content="Fine \ud83d day"))], LONE),
    "arguments in halves": Row([calls_chunk(piece(0, "a", "get_weather", '{"city": "\ud83d')), calls_chunk(piece(0, None, None, '\ude00"}')), CALLED], calls=[("get_weather", '{"city": "😀"}')]),
    "arguments with a lone half": Row([calls_chunk(piece(0, "a", "get_weather", '{"city": "\ud83d"}')), CALLED], calls=[("get_weather", '{"city": "\ufffd"}')]),
    "arguments with a lone half in an escape": Row([calls_chunk(piece(0, "a", "get_weather", '{"city": "\\ud83d"}')), CALLED], calls=[("get_weather", '{"city": "\ufffd"}')]),
    "halves in thoughts that go back with a call": Row([chat({"reasoning_content": "\ud83d"}), chat({"reasoning_content": "\ude00"}), calls_chunk(piece(0, "a", "get_weather", ROME)), CALLED], "", "😀", BOTH[:1]),
    "a lone half in the model's name and an id": Row([chat({"content": FOUR}, model="m\ud83d"), calls_chunk(piece(0, "a\ud83d", "get_weather", ROME)), CALLED], FOUR, calls=BOTH[:1]),
}  # fmt: skip
CHAT = {**{name: Row(events, calls=BOTH) for name, events in CALLS_IN_CHAT.items()}, **SAID_IN_CHAT}


@pytest.mark.parametrize("row", CHAT.values(), ids=CHAT.keys())
async def test_irregular_chat_completions_are_parsed(row: Row):
    check(row, await read("openai", row.events))


async def test_tool_call_ids_are_not_changed():
    for name in ("parallel calls under one index", "a new id in each piece", "no index"):
        reply = await read("openai", CALLS_IN_CHAT[name])
        assert [call.id for call in reply.tool_calls] == ["a", "b"]


def event(kind: str, **fields: object) -> bytes:
    return sse({"type": kind, **fields}, kind)


def text_delta(text: str, kind: str = "output_text") -> bytes:
    return event(f"response.{kind}.delta", delta=text)


def item(id: str | None, name: str, arguments: object) -> Json:
    return {"type": "function_call", "call_id": id, "name": name, "arguments": arguments}


def item_done(item: Json, index: object = 0) -> bytes:
    return event("response.output_item.done", output_index=index, item=item)


def message_item(text: str) -> Json:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def response_end(*output: Json, status: str = "completed", **more: object) -> bytes:
    usage = {"input_tokens": 12, "output_tokens": 4}
    response = {"object": "response", "status": status, "output": list(output), "usage": usage, **more}
    return event(f"response.{status}", response=response)


def response(*output: Json) -> bytes:
    return bare({"object": "response", "status": "completed", "output": list(output), "usage": {"input_tokens": 12, "output_tokens": 4}})  # fmt: skip


WEATHER, TIME = item("a", "get_weather", ROME), item("b", "get_time", UTC)
RESPONSES = {
    "parallel calls under one index": Row([item_done(WEATHER), item_done(TIME), response_end()], calls=BOTH, ids=["a", "b"]),
    "no index": Row([item_done(WEATHER, None), item_done(TIME, None), response_end()], calls=BOTH),
    "an index as text": Row([item_done(WEATHER, "0"), item_done(TIME, "1"), response_end(WEATHER, TIME)], calls=BOTH),
    "calls with the end alone": Row([response_end(WEATHER, TIME)], calls=BOTH),
    "calls twice": Row([item_done(WEATHER), item_done(TIME, 1), response_end(WEATHER, TIME)], calls=BOTH),
    "calls without ids": Row([item_done(item(None, "get_weather", ROME)), item_done(item(None, "get_time", UTC), 1), response_end()], calls=BOTH),
    "arguments as an object": Row([item_done(item("a", "get_weather", {"city": "Rome"})), item_done(item("b", "get_time", {"tz": "UTC"}), 1), response_end()], calls=BOTH),
    "arguments in pieces alone": Row([event("response.output_item.added", output_index=0, item=item("a", "get_weather", "")),
        event("response.function_call_arguments.delta", output_index=0, delta=ROME), response_end()], calls=BOTH[:1]),
    "words with the end alone": Row([response_end(message_item(FOUR))], FOUR),
    "words with the item alone": Row([item_done(message_item(FOUR)), response_end()], FOUR),
    "words in pieces and at the end": Row([text_delta("It is "), text_delta("four."), item_done(message_item(FOUR)), response_end(message_item(FOUR))], FOUR),
    "whole JSON": Row([response(message_item(FOUR))], FOUR),
    "whole JSON with thoughts": Row([response({"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}, message_item(FOUR))], FOUR, "Hm."),
    "whole JSON with calls": Row([response(WEATHER, TIME)], calls=BOTH),
    "events without names": Row([sse({"type": "response.output_text.delta", "delta": FOUR}), response_end()], FOUR),
    "events without types": Row([sse({"delta": FOUR}, "response.output_text.delta"), response_end()], FOUR),
    "no blank line at the end": Row([text_delta(FOUR), response_end().rstrip()], FOUR),
    "lines end with CR LF": Row([each.replace(b"\n", b"\r\n") for each in (text_delta(FOUR), response_end())], FOUR),
    "usage of null": Row([text_delta(FOUR), event("response.completed", response={"usage": None, "output": None})], FOUR),
    "the mark of chat's end": Row([text_delta(FOUR), response_end(), DONE], FOUR),
    "a character in halves": Row([text_delta("Fine \ud83d"), text_delta("\ude00 day"), response_end()], FACE),
    "thoughts in halves": Row([text_delta("\ud83d", "reasoning_text"), text_delta("\ude00", "reasoning_text"), text_delta(FOUR), response_end()], FOUR, "😀"),
    "a lone half": Row([text_delta("Fine \ud83d"), text_delta(" day"), response_end()], LONE),
    "a lone half at the end": Row([text_delta("Fine \ud83d"), response_end()], "Fine \ufffd"),
    "arguments with a lone half": Row([item_done(item("a", "get_weather", '{"city": "\ud83d"}')), response_end()], calls=[("get_weather", '{"city": "\ufffd"}')]),
}  # fmt: skip


@pytest.mark.parametrize("row", RESPONSES.values(), ids=RESPONSES.keys())
async def test_irregular_responses_are_parsed(row: Row):
    check(row, await read("responses", row.events))


BEGIN = event("message_start", message={"usage": {"input_tokens": 12, "output_tokens": 1}})


def block(block: Json, index: object = 0) -> bytes:
    return event("content_block_start", index=index, content_block=block)


def tool_use(id: str | None, name: str, input: object = None) -> Json:
    return {"type": "tool_use", "id": id, "name": name, "input": {} if input is None else input}


def delta(text: object, index: object = 0, kind: str = "text") -> bytes:
    name = {"text": "text", "thinking": "thinking", "input_json": "partial_json"}[kind]
    return event("content_block_delta", index=index, delta={"type": f"{kind}_delta", name: text})


def end(reason: object = "end_turn", **more: object) -> bytes:
    return event("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 4}, **more) + event("message_stop")  # fmt: skip


def without_names(*events: bytes) -> list[bytes]:
    return [
        b"data:" + each.partition(b"data:")[2] + b"\n\n" for each in b"".join(events).split(b"\n\n") if each
    ]


def in_blocks(index_of_second: object, *, pieces: bool = True) -> list[bytes]:
    """Return the events of a message with two tool calls."""
    if not pieces:
        return [BEGIN, block(tool_use("a", "get_weather", json.loads(ROME))), block(tool_use("b", "get_time", json.loads(UTC)), index_of_second)]  # fmt: skip
    return [BEGIN, block(tool_use("a", "get_weather")), delta(ROME[:4], kind="input_json"), delta(ROME[4:], kind="input_json"),
            block(tool_use("b", "get_time"), index_of_second), delta(UTC, index_of_second, "input_json")]  # fmt: skip


TEXT = block({"type": "text", "text": ""})
MESSAGE_WHOLE: Json = {
    "id": "1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn", "stop_sequence": None,
    "content": [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}, {"type": "text", "text": FOUR}],
    "usage": {"input_tokens": 12, "output_tokens": 4},
}  # fmt: skip
ANTHROPIC = {
    **{f"calls under {reason!r}": Row([*in_blocks(1), end(reason)], calls=BOTH, ids=["a", "b"]) for reason in ("end_turn", "tool_calls", "stop_sequence", "stop")},
    "words and a call under `end_turn`": Row([BEGIN, TEXT, delta(FOUR), block(tool_use("a", "get_weather", json.loads(ROME)), 1), end()], FOUR, calls=BOTH[:1]),
    "parallel calls under one index": Row([*in_blocks(0), end("tool_use")], calls=BOTH, ids=["a", "b"]),
    "whole calls under one index": Row([*in_blocks(0, pieces=False), end("tool_use")], calls=BOTH),
    "calls without ids": Row([BEGIN, block(tool_use(None, "get_weather", json.loads(ROME))), block(tool_use(None, "get_time", json.loads(UTC)), 1), end("tool_use")], calls=BOTH),
    "calls with one id": Row([BEGIN, block(tool_use("a", "get_weather", json.loads(ROME))), block(tool_use("a", "get_time", json.loads(UTC)), 1), end("tool_use")], calls=BOTH),
    "no index": Row([each.replace(b'"index": 0, ', b"").replace(b'"index": 1, ', b"") for each in in_blocks(1)] + [end("tool_use")], calls=BOTH),
    "input as text": Row([BEGIN, block(tool_use("a", "get_weather", ROME)), end("tool_use")], calls=BOTH[:1]),
    "input in a piece as an object": Row([BEGIN, block(tool_use("a", "get_weather")), delta({"city": "Rome"}, kind="input_json"), end("tool_use")], calls=BOTH[:1]),
    "words, `tool_use` and no call": Row([BEGIN, TEXT, delta(FOUR), end("tool_use")], FOUR),
    "words without a block": Row([BEGIN, delta("It is "), delta("four."), end()], FOUR),
    "words and thoughts with the begin of their blocks": Row([BEGIN, block({"type": "thinking", "thinking": "Hm.", "signature": ""}), block({"type": "text", "text": "It is "}, 1), delta("four.", 1), end()], FOUR, "Hm."),
    **{f"stop_reason {reason!r} first": Row([BEGIN, TEXT, event("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 1}), delta(FOUR), end()], FOUR) for reason in ("", "null", None)},
    **{f"stop_reason {reason!r}": Row([BEGIN, TEXT, delta(FOUR), end(reason)], FOUR) for reason in ("stop", "END_TURN", "eos")},
    "stop_reason 'length'": Row([BEGIN, TEXT, delta(FOUR), end("length")], FOUR, finish=FinishReason.LENGTH),
    "events without names": Row(without_names(BEGIN, TEXT, delta(FOUR), end()), FOUR),
    "events named `message`": Row([each.replace(b"data:", b"event: message\ndata:") for each in without_names(BEGIN, TEXT, delta(FOUR), event("ping"), end())], FOUR),
    "the mark of chat's end": Row([BEGIN, TEXT, delta(FOUR), end(), DONE], FOUR),
    "no mark of the end": Row([BEGIN, TEXT, delta(FOUR), event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 4})], FOUR),
    "no begin": Row([TEXT, delta(FOUR), end()], FOUR),
    "usage of null": Row([event("message_start", message={"usage": None}), TEXT, delta(FOUR), event("message_delta", delta={"stop_reason": "end_turn"}, usage=None)], FOUR),
    "lines end with CR LF": Row([each.replace(b"\n", b"\r\n") for each in (BEGIN, TEXT, delta(FOUR), end())], FOUR),
    "no blank line at the end": Row([BEGIN, TEXT, delta(FOUR), end().rstrip()], FOUR),
    "whole JSON": Row([bare(MESSAGE_WHOLE)], FOUR, "Hm."),
    "whole JSON on many lines": Row([bare(MESSAGE_WHOLE, 2)], FOUR, "Hm."),
    "whole JSON with calls": Row([bare(MESSAGE_WHOLE | {"content": [tool_use("a", "get_weather", json.loads(ROME)), tool_use("b", "get_time", json.loads(UTC))], "stop_reason": "tool_use"})], calls=BOTH),
    "whole JSON of a text": Row([bare(MESSAGE_WHOLE | {"content": FOUR, "stop_reason": None})], FOUR),
    "a character in halves": Row([BEGIN, TEXT, delta("Fine \ud83d"), delta("\ude00 day"), end()], FACE),
    "a character in halves, the first with the block": Row([BEGIN, block({"type": "text", "text": "Fine \ud83d"}), delta("\ude00 day"), end()], FACE),
    "thoughts in halves": Row([BEGIN, block({"type": "thinking", "thinking": "", "signature": ""}), delta("\ud83d", kind="thinking"), delta("\ude00", kind="thinking"),
        block({"type": "text", "text": ""}, 1), delta(FOUR, 1), end()], FOUR, "😀"),
    "a lone half": Row([BEGIN, TEXT, delta("Fine \ud83d"), delta(" day"), end()], LONE),
    "a lone half at the end": Row([BEGIN, TEXT, delta("Fine \ud83d"), end()], "Fine \ufffd"),
    "input in halves": Row([BEGIN, block(tool_use("a", "get_weather")), delta('{"city": "\ud83d', kind="input_json"), delta('\ude00"}', kind="input_json"), end("tool_use")], calls=[("get_weather", '{"city": "😀"}')]),
    "input with a lone half": Row([BEGIN, block(tool_use("a", "get_weather", {"city": "\ud83d"})), end("tool_use")], calls=[("get_weather", '{"city": "\ufffd"}')]),
}  # fmt: skip


@pytest.mark.parametrize("row", ANTHROPIC.values(), ids=ANTHROPIC.keys())
async def test_irregular_messages_are_parsed(row: Row):
    check(row, await read("anthropic", row.events))


# Gemini


def parts(*each: Json, reason: object = None, **more: object) -> bytes:
    return sse(candidate(*each, reason=reason) | more)


def candidate(*each: Json, reason: object = None) -> Json:
    candidate_json: Json = {"index": 0, "content": {"role": "model", "parts": list(each)}}
    if reason is not None:
        candidate_json["finishReason"] = reason
    return {
        "candidates": [candidate_json],
        "usageMetadata": {"promptTokenCount": 12, "candidatesTokenCount": 4},
    }


def function(name: str, args: object) -> Json:
    return {"functionCall": {"name": name, "args": args}}


CALLED_BOTH = [function(name, json.loads(args)) for name, args in BOTH]
GEMINI = {
    **{f"calls under {reason!r}": Row([parts(*CALLED_BOTH, reason=reason)], calls=BOTH) for reason in ("STOP", "TOOL_CALLS", "stop", "FUNCTION_CALL")},
    "arguments as text": Row([parts(function("get_weather", ROME), function("get_time", UTC), reason="STOP")], calls=BOTH),
    "arguments of null": Row([parts(function("get_time", None), reason="STOP")], calls=[("get_time", "{}")]),
    "words, TOOL_CALLS and no call": Row([parts({"text": FOUR}), parts(reason="TOOL_CALLS")], FOUR),
    **{f"finishReason {reason!r} on the running chunks": Row([parts({"text": "It is "}, reason=reason), parts({"text": "four."}, reason="STOP")], FOUR) for reason in ("", "null", "FINISH_REASON_UNSPECIFIED")},
    "STOP with each word": Row([parts({"text": "It is "}, reason="STOP"), parts({"text": "four."}, reason="STOP")], FOUR),
    "STOP before the first word": Row([parts(reason="STOP"), parts({"text": FOUR}), parts(reason="STOP")], FOUR),
    "usage and content of null": Row([sse({"candidates": [{"content": None}], "usageMetadata": None}), parts({"text": FOUR}), sse({"candidates": [{"finishReason": "STOP"}]})], FOUR),
    "no candidates": Row([sse({"candidates": []}), sse({"candidates": None}), parts({"text": FOUR}, reason="STOP")], FOUR),
    "one whole chunk as JSON": Row([bare(candidate({"text": FOUR}, reason="STOP"))], FOUR),
    "a list of chunks as JSON": Row([bare([candidate({"text": "It is "}), candidate({"text": "four."}, reason="STOP")], 2)], FOUR),
    "a list of chunks in pieces": Row([b"[", bare(candidate({"text": "It is "})), b"\r\n,\r\n", bare(candidate({"text": "four."}, reason="STOP"), 2), b"]\n"], FOUR),
    "the mark of chat's end": Row([parts({"text": FOUR}, reason="STOP"), DONE], FOUR),
    "events with names": Row([b"event: message\n" + each for each in (parts({"text": FOUR}), parts(reason="STOP"))], FOUR),
    "lines end with CR LF": Row([each.replace(b"\n", b"\r\n") for each in (parts({"text": FOUR}), parts(reason="STOP"))], FOUR),
    "no blank line at the end": Row([parts({"text": FOUR}), parts(reason="STOP").rstrip()], FOUR),
    "a character in halves": Row([parts({"text": "Fine \ud83d"}), parts({"text": "\ude00 day"}), parts({"text": ""}, reason="STOP")], FACE),
    "a character in halves, the second with the end": Row([parts({"text": "Fine \ud83d"}), parts({"text": "\ude00 day"}, reason="STOP")], FACE),
    "thoughts in halves": Row([parts({"text": "\ud83d", "thought": True}), parts({"text": "\ude00", "thought": True}, {"text": FOUR}, reason="STOP")], FOUR, "😀"),
    "a lone half": Row([parts({"text": "Fine \ud83d"}), parts({"text": " day"}, reason="STOP")], LONE),
    "a lone half at the end": Row([parts({"text": "Fine \ud83d"}), parts(reason="STOP")], "Fine \ufffd"),
    "a lone half with the end": Row([parts({"text": "Fine "}), parts({"text": "\ud83d"}, reason="STOP")], "Fine \ufffd"),
    "arguments with a lone half": Row([parts(function("get_weather", {"city": "\ud83d"}), reason="STOP")], calls=[("get_weather", '{"city": "\ufffd"}')]),
}  # fmt: skip


@pytest.mark.parametrize("row", GEMINI.values(), ids=GEMINI.keys())
async def test_irregular_gemini_contents_are_parsed(row: Row):
    check(row, await read("gemini", row.events))


# Answers that no wire can read


NO_CALL = {
    "openai": [chat({"role": "assistant"}), CALLED],
    "openai, a placeholder": [calls_chunk(piece(0, "", "", "")), CALLED],
    "openai, thoughts": [chat({"reasoning_content": "Hm."}), CALLED],
    "openai, whole JSON": [
        bare(WHOLE | {"choices": [{"message": {"content": None}, "finish_reason": "tool_calls"}]})
    ],
    "anthropic": [BEGIN, end("tool_use")],
    "anthropic, whole JSON": [bare(MESSAGE_WHOLE | {"content": [], "stop_reason": "tool_use"})],
    "gemini": [parts(reason="TOOL_CALLS")],
}


@pytest.mark.parametrize("call", [CALL, BARE], ids=["with tools", "without tools"])
@pytest.mark.parametrize("name", NO_CALL)
async def test_a_missing_tool_call_is_a_retryable_error(name: str, call: Call):
    with pytest.raises(WorkerUnavailable, match="sent no tool call") as caught:
        await read(name.partition(",")[0], NO_CALL[name], call)
    assert caught.value.retryable


EARLY = {
    "openai": (finish(), chat({"content": FOUR})),
    "anthropic": (BEGIN + end().partition(b"event: message_stop")[0], TEXT + delta(FOUR)),
    "gemini": (parts(reason="STOP"), parts({"text": FOUR})),
}


@pytest.mark.parametrize("name", EARLY)
async def test_an_end_before_the_first_token_is_silence_while_the_connection_is_open(name: str):
    """The early end counts as silence for the whole stall timeout. Late words are read."""
    early, late = EARLY[name]
    dialect = DIALECTS[name]

    async def ask(stall_s: float, *answers: Answer) -> str:
        async with serving(dialect.wire, *answers) as server:
            account = ProviderAccount("w", MODEL, SECRET, server.url + dialect.path, stall_timeout_s=stall_s)
            worker = dialect.worker(account)
            try:
                async with worker.open(BARE) as reply:
                    return "".join([each.text async for each in reply])
            finally:
                await worker.aclose()

    waits = Answer(instead=(early, late, early), pause_after=1, late_s=12)
    assert await ask(60, waits) == FOUR
    with pytest.raises(WorkerUnavailable, match="sent no output within the time limit"):
        await ask(15, Answer(instead=(early,), stall_after=1))


@pytest.mark.parametrize("name", EARLY)
async def test_text_after_an_end_is_read_while_it_arrives(name: str):
    _, word = EARLY[name]
    early = EARLY[name][0]
    first = [BEGIN, word] if name == "anthropic" else [word]
    more = delta(" More.") if name == "anthropic" else word.replace(FOUR.encode(), b" More.")
    events = (*first, early, more, early, more, early)
    reply = await read(name, events)
    assert reply.result.output == f"{FOUR} More. More."


CUT = {
    "openai": (WORDS[1], finish()),
    "responses": (text_delta("It is "), response_end()),
    "anthropic": (BEGIN + TEXT + delta("It is "), end()),
    "gemini": (parts({"text": "It is "}), parts(reason="STOP")),
}
MALFORMED = {
    "no JSON": b'data: {"choices": [{"del\n\n',
    "a list": b"data: [7]\n\n",
    "a number": b"data: 7\n\n",
    "text": b"data: oops\n\n",
}


@pytest.mark.parametrize("together", [False, True], ids=["in its own packet", "in one packet with words"])
@pytest.mark.parametrize("malformed", MALFORMED)
@pytest.mark.parametrize("name", CUT)
async def test_a_malformed_event_is_a_break_after_the_previous_text(
    name: str, malformed: str, together: bool
):
    first, last = CUT[name]
    broken = MALFORMED[malformed]
    if name == "anthropic":
        broken = b"event: content_block_delta\n" + broken
    events = (first + broken, last) if together else (first, broken, last)
    dialect, texts = DIALECTS[name], list[str]()
    async with serving(dialect.wire, Answer(instead=events)) as server:
        worker = dialect.worker(ProviderAccount("w", MODEL, SECRET, server.url + dialect.path))

        async def listen() -> None:
            async with asyncio.timeout(SOON_S), worker.open(BARE) as reply:
                async for each in reply:
                    texts.append(each.text)

        with pytest.raises(WorkerUnavailable) as caught:
            await listen()
        await worker.aclose()
    assert "".join(texts) == "It is "
    assert caught.value.retryable


# Embeddings, which are not streamed


VECTOR = [0.5, 0.25]
ROWS: Json = {
    "data": [{"index": 0, "embedding": VECTOR}, {"index": 1, "embedding": [1.0, 2.0]}],
    "usage": {"prompt_tokens": 3},
}
EMBEDDINGS = {
    "as an event": [sse(ROWS), DONE],
    "as a named event": [b": hello\n", sse(ROWS, "message"), DONE],
    "without an index": [bare({"data": [{"embedding": VECTOR}, {"embedding": [1.0, 2.0]}]})],
    "an index as text": [bare({"data": [{"index": "1", "embedding": [1.0, 2.0]}, {"index": "0", "embedding": VECTOR}]})],
    "after a byte order mark": [b"\xef\xbb\xbf" + bare(ROWS)],
}  # fmt: skip


@pytest.mark.parametrize("events", EMBEDDINGS.values(), ids=EMBEDDINGS.keys())
async def test_irregular_embeddings_are_parsed(events: Sequence[bytes]):
    call = Call((*USER, *USER), site=CallSite(operation="embeddings"))
    reply = await read("openai", events, call)
    assert reply.result.output == f"{vector_text(VECTOR)}\n{vector_text([1.0, 2.0])}"


JSON_ANSWERS = {
    "openai": bare(WHOLE),
    "responses": response(message_item(FOUR)),
    "anthropic": bare(MESSAGE_WHOLE),
    "gemini": bare([candidate({"text": "It is "}), candidate({"text": "four."}, reason="STOP")]),
}


@pytest.mark.parametrize("closes", [False, True], ids=["by its length", "until the connection closes"])
@pytest.mark.parametrize("name", JSON_ANSWERS)
async def test_a_json_response_to_a_stream_request_is_read(name: str, closes: bool):
    """The headers are those of a response that is no stream."""
    body, dialect = JSON_ANSWERS[name], DIALECTS[name]
    length = b"" if closes else b"content-length: %d\r\n" % len(body)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + length + b"\r\n"
    async with faulty(Fault(head, tail=body, closes=closes, keeps_alive=not closes)) as server:
        worker = dialect.worker(ProviderAccount("w", MODEL, SECRET, server.url + dialect.path))
        async with asyncio.timeout(SOON_S), worker.open(BARE) as reply:
            assert "".join([each.text async for each in reply]) == FOUR
        await worker.aclose()
    assert reply.result.usage is not None
    assert reply.result.usage.output_tokens == 4
