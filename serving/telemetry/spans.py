"""Names of spans and attributes, and the spans of runs and of their attempts at calls. Metrics are in `metrics.py`.

Names follow the OpenTelemetry GenAI conventions where these define one
(https://github.com/open-telemetry/semantic-conventions-genai, `docs/gen-ai`, development status as of
2026-11). Podium's own names start with `podium.`.

Ray Serve creates the tracer provider of each process and propagates the trace context between processes. It
calls `span_processors` to get the exporter, which the standard `OTEL_EXPORTER_OTLP_*` variables configure.
"""

import json
import logging
import os
import time
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode

from conductor.errors import PodiumError
from conductor.model.call import Call, CallSite
from conductor.model.failure import Failure
from conductor.model.reply import Reply
from conductor.model.terms import Callee
from conductor.run.record import Account
from serving.egress.reach import SETTINGS, AddressForbidden
from serving.redaction.failures import words_in_span
from serving.redaction.secrets import redact_secrets
from serving.redaction.texts import map_texts, redact_ahead, redactor_of

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
REQUEST_STREAM = "gen_ai.request.stream"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK_S = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
INPUT_MESSAGES = "gen_ai.input.messages"
WORKFLOW = "gen_ai.workflow.name"
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 (not a password)
ERROR_TYPE = "error.type"
VIEWER_KIND = "openinference.span.kind"
"""Span kind for viewers that follow OpenInference, such as Phoenix, if they do not know the GenAI operation."""

WORKFLOW_ID = "podium.workflow_id"
PLAN = "podium.plan"
STEP = "podium.step"
ACCESS = "podium.access"
ATTEMPT = "podium.attempt"
PRIORITY = "podium.priority"
WORKER = "podium.worker"
DEPLOYMENT = "podium.deployment"
COST_USD = "podium.cost_usd"
FALLBACK = "podium.fallback"
ROUNDS = "podium.rounds"
TEAM = "podium.team"
STATUS = "podium.status"
SOURCE = "podium.source"
REASON = "podium.reason"
THEN = "podium.then"
QUANTILE = "podium.quantile"

PROVIDERS: Mapping[str, str] = {
    "openai": "openai",
    "anthropic": "anthropic",
    "gemini": "gcp.gemini",
    "vllm": "vllm",
    "scripted": "podium.scripted",
    "python": "podium.python",
}
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Environment variables for the address of the collector, in the order of precedence."""
EXPORTER = "serving.telemetry:span_processors"
"""Value for Ray Serve's `tracing_config.exporter_import_path`."""

tracer = trace.get_tracer("podium")
_is_exported = True
"""True if spans are exported. `span_processors` sets it."""


@dataclass(slots=True)
class Spans:
    """Span of the newest attempt of each step with inner runs, which links to those that the step reads."""

    _steps: dict[tuple[str, int, int], SpanContext] = field(
        default_factory=dict[tuple[str, int, int], SpanContext]
    )

    def add(self, site: CallSite, span: SpanContext) -> None:
        if site.step is not None:
            self._steps[site.run, site.plan, site.step] = span

    def links(self, site: CallSite) -> list[Link]:
        """Return a link to the span of each step whose result the step at `site` reads."""
        keys = ((site.run, site.plan, read) for read in site.access)
        return [Link(self._steps[key]) for key in keys if key in self._steps]


RUN_SPANS: ContextVar[Spans | None] = ContextVar("run_spans", default=None)


