"""Tool calls at the border to vLLM's engines: requests, and parsing with vLLM's own parser."""

import functools
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from conductor.model.call import Call, Sampling
from conductor.model.messages import Message, Native, Text, Tool, ToolCall, ToolChoice, ToolResult, Toolset
from conductor.model.reply import FinishReason
from serving.workers.vllm import STOP_NOTE, Chunk, ChunkCall, EngineCall, VllmWorker
from tests.lazy import lazy

AutoTokenizer = lazy("transformers:AutoTokenizer")
CompletionOutput = lazy("vllm.outputs:CompletionOutput")
SamplingParams = lazy("vllm.sampling_params:SamplingParams")
ToolReader = lazy("serving.deployments.tool_parsing:ToolReader")

MODEL = Path("models/smollm2-135m")
WEATHER = Tool("weather", "Of a city.", {"type": "object", "properties": {"city": {"type": "string"}}})
SQL = Tool("sql", "Runs a query.", kind="custom")
CALL_TEXT = '<tool_call>\n{"name": "weather", "arguments": {"city": "Łódź"}}\n</tool_call>'
QUESTION = Message.of("user", "How is it?")


class Engine:
    """Fake engine that yields the given chunks and stores its calls."""

    def __init__(self, *chunks: Chunk) -> None:
        self._chunks = chunks
        self.calls: list[EngineCall] = []

    async def generate(self, call: EngineCall, waiting: object = None) -> AsyncGenerator[Chunk]:
        self.calls.append(call)
        for chunk in self._chunks:
            yield chunk


async def answer(engine: Any, call: Call, *, calls_tools: bool = True) -> Any:
    async with VllmWorker("w", "model", engine, calls_tools=calls_tools).open(call) as reply:
        async for _ in reply:
            pass
    return reply.result


@functools.cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL)  # takes a second


def reader(*, functions: Any = None, **options: Any) -> ToolReader:
    tool = {"name": "weather", "description": "", "parameters": dict(WEATHER.parameters or {})}
    tools = functions or ({"type": "function", "function": tool},)
    call = EngineCall([], tools=tools, reads_calls=True, **options)
    return ToolReader("hermes", tokenizer(), call)


def read(reader: ToolReader, text: str, size: int = 3) -> tuple[str, tuple[ChunkCall, ...]]:
    words = ""
    for start in range(0, len(text), size):
        piece = text[start : start + size]
        words += reader.feed(piece, CompletionOutput(0, piece, [start], None, None))
    rest, calls = reader.end()
    return words + rest, calls


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_vllms_parser_reads_calls_and_keeps_the_text_before_them(size: int):
    text, calls = read(reader(), "Let me look. " + CALL_TEXT, size)
    assert text.strip() == "Let me look."
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("weather", {"city": "Łódź"})]


@pytest.mark.parametrize("text", ["It is 3 < 4.", "Nearly <tool_", "<tool_call>no JSON</tool_call>"])
def test_an_invalid_call_is_text(text: str):
    assert read(reader(), text) == (text, ())


def test_only_the_first_call_counts_if_parallel_calls_are_off():
    assert len(read(reader(), CALL_TEXT * 2)[1]) == 2
    assert len(read(reader(parallel_calls=False), CALL_TEXT * 2)[1]) == 1


def test_a_required_call_is_decoded_under_the_tools_schemas():
    forced, sampling = reader(must_call=True, parallel_calls=False), SamplingParams()
    forced.constrain(sampling)
    constraint: Any = sampling.structured_outputs
    assert (constraint.json["minItems"], constraint.json["maxItems"]) == (1, 1)
    text = json.dumps([{"name": "weather", "parameters": {"city": "Rome"}}])
    assert read(forced, text) == ("", (ChunkCall("weather", '{"city": "Rome"}'),))


