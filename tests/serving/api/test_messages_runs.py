"""Anthropic's streams and bodies for generated runs: every event has the SDK's type, in Anthropic's order."""

import json
from typing import Any

from anthropic.types import (
    Message,
    RawContentBlockDeltaEvent,
    RawContentBlockStartEvent,
    RawContentBlockStopEvent,
    RawMessageDeltaEvent,
    RawMessageStartEvent,
    RawMessageStopEvent,
)
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from conductor.run.events import AnswerDelta, Event, RunCancelled, RunFailed, RunFinished, RunSuspended
from conductor.run.record import RunRecords
from serving.api.dialects.messages.dialect import MessagesDialect
from serving.api.request import ApiRequest
from tests.serving.api.runs import call_id, encode, record_of, runs
from tests.serving.api.served import Json

MESSAGES = MessagesDialect()
TYPES: dict[str, type[BaseModel]] = {
    "message_start": RawMessageStartEvent,
    "content_block_start": RawContentBlockStartEvent,
    "content_block_delta": RawContentBlockDeltaEvent,
    "content_block_stop": RawContentBlockStopEvent,
    "message_delta": RawMessageDeltaEvent,
    "message_stop": RawMessageStopEvent,
}
OF_BLOCK = {
    "text": {"text_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
}
SPEC_USAGE = {
    "input_tokens", "output_tokens", "cache_creation", "cache_creation_input_tokens", "cache_read_input_tokens", "inference_geo",
    "output_tokens_details", "server_tool_use", "service_tier",
}  # fmt: skip
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}


def request(progress: str) -> ApiRequest:
    body = {
        "model": "mini",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Why?"}],
        "podium": {"progress": progress},
    }
    return MESSAGES.parse(json.dumps(body).encode())


def events_of(stream: bytes) -> list[Json]:
    """Return the data of each event, and check its `event:` line."""
    events: list[Json] = []
    for frame in stream.decode().removesuffix("\n\n").split("\n\n"):
        head, _, data = frame.partition("\ndata: ")
        events.append(json.loads(data))
        assert head == f"event: {events[-1]['type']}"
    return events


def blocks_of(events: list[Json]) -> list[tuple[Json, list[Json]]]:
    """Return each block with its deltas. Fail if blocks overlap or are out of order."""
    blocks: list[tuple[Json, list[Json]]] = []
    is_open = False
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(blocks)
                blocks.append((event["content_block"], []))
                is_open = True
            case "content_block_delta":
                block, deltas = blocks[event["index"]]
                assert is_open
                assert event["index"] == len(blocks) - 1
                assert event["delta"]["type"] in OF_BLOCK[block["type"]]
                deltas.append(event["delta"])
            case "content_block_stop":
                assert is_open
                assert event["index"] == len(blocks) - 1
                is_open = False
            case _:
                pass
    return blocks


def joined(block: Json, deltas: list[Json]) -> Any:
    """Return the content that a client assembles for a block."""
    match block["type"]:
        case "text":
            assert block["citations"] == []  # the AI SDK rejects null
            return "".join(delta["text"] for delta in deltas)
        case "thinking":
            assert deltas[-1]["type"] == "signature_delta"
            assert deltas[-1]["signature"]
            return "".join(delta.get("thinking", "") for delta in deltas)
        case _:
            assert block["input"] == {}
            assert block["caller"] == {"type": "direct"}
            return block["id"], block["name"], json.loads("".join(delta["partial_json"] for delta in deltas))


progresses = st.sampled_from(["off", "events", "reasoning"])


@given(runs(), progresses)
def test_every_stream_is_as_anthropic_defines_it(happened: list[Event], progress: str) -> None:
    events = events_of(encode(MESSAGES, request(progress), *happened))
    last = happened[-1]
    if isinstance(last, RunFailed | RunCancelled):
        error = events.pop()
        assert (error["type"], error["request_id"]) == ("error", "wf_1")
        assert error["error"].keys() >= {"type", "message"}
    named = [event for event in events if event["type"] != "ping"]
    for event in named:
        TYPES[event["type"]].model_validate(event, strict=True)
    kinds = [event["type"] for event in named]
    assert kinds[0] == "message_start"
    assert kinds.count("message_start") == 1
    assert named[0]["message"]["usage"].keys() == SPEC_USAGE
    is_whole = isinstance(last, RunFinished | RunSuspended)
    assert (kinds[-2:] == ["message_delta", "message_stop"]) == is_whole
    blocks = blocks_of(named)
    assert len(blocks) == kinds.count("content_block_start")
    if is_whole:
        assert kinds.count("content_block_stop") == len(blocks)
        check_content(happened, blocks, progress)
        delta = named[-2]
        reason = "tool_use" if isinstance(last, RunSuspended) else STOP_REASONS[last.finish.value]  # type: ignore[union-attr]
        assert delta["delta"]["stop_reason"] == reason
        assert delta["usage"]["input_tokens"] >= 0


def check_content(happened: list[Event], blocks: list[tuple[Json, list[Json]]], progress: str) -> None:
    deltas = [event for event in happened if isinstance(event, AnswerDelta)]
    text = "".join(joined(*each) for each in blocks if each[0]["type"] == "text")
    assert text == "".join(delta.text for delta in deltas)
    thought = "".join(joined(*each) for each in blocks if each[0]["type"] == "thinking")
    assert thought.endswith("".join(delta.reasoning for delta in deltas) if progress == "reasoning" else "")
    assert bool(thought) == (progress == "reasoning")
    last = happened[-1]
    called = [joined(*each) for each in blocks if each[0]["type"] == "tool_use"]
    pending = last.calls if isinstance(last, RunSuspended) else ()
    assert called == [
        (call_id(each.number), each.call.name, json.loads(each.call.arguments or "{}")) for each in pending
    ]


@given(runs(), progresses)
def test_every_body_has_anthropics_form_and_matches_the_stream(happened: list[Event], progress: str) -> None:
    if not isinstance(happened[-1], RunFinished | RunSuspended):
        return
    request_body = request(progress)
    body = MESSAGES.body(RunRecords(record_of(*happened)), request_body, call_id)
    Message.model_validate(body, strict=True)
    events = events_of(encode(MESSAGES, request_body, *happened))
    streamed = [each for each in blocks_of(events) if each[0]["type"] != "thinking"]
    blocks = [block for block in body["content"] if block["type"] != "thinking"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    assert text == "".join(joined(*each) for each in streamed if each[0]["type"] == "text")
    assert all(block["citations"] == [] for block in blocks if block["type"] == "text")
    assert [
        (block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"
    ] == [joined(*each) for each in streamed if each[0]["type"] == "tool_use"]
    delta = next(event for event in events if event["type"] == "message_delta")
    assert delta["delta"]["stop_reason"] == body["stop_reason"]
    assert delta["usage"].items() <= body["usage"].items()
    assert body["usage"].keys() == SPEC_USAGE
