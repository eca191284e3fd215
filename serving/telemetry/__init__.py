"""Spans, metrics and logs. Serve configs name `serving.telemetry:span_processors`."""

from serving.telemetry.spans import span_processors

__all__ = ["span_processors"]
