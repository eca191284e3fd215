"""One span for each attempt: the worker, what it took, and what it read if the settings allow that."""

import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.trace import Span, SpanKind

from conductor.errors import PodiumError
from conductor.model.call import Call
from conductor.model.callee import Callee
from conductor.model.failure import Failure
from conductor.model.reply import Reply
from serving.redaction.failures import words_in_span
from serving.redaction.personal import redactor_of
from serving.redaction.secrets import redact_secrets
from serving.redaction.texts import map_texts
from serving.telemetry import spans


@dataclass(frozen=True, slots=True)
class SpanFacts:
    """What the spans of one target say.

    Args:
        provider: its name in the conventions.
        model: the model that is asked for.
        content: whether prompts, and error messages, which may quote them, are put into spans.
    """

    provider: str
    model: str
    content: bool = False


class CallSpan:
    """The open span of one attempt."""

    def __init__(self, span: Span) -> None:
        self._span, self._began_s = span, time.monotonic()
        self._reply: Reply | None = None

    def speak(self, reply: Reply) -> None:
        """Record the first token."""
        self._span.set_attribute(spans.FIRST_CHUNK_S, time.monotonic() - self._began_s)
        reply.span = spans.span_id(self._span)
        self._reply = reply

    def close(self) -> None:
        """Record the result, if there is one."""
        if self._reply is not None:
            _set_result(self._span, self._reply)


@contextmanager
def call_span(facts: SpanFacts, callee: Callee, call: Call) -> Generator[CallSpan]:
    """Open a span for as long as the attempt is open."""
    run_spans = spans.RUN_SPANS.get()
    links = run_spans.links(call.site) if run_spans else []
    operation = call.site.operation
    with spans.tracer.start_as_current_span(
        f"{operation} {callee.worker if operation == 'plan' else facts.model}",
        kind=SpanKind.CLIENT,
        attributes=_request_attributes(facts, callee, call),
        links=links,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        if run_spans:
            run_spans.add(call.site, span.get_span_context())
        opened = CallSpan(span)
        try:
            yield opened
        except PodiumError as exc:
            words = words_in_span(Failure.of(exc), call.terms.permit, content=facts.content)
            spans.mark_failed(span, type(exc).__name__, words)
            raise
        finally:
            opened.close()


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