@contextmanager
def workflow(model: str, workflow_id: str, headers: Mapping[str, str] | None = None) -> Generator[Span]:
    """Open the span of a run, with steps as children, as tasks copy the context. The headers' `traceparent`
    is its parent, unless Ray Serve set one.
    """
    if not is_recording() and not (headers and "traceparent" in headers):
        yield trace.NonRecordingSpan(trace.get_current_span().get_span_context())
        return
    context = None
    if not trace.get_current_span().get_span_context().is_valid:
        context = propagate.extract(headers or dict[str, str]())
    attributes = {
        OPERATION: "invoke_workflow",
        WORKFLOW: model,
        REQUEST_MODEL: model,
        WORKFLOW_ID: workflow_id,
        VIEWER_KIND: "CHAIN",
    }
    token = RUN_SPANS.set(Spans())
    try:
        with tracer.start_as_current_span(
            f"invoke_workflow {model}",
            context,
            SpanKind.INTERNAL,
            attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except Exception as exc:
                if not _is_failed(span):
                    mark_failed(span, type(exc).__name__, "")  # the message may quote a prompt
                raise
    finally:
        RUN_SPANS.reset(token)


@dataclass(frozen=True, slots=True)
class SpanFacts:
    """Span attributes of a target.

    Args:
        content: whether spans contain prompts and error messages, which may quote prompts.
    """

    provider: str
    model: str
    content: bool = False


class CallSpan:
    """Context manager for the span of one attempt. Does nothing if spans are not recorded.

    Args:
        messages: see `messages_in_span`.
    """

    def __init__(self, facts: SpanFacts, callee: Callee, call: Call, messages: str = "") -> None:
        self._facts, self._callee, self._call, self._messages = facts, callee, call, messages
        self._began_s = time.monotonic()
        self._span: Span | None = None
        self._reply: Reply | None = None
        self._current: AbstractContextManager[Span] | None = None

    def __enter__(self) -> Self:
        if not is_recording():
            return self
        facts, callee, site = self._facts, self._callee, self._call.site
        run_spans = RUN_SPANS.get()
        self._current = tracer.start_as_current_span(
            f"{site.operation} {callee.worker if site.operation == 'plan' else facts.model}",
            kind=SpanKind.CLIENT,
            attributes=_request_attributes(facts, callee, self._call, self._messages),
            links=run_spans.links(site) if run_spans else [],
            record_exception=False,
            set_status_on_exception=False,
        )
        self._span = self._current.__enter__()
        if run_spans:
            run_spans.add(site, self._span.get_span_context())
        return self

    def speak(self, reply: Reply) -> None:
        if self._span is not None:
            self._span.set_attribute(FIRST_CHUNK_S, time.monotonic() - self._began_s)
            reply.span = span_id(self._span)
            self._reply = reply

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._span is None or self._current is None:
            return
        if isinstance(error, PodiumError):
            permit = self._call.terms.permit
            words = words_in_span(Failure.of(error), permit, content=self._facts.content)
            mark_failed(self._span, type(error).__name__, words)
        if self._reply is not None:
            _set_result(self._span, self._reply)
        self._current.__exit__(kind, error, traceback)


async def messages_in_span(facts: SpanFacts, call: Call) -> str:
    """Return the prompt as JSON, redacted in turns with other texts, or "" if spans do not contain it."""
    terms = call.terms
    if not (facts.content and terms.permit.traces and is_recording()):
        return ""
    texts, redact = tuple(message.text for message in call.messages), redactor_of(terms.permit)
    async with redact_ahead(redact, Account(terms.payer, terms.team), texts):
        redacted = map_texts(texts, redact)
    messages = zip(call.messages, redacted, strict=True)
    return json.dumps([{"role": message.role, "content": text} for message, text in messages])


def _request_attributes(
    facts: SpanFacts, callee: Callee, call: Call, messages: str
) -> dict[str, str | int | bool | list[int]]:
    site = call.site
    attributes: dict[str, str | int | bool | list[int]] = {
        OPERATION: site.operation,
        PROVIDER: facts.provider,
        REQUEST_MODEL: facts.model,
        REQUEST_STREAM: True,
        WORKER: callee.worker,
        PLAN: site.plan,
        ATTEMPT: site.attempt,
        PRIORITY: call.terms.priority,
    }
    if site.operation == "plan":
        attributes[VIEWER_KIND] = "LLM"
    if call.sampling.max_output_tokens is not None:
        attributes[REQUEST_MAX_TOKENS] = call.sampling.max_output_tokens
    if site.step is not None:
        attributes |= {STEP: site.step, ACCESS: list(site.access)}
    if callee.deployment:
        attributes[DEPLOYMENT] = callee.deployment
    if messages:
        attributes[INPUT_MESSAGES] = messages
    return attributes


def _set_result(span: Span, reply: Reply) -> None:
    span.set_attribute(RESPONSE_MODEL, redact_secrets(reply.model))
    if reply.finish:
        span.set_attribute(FINISH_REASONS, [reply.finish.value])
    if reply.usage:
        span.set_attributes(
            {
                INPUT_TOKENS: reply.usage.input_tokens,
                OUTPUT_TOKENS: reply.usage.output_tokens,
                CACHED_TOKENS: reply.usage.cached_input_tokens,
                REASONING_TOKENS: reply.usage.reasoning_tokens,
            }
        )
    cost_usd = reply.result.cost_usd
    if cost_usd is not None:
        span.set_attribute(COST_USD, float(cost_usd))


def is_recording() -> bool:
    return _is_exported


def trace_id(span: Span) -> str | None:
    """Return the id of the trace of `span` in hexadecimal, or None if nothing is traced."""
    context = span.get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None


def span_id(span: Span) -> str:
    """Return the id of `span` in hexadecimal, or "" if nothing is traced."""
    context = span.get_span_context()
    return trace.format_span_id(context.span_id) if context.is_valid else ""


def mark_failed(span: Span, error_type: str, message: str) -> None:
    """Mark `span` as failed. `message` must not contain texts that may not be traced."""
    span.set_attribute(ERROR_TYPE, error_type)
    span.set_status(Status(StatusCode.ERROR, redact_secrets(message)))


def _is_failed(span: Span) -> bool:
    return isinstance(span, ReadableSpan) and span.status.status_code is StatusCode.ERROR


def outgoing_headers() -> dict[str, str]:
    """Return headers that make the current span the parent of spans in an engine's replica."""
    headers: dict[str, str] = {}
    propagate.inject(headers)
    return headers


def find_endpoint(environment: Mapping[str, str]) -> str | None:
    """Return the collector's address, or None. A link-local or metadata one is logged as an error, here
    because gRPC connects by itself.
    """
    endpoint = next((value for name in ENDPOINTS if (value := environment.get(name))), None)
    if endpoint is None:
        return None
    try:
        SETTINGS.check_name(urlsplit(endpoint if "://" in endpoint else f"//{endpoint}").hostname or "")
    except (AddressForbidden, ValueError) as exc:
        logging.getLogger(__name__).error(
            "Spans are not exported, because the collector's address is not allowed: %s", exc
        )
        return None
    return endpoint


def span_processors() -> list[SpanProcessor]:
    """Return the span processors for the tracer provider of this process. Ray Serve calls this.

    The list contains a batching OTLP exporter if `OTEL_EXPORTER_OTLP_ENDPOINT` or
    `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is set, and is empty otherwise. The other standard variables apply
    too. The protocol is gRPC, or HTTP with `OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf`.
    """
    global _is_exported
    logging.getLogger("opentelemetry.sdk.trace").addFilter(_not_of_an_ended_span)
    _is_exported = find_endpoint(os.environ) is not None
    if not _is_exported:
        return []
    from serving.telemetry.exporting import BoundedProcessor, otlp_exporter

    return [BoundedProcessor(otlp_exporter())]


def _not_of_an_ended_span(record: logging.LogRecord) -> bool:
    """Return whether a log record is not about an ended span. Serve would log two lines per cancelled call."""
    return "ended span" not in record.getMessage()
