"""Events of Responses over generated runs: each matches OpenAI's SDK type, in the order that the SDK relies on."""

import json
from functools import cache
from typing import Any, cast

import openai.types.responses as types
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from conductor.model.messages import ToolCall
from conductor.run.event_log import EventLog
from conductor.run.events import Event
from conductor.run.fold import after
from conductor.run.record import RunRecords
from conductor.run.run import Run
from serving.api.dialects.responses.dialect import ResponsesDialect
from serving.api.dialects.responses.resource import echo_of
from serving.api.dialects.responses.schema import ResponsesRequest
from serving.api.request import ApiRequest
from tests.serving.api.runs import call_id, encode, record_of, runs, suspension

Json = dict[str, Any]
DIALECT = ResponsesDialect()
LIFE = {"created", "in_progress", "completed", "failed", "incomplete"}
KINDS: dict[str, type[BaseModel]] = {
    **{f"response.{kind}": getattr(types, f"Response{kind.title().replace('_', '')}Event") for kind in LIFE},
    "response.output_item.added": types.ResponseOutputItemAddedEvent,
    "response.output_item.done": types.ResponseOutputItemDoneEvent,
    "response.content_part.added": types.ResponseContentPartAddedEvent,
    "response.content_part.done": types.ResponseContentPartDoneEvent,
    "response.output_text.delta": types.ResponseTextDeltaEvent,
    "response.output_text.done": types.ResponseTextDoneEvent,
    "response.reasoning_summary_part.added": types.ResponseReasoningSummaryPartAddedEvent,
    "response.reasoning_summary_part.done": types.ResponseReasoningSummaryPartDoneEvent,
    "response.reasoning_summary_text.delta": types.ResponseReasoningSummaryTextDeltaEvent,
    "response.reasoning_summary_text.done": types.ResponseReasoningSummaryTextDoneEvent,
    "response.function_call_arguments.delta": types.ResponseFunctionCallArgumentsDeltaEvent,
    "response.function_call_arguments.done": types.ResponseFunctionCallArgumentsDoneEvent,
    "response.custom_tool_call_input.delta": types.ResponseCustomToolCallInputDeltaEvent,
    "response.custom_tool_call_input.done": types.ResponseCustomToolCallInputDoneEvent,
}
"""Types of events by name, because the SDK's union has no discriminator."""
ITEMS: dict[str, type[BaseModel]] = {
    "message": types.ResponseOutputMessage,
    "reasoning": types.ResponseReasoningItem,
    "function_call": types.ResponseFunctionToolCallItem,
    "custom_tool_call": types.ResponseCustomToolCallItem,
}
PIECES = {
    "message": ("output_text.delta", "output_text.done", "text"),
    "reasoning": ("reasoning_summary_text.delta", "reasoning_summary_text.done", "text"),
    "function_call": ("function_call_arguments.delta", "function_call_arguments.done", "arguments"),
    "custom_tool_call": ("custom_tool_call_input.delta", "custom_tool_call_input.done", "input"),
}
"""For each kind of item: the event with a piece, the event with the whole, and the name of the field."""


def parse(**fields: Any) -> ApiRequest:
    """Return a parsed request with the fields that its answers repeat."""
    body = {"model": "mini", "input": "Why?", **fields}
    request = DIALECT.parse(json.dumps(body).encode())
    echo = echo_of(ResponsesRequest.model_validate(body), request.podium.progress, 0)
    return ApiRequest(
        request.model, request.conversation, request.sampling, request.effort, request.podium, True, True,
        request.tools, echo=echo,
    )  # fmt: skip


def events_of(stream: bytes) -> list[Json]:
    """Return each event of a stream, and check its `event:` line."""
    blocks = [block.split("\n") for block in stream.decode().split("\n\n")[:-1]]
    events = [cast(Json, json.loads(data.removeprefix("data: "))) for _, data in blocks]
    assert [name for name, _ in blocks] == [f"event: {event['type']}" for event in events]
    return events


@cache
def needs(kind: type[BaseModel]) -> frozenset[str]:
    return frozenset(name for name, field in kind.model_fields.items() if field.is_required())


def validate(event: Json) -> None:
    """Validate an event and its items against the types of the SDK."""
    kind = KINDS[event["type"]]
    kind.model_validate(event)
    missing = needs(kind) - event.keys()
    assert not missing, missing
    items = [event["item"]] if "item" in event else event.get("response", {}).get("output", [])
    for item in items:
        ITEMS[item["type"]].model_validate(item)


def encode_with(request: ApiRequest, events: list[Event], beats: set[int]) -> bytes:
    """Encode the events, with a heartbeat before each event whose number is in `beats`."""
    log = EventLog(record_of())
    encoder = DIALECT.encoder(Run(log), request, call_id)
    stream = encoder.begin()
    for n, event in enumerate(events):
        stream += encoder.heartbeat() if n in beats else b""
        log.record = after(log.record, event)
        stream += encoder.encode(event)
    return stream


