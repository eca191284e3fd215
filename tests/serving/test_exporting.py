"""Export of spans to real receivers over gRPC and HTTP, with long contents too."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Event
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Status, StatusCode

from serving.telemetry import spans
from serving.telemetry.exporting import MOST_BYTES, MOST_WAITING_BYTES, BoundedExporter, BoundedProcessor
from tests.otlp import Receiver, receiving, receiving_http
from tests.serving.api.served import scripted, served, team
from tests.serving.spans import SPANS

pytestmark = pytest.mark.real_time
LIMIT = 4_194_304


@contextmanager
def collector(protocol: str, monkeypatch: pytest.MonkeyPatch, most_bytes: int = LIMIT) -> Iterator[Receiver]:
    with ExitStack() as stack:
        server = receiving(most_bytes) if protocol == "grpc" else receiving_http(most_bytes)
        receiver = stack.enter_context(server)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        yield receiver


def export(ended: list[ReadableSpan]) -> None:
    (processor,) = spans.span_processors()
    for span in ended:
        processor.on_end(span)
    processor.force_flush()
    processor.shutdown()


def make_span(**attributes: Any) -> ReadableSpan:
    all_spans: list[ReadableSpan] = []
    tracer = TracerProvider().get_tracer("podium")
    with tracer.start_as_current_span("chat m", attributes={spans.INPUT_TOKENS: 7, spans.WORKFLOW_ID: "wf_1", **attributes}) as span:  # fmt: skip
        pass
    assert isinstance(span, ReadableSpan)
    all_spans.append(span)
    return all_spans[0]


def messages(*contents: str) -> str:
    return json.dumps([{"role": "user", "content": each} for each in contents])


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
async def test_the_traces_of_20_chats_of_100_kb_arrive_complete(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = "why? " * 20_000
    async with served(team(workers=[scripted("a")], workflows={}, telemetry={"content": True})) as api:
        for n in range(20):
            await api.ok({"model": "a", "messages": [{"role": "user", "content": f"{n} {question}"}]})
        ended = list(SPANS.ended)
    with collector(protocol, monkeypatch) as receiver:
        export(ended)
    chats = [span for span in receiver.spans if span.name.startswith("chat")]
    assert len(chats) == len({span.trace_id for span in chats}) == 20
    for span in chats:
        assert span.attributes[spans.INPUT_TOKENS] > 0
        (message,) = json.loads(span.attributes[spans.INPUT_MESSAGES])
        assert len(message["content"]) > 100_000, "nothing had to be cut"
    roots = [span for span in receiver.spans if span.attributes.get(spans.WORKFLOW_ID)]
    assert len(roots) == 20


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize(
    "text",
    ["x" * 10_000_000, "ä" * 5_000_000, "语" * 3_000_000, '"\\\n' * 3_000_000, "\ud83d" * 3_000_000],
    ids=["ascii", "latin", "chinese", "escaped", "lone surrogates"],
)
def test_a_too_long_span_arrives_with_truncated_content_and_a_note(
    protocol: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = make_span(**{spans.INPUT_MESSAGES: messages("Why?")})
    long = make_span(**{spans.INPUT_MESSAGES: messages("Be brief.", text, "Why?")})
    with collector(protocol, monkeypatch) as receiver:
        export([short, long, short])
    assert [span.attributes[spans.INPUT_TOKENS] for span in receiver.spans] == [7, 7, 7]
    assert [span.attributes[spans.WORKFLOW_ID] for span in receiver.spans] == ["wf_1"] * 3
    assert json.loads(receiver.spans[0].attributes[spans.INPUT_MESSAGES])[0]["content"] == "Why?"
    first, cut, last = (
        each["content"] for each in json.loads(receiver.spans[1].attributes[spans.INPUT_MESSAGES])
    )
    assert (first, last) == ("Be brief.", "Why?")
    assert "[cut off: " in cut
    assert len(json.dumps(cut)) > 400_000, "as much as fits"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_receiver_with_a_lower_limit_gets_usage_and_ids(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = [make_span(**{spans.INPUT_MESSAGES: messages("x" * 100_000)}) for _ in range(60)]
    with collector(protocol, monkeypatch, 1_000_000) as receiver:
        export(ended)
    assert [span.attributes[spans.INPUT_TOKENS] for span in receiver.spans] == [7] * 60


@pytest.mark.parametrize("value", [messages(*["x" * 400] * 20_000), "no json " * 1_000_000, ["y" * 3_000_000] * 3, "[]" + " " * 9_000_000])  # fmt: skip
def test_a_span_with_any_content_arrives(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with collector("grpc", monkeypatch) as receiver:
        export([make_span(**{spans.INPUT_MESSAGES: value, "other": "z" * 4_000_000})])
    assert receiver.spans[0].attributes[spans.INPUT_TOKENS] == 7
    assert "cut off" in receiver.spans[0].attributes["other"]


def test_long_error_messages_and_events_are_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = TracerProvider().get_tracer("podium")
    with tracer.start_as_current_span("chat m") as span:
        span.add_event("said", {"words": "x" * 5_000_000})
        span.set_status(Status(StatusCode.ERROR, "y" * 5_000_000))
    with collector("grpc", monkeypatch) as receiver:
        export([span])  # type: ignore[list-item]
    assert [each.name for each in receiver.spans] == ["chat m"]


class Away(SpanExporter):
    def __init__(self) -> None:
        self.n_sent, self.now_s = 0, 0.0

    def export(self, spans: Any) -> SpanExportResult:
        self.n_sent, self.now_s = self.n_sent + 1, self.now_s + 10
        return SpanExportResult.FAILURE


def test_nothing_is_retried_while_the_collector_is_unavailable() -> None:
    away = Away()
    bounded = BoundedExporter(away, lambda: away.now_s)
    assert (
        bounded.export([make_span(**{spans.INPUT_MESSAGES: messages("x" * 100_000)})])
        is SpanExportResult.FAILURE
    )
    assert away.n_sent == 1


def test_a_batch_is_sent_in_as_few_requests_as_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = [make_span(**{spans.INPUT_MESSAGES: messages("x" * 100_000)}) for _ in range(60)]
    with collector("grpc", monkeypatch) as receiver:
        export(ended)
    assert receiver.n_requests == -(-60 * 100_000 // MOST_BYTES) + 1


class Hanging(SpanExporter):
    """Exporter that blocks until `is_back` is set."""

    def __init__(self) -> None:
        self.is_back, self.n_spans = Event(), 0

    def export(self, spans: Any) -> SpanExportResult:
        self.is_back.wait()
        self.n_spans += len(spans)
        return SpanExportResult.SUCCESS


def test_spans_queued_for_an_unavailable_collector_are_limited() -> None:
    hanging = Hanging()
    processor = BoundedProcessor(hanging)
    long = make_span(**{spans.INPUT_MESSAGES: messages("x" * 200_000)})
    try:
        for _ in range(2_300):
            processor.on_end(long)
            assert processor.n_waiting_bytes <= MOST_WAITING_BYTES
        assert processor.n_waiting_bytes > MOST_WAITING_BYTES / 2
    finally:
        hanging.is_back.set()
    processor.force_flush()
    processor.shutdown()
    assert 100 < hanging.n_spans <= 2048, "those without room wait without their texts"
    assert processor.n_waiting_bytes == 0


class Broken(SpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        raise ValueError("no such collector")


def test_spans_of_an_exporter_that_raises_are_no_longer_counted() -> None:
    processor = BoundedProcessor(Broken())
    for _ in range(3):
        processor.on_end(make_span(**{spans.INPUT_MESSAGES: messages("x")}))
        processor.force_flush()
    processor.shutdown()
    assert processor.n_waiting_bytes == 0
