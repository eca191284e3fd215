"""Spans, metrics and logs. Serve configs refer to `serving.telemetry:span_processors`."""

from serving.telemetry.spans import span_processors

__all__ = ["span_processors"]