requests = st.sampled_from(
    [
        parse(reasoning=reasoning, include=include, metadata=metadata, podium=podium)
        for reasoning in ({}, {"summary": "auto"})
        for include in ([], ["reasoning.encrypted_content"])
        for metadata in ({}, {"a": "b"})
        for podium in ({}, {"progress": "events"}, {"trace": True})
    ]
)
"""Parsed only once, to save time in a thousand runs."""


@given(request=requests, events=runs(), beats=st.sets(st.integers(0, 20), max_size=3))
def test_every_event_of_every_run_matches_the_sdks_type_and_order(
    request: ApiRequest, events: list[Event], beats: set[int]
) -> None:
    frames = events_of(encode_with(request, events, beats))
    for event in frames:
        validate(event)
    assert [event["sequence_number"] for event in frames] == list(range(len(frames)))
    assert [event["type"] for event in frames[:2]] == ["response.created", "response.in_progress"]
    assert len({event["response"]["id"] for event in frames if "response" in event}) == 1
    last = frames[-1]["response"]
    assert frames[-1]["type"] == f"response.{last['status']}"
    assert [event["type"] for event in frames].count(frames[-1]["type"]) == 1
    items = [
        item_of([event for event in frames if event.get("output_index") == n])
        for n in range(len(last["output"]))
    ]
    assert items == last["output"]
    check_one_at_a_time(frames)
    thoughts = [item["encrypted_content"] for item in items if "encrypted_content" in item]
    assert bool(thoughts) == (
        request.echo["shows_encrypted"] and any(item["type"] == "reasoning" for item in items)
    )


def item_of(events: list[Json]) -> Json:
    """Return the item that a client assembles from the events of one item."""
    first, *inside, last = events
    assert (first["type"], last["type"]) == ("response.output_item.added", "response.output_item.done")
    item = last["item"]
    first_item = first["item"]
    assert first_item["status"] == "in_progress"
    assert (first_item["id"], first_item["type"], first_item.get("call_id")) == (
        item["id"],
        item["type"],
        item.get("call_id"),
    )
    assert first_item.get("content", []) == [] == first_item.get("summary", [])
    assert first_item.get("arguments", "") == "" == first_item.get("input", "")
    assert {event["item_id"] for event in inside} == {item["id"]}
    grows, whole, name = PIECES[item["type"]]
    pieces = [event["delta"] for event in inside if event["type"] == f"response.{grows}"]
    values = [event[name] for event in inside if event["type"] == f"response.{whole}"]
    content = (item.get("content") or item.get("summary") or [item])[0]
    assert values == ["".join(pieces)] == [content[name]]
    return item


def check_one_at_a_time(events: list[Json]) -> None:
    """Check that items are numbered in order, and that each ends before the next begins."""
    places = [(event["type"], event["output_index"]) for event in events if "item" in event]
    n_items = len(places) // 2
    order = [f"response.output_item.{what}" for what in ("added", "done")] * n_items
    assert places == list(zip(order, [n for n in range(n_items) for _ in "ab"], strict=True))


@given(request=requests, events=runs())
def test_a_runs_body_matches_its_stream(request: ApiRequest, events: list[Event]) -> None:
    record = record_of(*events)
    whole = DIALECT.body(RunRecords(record), request, call_id)
    types.Response.model_validate(whole)
    streamed = events_of(encode(DIALECT, request, *events))[-1]["response"]
    if record.status == "cancelled":
        return  # a stream cannot say so
    assert whole["status"] == streamed["status"]

    def calls(response: Json) -> list[Json]:
        return [{**item, "id": ""} for item in response["output"] if "call_id" in item]

    assert calls(whole) == calls(streamed)
    assert whole["usage"] == streamed["usage"]
    assert (whole["error"], whole["incomplete_details"]) == (
        streamed["error"],
        streamed["incomplete_details"],
    )
    if record.status == "finished":
        assert texts(whole) == texts(streamed)


def texts(response: Json) -> str:
    return "".join(item["content"][0]["text"] for item in response["output"] if item["type"] == "message")


def test_calls_of_custom_and_namespace_tools_have_their_own_form() -> None:
    calls = ToolCall("", "patch", "*** Begin", "custom"), ToolCall("", "spawn", "{}", namespace="agents")
    events = events_of(encode(DIALECT, parse(), *suspension(*calls)))
    for event in events:
        validate(event)
    patch, spawn = events[-1]["response"]["output"]
    assert (patch["type"], patch["input"], patch["call_id"]) == ("custom_tool_call", "*** Begin", "call_0")
    assert (spawn["type"], spawn["namespace"], spawn["arguments"]) == ("function_call", "agents", "{}")
    check_one_at_a_time(events)