def test_tool_schemas_that_are_slow_to_compile_become_any_object():
    long = {f"p{n}": {"type": "string", "maxLength": 1000 + n} for n in range(300)}
    wide = {f"p{n}": {"type": "string"} for n in range(2000)}
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    root = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    list_of = {"type": "object", "properties": {"first": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}
    other = {**list_of, "$defs": {"node": {"type": "integer"}}}
    schemas = [{"type": "object", "properties": long}, {"type": "object", "properties": wide}, list_of, other, root, {"type": 5}]  # fmt: skip
    tools = tuple({"type": "function", "function": {"name": f"t{n}", "parameters": each}} for n, each in enumerate(schemas))  # fmt: skip
    forced, sampling = reader(must_call=True, functions=tools), SamplingParams()
    forced.constrain(sampling)
    constraint: Any = sampling.structured_outputs
    lengths, *others = [each["properties"]["parameters"] for each in constraint.json["items"]["anyOf"]]
    assert lengths["properties"]["p1"] == {"type": "string"}
    assert others == [{"type": "object"}, {k: v for k, v in list_of.items() if k != "$defs"}, *[{"type": "object"}] * 3]  # fmt: skip
    assert constraint.json["$defs"] == {"node": node}
    assert [each.function.parameters for each in forced._request.tools or ()] == schemas


def test_the_parsers_marks_are_not_skipped_as_special_tokens():
    sampling = SamplingParams()
    reader().constrain(sampling)
    assert not sampling.skip_special_tokens
    assert sampling.structured_outputs is None


async def test_calls_are_returned_as_the_client_named_them_with_their_reasoning():
    calls = (ChunkCall("weather", '{"city": "Rome"}'), ChunkCall("sql", '{"input": "select 1"}'))
    engine = Engine(Chunk("", "Hm.", None, 5, 0, 1, 1), Chunk("Look.", "", "tool_calls", 5, 0, 9, 1, calls))
    tools = Toolset((WEATHER, SQL), ToolChoice("required"), parallel=False)
    result = await answer(engine, Call((QUESTION,), tools=tools))
    assert result.finish is FinishReason.TOOL_CALLS
    weather, sql = result.tool_calls
    assert (weather.name, sql.name, sql.arguments, sql.kind) == ("weather", "sql", "select 1", "custom")
    call = engine.calls[0]
    assert [tool["function"]["name"] for tool in call.tools] == ["weather", "sql"]
    assert (call.reads_calls, call.must_call, call.parallel_calls) == (True, True, False)

    turn = Message("assistant", (Text("Look."), weather, sql), result.native)
    gave = Message("tool", (ToolResult(weather.id, (Text("Sun."),)), ToolResult(sql.id, (Text("1"),))))
    await answer(engine, Call((QUESTION, turn, gave), tools=tools))
    _, message, *results = engine.calls[1].messages
    assert (message["reasoning"], message["content"], len(message["tool_calls"])) == ("Hm.", "Look.", 2)
    assert [(line["role"], line["tool_call_id"]) for line in results] == [
        ("tool", weather.id),
        ("tool", sql.id),
    ]


async def test_stop_sequences_do_not_apply_to_a_required_call():
    engine = Engine(Chunk("", "", "tool_calls", 5, 0, 9, 1, (ChunkCall("weather", "{}"),)))
    stops = Sampling(stop=("}", "city"))
    result = await answer(engine, Call((QUESTION,), stops, tools=Toolset((WEATHER,), ToolChoice("required"))))
    free = await answer(engine, Call((QUESTION,), stops, tools=Toolset((WEATHER,))))
    assert [call.stop for call in engine.calls] == [(), ("}", "city")]
    assert (result.notes, free.notes) == ((STOP_NOTE,), ())


async def test_a_worker_without_a_parser_gets_tools_as_text():
    engine = Engine(Chunk("Fine.", "", "stop", 5, 0, 1, 0))
    turn = Message("assistant", (ToolCall("1", "weather", "{}"),), Native("other", "", {}))
    gave = Message("tool", (ToolResult("1", (Text("Sun."),)),))
    await answer(engine, Call((QUESTION, turn, gave), tools=Toolset((WEATHER,))), calls_tools=False)
    call = engine.calls[0]
    assert (call.tools, call.reads_calls) == ((), False)
    assert [line["role"] for line in call.messages] == ["user", "assistant", "user"]
    assert "weather" in call.messages[1]["content"]
    assert "Sun." in call.messages[2]["content"]
