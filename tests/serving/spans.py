"""One tracer provider for the whole test session, and a log of its spans."""

import threading

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider


class SpanLog(SpanProcessor):
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.started: list[Span] = []
        self.ended: list[ReadableSpan] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        with self._lock:
            self.started.append(span)

    def on_end(self, span: ReadableSpan) -> None:
        with self._lock:
            self.ended.append(span)

    @property
    def open(self) -> list[str]:
        return [span.name for span in self.started if span.end_time is None]

    def clear(self) -> None:
        self.started, self.ended = [], []

    def named(self, beginning: str) -> list[ReadableSpan]:
        """Return the ended spans whose name begins so, ordered by start time."""
        return sorted(
            (s for s in self.ended if s.name.startswith(beginning)), key=lambda s: s.start_time or 0
        )


def _install() -> SpanLog:
    log = SpanLog()
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    provider.add_span_processor(log)
    return log


SPANS = _install()
