"""Trace span of each attempt: worker, usage and, if the settings allow it, content."""

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from opentelemetry.trace import Span, SpanKind

from conductor.errors import PodiumError
from conductor.model.call import Call
from conductor.model.failure import Failure
from conductor.model.reply import Reply
from conductor.model.terms import Callee
from serving.redaction.failures import words_in_span
from serving.redaction.secrets import redact_secrets
from serving.redaction.texts import map_texts, redactor_of
from serving.telemetry import spans


@dataclass(frozen=True, slots=True)
class SpanFacts:
    """Span attributes of a target.

    Args:
        provider: name of the provider in the OpenTelemetry conventions.
        model: requested model.
        content: whether spans contain prompts and error messages, which may quote prompts.
    """

    provider: str
    model: str
    content: bool = False


class CallSpan:
    """Context manager for the span of one attempt. Does nothing if spans are not recorded.

    Args:
        facts: attributes of the target.
        callee: worker and deployment.
        call: call that is sent.
    """

    def __init__(self, facts: SpanFacts, callee: Callee, call: Call) -> None:
        self._facts, self._callee, self._call = facts, callee, call
        self._began_s = time.monotonic()
        self._span: Span | None = None
        self._reply: Reply | None = None
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        """Start the span."""
        if not spans.is_recording():
            return self
        facts, callee, site = self._facts, self._callee, self._call.site
        run_spans = spans.RUN_SPANS.get()
        self._span = self._opened.enter_context(
            spans.tracer.start_as_current_span(
                f"{site.operation} {callee.worker if site.operation == 'plan' else facts.model}",
                kind=SpanKind.CLIENT,
                attributes=_request_attributes(facts, callee, self._call),
                links=run_spans.links(site) if run_spans else [],
                record_exception=False,
                set_status_on_exception=False,
            )
        )
        if run_spans:
            run_spans.add(site, self._span.get_span_context())
        return self

    def speak(self, reply: Reply) -> None:
        """Record the first token."""
        if self._span is not None:
            self._span.set_attribute(spans.FIRST_CHUNK_S, time.monotonic() - self._began_s)
            reply.span = spans.span_id(self._span)
            self._reply = reply

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Record the result or the error, and end the span."""
        if self._span is None:
            return
        if isinstance(error, PodiumError):
            permit = self._call.terms.permit
            words = words_in_span(Failure.of(error), permit, content=self._facts.content)
            spans.mark_failed(self._span, type(error).__name__, words)
        if self._reply is not None:
            _set_result(self._span, self._reply)
        self._opened.__exit__(kind, error, traceback)


def _request_attributes(
    facts: SpanFacts, callee: Callee, call: Call
) -> dict[str, str | int | bool | list[int]]:
    site = call.site
    attributes: dict[str, str | int | bool | list[int]] = {
        spans.OPERATION: site.operation,
        spans.PROVIDER: facts.provider,
        spans.REQUEST_MODEL: facts.model,
        spans.REQUEST_STREAM: True,
        spans.WORKER: callee.worker,
        spans.PLAN: site.plan,
        spans.ATTEMPT: site.attempt,
        spans.PRIORITY: call.terms.priority,
    }
    if site.operation == "plan":
        attributes[spans.VIEWER_KIND] = "LLM"
    if call.sampling.max_output_tokens is not None:
        attributes[spans.REQUEST_MAX_TOKENS] = call.sampling.max_output_tokens
    if site.step is not None:
        attributes |= {spans.STEP: site.step, spans.ACCESS: list(site.access)}
    if callee.deployment:
        attributes[spans.DEPLOYMENT] = callee.deployment
    permit = call.terms.permit
    if facts.content and permit.traces:
        redact = redactor_of(permit)
        attributes[spans.INPUT_MESSAGES] = json.dumps(
            [{"role": m.role, "content": map_texts(m.text, redact)} for m in call.messages]
        )
    return attributes


def _set_result(span: Span, reply: Reply) -> None:
    span.set_attribute(spans.RESPONSE_MODEL, redact_secrets(reply.model))
    if reply.finish:
        span.set_attribute(spans.FINISH_REASONS, [reply.finish.value])
    if reply.usage:
        span.set_attributes(
            {
                spans.INPUT_TOKENS: reply.usage.input_tokens,
                spans.OUTPUT_TOKENS: reply.usage.output_tokens,
                spans.CACHED_TOKENS: reply.usage.cached_input_tokens,
                spans.REASONING_TOKENS: reply.usage.reasoning_tokens,
            }
        )
    cost_usd = reply.result.cost_usd
    if cost_usd is not None:
        span.set_attribute(spans.COST_USD, float(cost_usd))
