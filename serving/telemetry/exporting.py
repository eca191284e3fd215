"""Export of spans to an OpenTelemetry collector, in requests small enough for it to accept.

A receiver rejects a request that is too long (by default more than 4 MiB for gRPC), and all spans of the
request are lost. So a batch of spans is split by size, and long texts are cut if a single span is too long.
The queue of spans is limited in bytes too.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Status

MOST_BYTES = 3_000_000
"""Maximum size of a request in bytes, by an estimate that is never too low. Receivers accept 4,194,304 bytes
by default."""
SHORT_BYTES = 2_000
"""Maximum size of a span's texts, in bytes, when a rejected request is sent again. The limit of the receiver
may be lower than the default."""
REJECTED_WITHIN_S = 5.0
"""Seconds within which a failed request counts as rejected. A failure that takes longer is an outage, and the
request is not sent again."""
SPAN_BYTES, FIELD_BYTES = 1_000, 50
"""Estimated size in bytes of a span without attributes, and of an attribute without its name and text."""
MOST_TEXT_BYTES = MOST_BYTES - 100_000
"""Maximum size of a span's texts, in bytes."""
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")

MOST_WAITING_BYTES = 64_000_000
"""Maximum total size, in bytes, of spans that wait for the collector. Beyond that, a span is queued without
long texts, or dropped if there is still no room."""

Attributes = Mapping[str, Any]

logger = logging.getLogger("podium")


class BoundedProcessor(BatchSpanProcessor):
    """Batching processor whose queue is limited in bytes as well as in its number of spans.

    While the collector is unavailable, up to 2,048 spans are queued. With the setting `telemetry.content`,
    each of them may contain megabytes of text.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._waiting = _Waiting(exporter)
        super().__init__(self._waiting)

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled:
            return
        n_bytes = _size(span)
        if self._waiting.n_bytes + n_bytes > MOST_WAITING_BYTES:
            span = _fit(span, SHORT_BYTES)
            n_bytes = _size(span)
        if self._waiting.add(n_bytes):
            super().on_end(span)

    @property
    def n_waiting_bytes(self) -> int:
        """Total size, in bytes, of the spans that are not sent yet."""
        return self._waiting.n_bytes


class _Waiting(SpanExporter):
    """Exporter that counts waiting spans and bytes. It drops new ones if full, as the queue would drop old
    ones of unknown size.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter, self._lock = exporter, threading.Lock()
        self._most = BatchSpanProcessor._default_max_queue_size()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        self.n_bytes = self._n_spans = self._n_dropped = 0

    def add(self, n_bytes: int) -> bool:
        """Count a span that is about to be queued.

        Return False, and count it as dropped, if the queue is full.
        """
        with self._lock:
            if self._n_spans >= self._most or self.n_bytes + n_bytes > MOST_WAITING_BYTES:
                self._n_dropped += 1
                if self._n_dropped.bit_count() == 1:  # at each doubling
                    logger.warning(
                        "The OpenTelemetry collector is too slow. Dropped %d spans so far.", self._n_dropped
                    )
                return False
            self._n_spans, self.n_bytes = self._n_spans + 1, self.n_bytes + n_bytes
            return True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            return self._exporter.export(spans)
        finally:
            n_bytes = sum(map(_size, spans))
            with self._lock:
                self._n_spans, self.n_bytes = self._n_spans - len(spans), self.n_bytes - n_bytes

    def shutdown(self) -> None:
        self._exporter.shutdown()


