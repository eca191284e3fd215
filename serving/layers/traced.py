"""One span a call: who was asked, what it took, what it read."""

import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from opentelemetry.trace import Span, SpanKind

from conductor.errors import PodiumError
from conductor.model.call import Call
from conductor.model.callee import Callee
from conductor.model.failure import Failure
from conductor.model.reply import Reply
from conductor.model.usage import Price
from conductor.model.worker import Worker
from serving.layers.layer import Layer
from serving.redaction.failures import words_in_span
from serving.redaction.personal import redactor_of
from serving.redaction.secrets import redact_secrets
from serving.telemetry import spans


class Traced(Layer):
    """`worker` with a span for each call, open exactly as long as the call is.

    Args:
        worker: who is called.
        provider: its convention name.
        model: what it is asked for.
        content: whether prompts, and errors' words, which may quote them, are put into spans.
        deployment: which of the places where it is reached; empty where it has one.
        price: per token there.
    """

    def __init__(
        self,
        worker: Worker,
        provider: str,
        model: str,
        *,
        content: bool = False,
        deployment: str = "",
        price: Price | None = None,
    ) -> None:
        super().__init__(worker)
        self._provider, self._model, self._content = provider, model, content
        self._callee = Callee(worker.name, deployment, price)

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`."""
        run_spans = spans.RUN_SPANS.get()
        links = run_spans.links(call.site) if run_spans else []
        kind = SpanKind.CLIENT
        name = f"{call.site.operation} {self._worker.name if call.site.operation == 'plan' else self._model}"
        with spans.tracer.start_as_current_span(
            name,
            kind=kind,
            attributes=self._request_attributes(call),
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            if run_spans:
                run_spans.add(call.site, span.get_span_context())
            if call.on_asked:
                call.on_asked(self._callee)
            began = time.monotonic()
            try:
                async with self._worker.open(call) as reply:
                    span.set_attribute(spans.FIRST_CHUNK_S, time.monotonic() - began)
                    reply.span = spans.span_id(span)
                    try:
                        yield reply
                    finally:
                        _set_result(span, reply)
            except PodiumError as exc:
                words = words_in_span(Failure.of(exc), call.permit, content=self._content)
                spans.mark_failed(span, type(exc).__name__, words)
                raise

    def _request_attributes(self, call: Call) -> dict[str, str | int | bool | list[int]]:
        attributes: dict[str, str | int | bool | list[int]] = {
            spans.OPERATION: call.site.operation,
            spans.PROVIDER: self._provider,
            spans.REQUEST_MODEL: self._model,
            spans.REQUEST_STREAM: True,
            spans.WORKER: self._worker.name,
            spans.PLAN: call.site.plan,
            spans.ATTEMPT: call.site.attempt,
            spans.PRIORITY: call.priority,
        }
        if call.site.operation == "plan":
            attributes[spans.VIEWER_KIND] = "LLM"
        if call.sampling.max_output_tokens is not None:
            attributes[spans.REQUEST_MAX_TOKENS] = call.sampling.max_output_tokens
        if call.site.step is not None:
            attributes |= {spans.STEP: call.site.step, spans.ACCESS: list(call.site.access)}
        if self._callee.deployment:
            attributes[spans.DEPLOYMENT] = self._callee.deployment
        if self._content and call.permit.traces:
            redact = redactor_of(call.permit)
            attributes[spans.INPUT_MESSAGES] = json.dumps(
                [{"role": m.role, "content": redact(m.text)} for m in call.messages]
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
