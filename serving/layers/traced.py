"""One span a call: who was asked, what it took, what it read."""

import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from opentelemetry.trace import Span, SpanKind

from conductor.errors import PodiumError
from conductor.money import cost_of
from conductor.worker import Call, Reply, Worker
from serving import telemetry as t


class Traced:
    """`worker` with a span for each call, open exactly as long as the call is.

    Args:
        worker: who is called.
        provider: its convention name.
        model: what it is asked for.
        content: whether prompts are put into spans.
    """

    def __init__(self, worker: Worker, provider: str, model: str, *, content: bool = False) -> None:
        self._worker, self._provider, self._model, self._content = worker, provider, model, content

    @property
    def name(self) -> str:
        """See `Worker.name`."""
        return self._worker.name

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`."""
        spans = t.RUN_SPANS.get()
        links = spans.links(call.plan, call.access) if spans else []
        kind = SpanKind.CLIENT
        name = f"{call.operation} {self._worker.name if call.operation == 'plan' else self._model}"
        with t.tracer.start_as_current_span(
            name,
            kind=kind,
            attributes=self._asked(call),
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            if spans and call.step is not None:
                spans.steps[call.plan, call.step] = span.get_span_context()
            began = time.monotonic()
            try:
                async with self._worker.open(call) as reply:
                    span.set_attribute(t.FIRST_CHUNK_S, time.monotonic() - began)
                    try:
                        yield reply
                    finally:
                        _answered(span, reply)
            except PodiumError as exc:
                t.failed(span, type(exc).__name__, exc.explanation)
                raise

    def _asked(self, call: Call) -> dict[str, str | int | bool | list[int]]:
        attributes: dict[str, str | int | bool | list[int]] = {
            t.OPERATION: call.operation, t.PROVIDER: self._provider, t.REQUEST_MODEL: self._model,
            t.REQUEST_STREAM: True, t.WORKER: self._worker.name, t.PLAN: call.plan, t.ATTEMPT: call.attempt,
        }  # fmt: skip
        if call.max_output_tokens is not None:
            attributes[t.REQUEST_MAX_TOKENS] = call.max_output_tokens
        if call.step is not None:
            attributes |= {t.STEP: call.step, t.ACCESS: list(call.access)}
        if self._content:
            attributes[t.INPUT_MESSAGES] = json.dumps(
                [{"role": m.role, "content": m.text} for m in call.messages]
            )
        return attributes


def _answered(span: Span, reply: Reply) -> None:
    span.set_attribute(t.RESPONSE_MODEL, reply.model)
    if reply.finish:
        span.set_attribute(t.FINISH_REASONS, [reply.finish.value])
    if reply.usage:
        span.set_attributes({
            t.INPUT_TOKENS: reply.usage.input_tokens, t.OUTPUT_TOKENS: reply.usage.output_tokens,
            t.CACHED_TOKENS: reply.usage.cached_input_tokens, t.REASONING_TOKENS: reply.usage.reasoning_tokens,
        })  # fmt: skip
    cost_usd = cost_of(reply.price, reply.usage) if reply.cost_usd is None else reply.cost_usd
    if cost_usd is not None:
        span.set_attribute(t.COST_USD, float(cost_usd))