class BoundedExporter(SpanExporter):
    """Exporter that limits the size of each request."""

    def __init__(self, exporter: SpanExporter, now_s: Callable[[], float] = time.monotonic) -> None:
        self._exporter, self._now_s = exporter, now_s

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        results = [self._send(part) for part in _split([_fit(span, MOST_TEXT_BYTES) for span in spans])]
        return SpanExportResult.FAILURE if SpanExportResult.FAILURE in results else SpanExportResult.SUCCESS

    def _send(self, spans: list[ReadableSpan]) -> SpanExportResult:
        """Send a request, after a rejection again with short texts, so that usage and ids arrive."""
        began_s = self._now_s()
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS or self._now_s() - began_s > REJECTED_WITHIN_S:
            return result
        short = [_fit(span, SHORT_BYTES) for span in spans]
        return result if short == spans else self._exporter.export(short)

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def otlp_exporter() -> SpanExporter:
    """Create the exporter for the protocol that the environment selects (default: gRPC)."""
    protocol = next((value for name in PROTOCOLS if (value := os.environ.get(name))), "grpc")
    if protocol.startswith("http"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

        return BoundedExporter(Http())
    from grpc import StatusCode
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

    # RESOURCE_EXHAUSTED is not retried: a receiver uses it to reject a request that is too long.
    outages = (StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED, StatusCode.ABORTED)
    return BoundedExporter(Grpc(retryable_error_codes=outages))


def _split(spans: list[ReadableSpan]) -> Iterator[list[ReadableSpan]]:
    part, room = list[ReadableSpan](), MOST_BYTES
    for span in spans:
        size = _size(span)
        if part and size > room:
            yield part
            part, room = [], MOST_BYTES
        part.append(span)
        room -= size
    if part:
        yield part


def _size(span: ReadableSpan) -> int:
    fields = [span.attributes or {}, *(event.attributes or {} for event in span.events)]
    status = span.status.description or ""
    links = SPAN_BYTES * len(span.links)
    return SPAN_BYTES + _bytes(status) + links + sum(map(_size_of_attributes, fields))


def _size_of_attributes(attributes: Attributes) -> int:
    return sum(_bytes(name) + FIELD_BYTES + _size_of_value(value) for name, value in attributes.items())


def _size_of_value(value: object) -> int:
    if isinstance(value, str):
        return _bytes(value)
    if isinstance(value, Sequence):
        return sum(FIELD_BYTES + _size_of_value(each) for each in cast(Sequence[object], value))
    return 0


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _fit(span: ReadableSpan, most: int) -> ReadableSpan:
    """Shorten the longest texts of `span` so that all texts together have at most `most` bytes."""
    fields = [span.attributes or {}, *(event.attributes or {} for event in span.events)]
    sizes = [_size_of_value(value) for attributes in fields for value in attributes.values()]
    sizes.append(_bytes(span.status.description or ""))
    if sum(sizes) <= most:
        return span
    each = _share(sizes, most)
    status = Status(span.status.status_code, cast(str | None, _cut(span.status.description, each)))
    return ReadableSpan(
        span.name,
        span.context,
        span.parent,
        span.resource,
        _cut_attributes(span.attributes or {}, each),
        [Event(e.name, _cut_attributes(e.attributes or {}, each), e.timestamp) for e in span.events],
        span.links,
        span.kind,
        status=status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _share(sizes: Sequence[int], most: int) -> int:
    """Return the length to which the longest texts must be cut for at most `most` bytes together."""
    room = most
    for n_shorter, size in enumerate(sorted(sizes)):
        each = room // (len(sizes) - n_shorter)
        if size > each:
            return each
        room -= size
    return most


def _cut_attributes(attributes: Attributes, most: int) -> dict[str, Any]:
    return {name: _cut(value, most) for name, value in attributes.items()}


def _cut(value: object, most: int) -> object:
    """Cut the texts in `value` to at most `most` bytes, each with a note of its original size."""
    if isinstance(value, str):
        if _bytes(value) <= most:
            return value
        return _cut_messages(value, most) or _cut_text(value, most)
    if isinstance(value, Sequence):
        values = cast(Sequence[object], value)
        return values if _size_of_value(values) <= most else [_cut(v, most // len(values)) for v in values]
    return value


def _cut_text(text: str, most: int) -> str:
    note = f" [cut off: {_bytes(text)} bytes]"
    return text.encode("utf-8", "replace")[: max(0, most - len(note))].decode("utf-8", "ignore") + note


def _cut_messages(text: str, most: int) -> str | None:
    """Cut the contents of JSON messages, which stay valid. Return None for other text, or if it stays too
    long.
    """
    try:
        messages: list[dict[str, Any]] = json.loads(text)
        sizes = [len(json.dumps(each["content"])) for each in messages]
        frame = len(text) - sum(sizes)
        each = _share(sizes, most - frame)
        cut = [m | {"content": _cut_json(m["content"], each)} for m in messages]
    except (ValueError, TypeError, KeyError):
        return None
    result = json.dumps(cut)
    return result if len(result) <= most else None


def _cut_json(text: str, most: int) -> str:
    """Cut `text` to about `most` characters as JSON, which may use six for one."""
    n_chars = len(json.dumps(text))
    return text if n_chars <= most else _cut_text(text, (most - 2) * _bytes(text) // n_chars)
